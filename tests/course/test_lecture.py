"""A reader's notebook on the lecture's classes runs, and gives the lecture's figures; the decoder and the repairs."""

import math
import re
from pathlib import Path

import numpy as np
import numpy_transcription as plain
import pytest
import torch
from random_weights import randomized
from torch import nn

from attendo.inspecting.recording import recording
from attendo.model_config import ModelConfig
from attendo.models import DecoderLM, EncoderClassifier, EncoderDecoder, parameter_count
from attendo.nn.layers import Dropout
from attendo.nn.masks import Mask
from attendo_course import lecture, presets
from attendo_course.errata import Snippet
from attendo_course.lecture import (
    CNN,
    Decoder,
    DecoderLayer,
    Embeddings,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    TransformerClassifier,
    nn_Softargmax,
    padding_mask,
)

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


pytestmark = pytest.mark.usefixtures("float64")


def same(ours, theirs):
    np.testing.assert_allclose(ours.detach().numpy(), np.asarray(theirs), **CLOSE)


temp_K = torch.tensor([[10.0, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]])[None, None].double()
temp_V = torch.tensor([[1.0, 0, 0], [10, 0, 0], [100, 5, 0], [1000, 6, 0]])[None, None].double()


@pytest.mark.parametrize(
    ("query", "weights", "values"),
    [
        ((0, 10, 0), "3.73e-06 1.00e+00 3.73e-06 3.73e-06", "10.004 4.09927e-05 0"),
        ((0, 0, 10), "1.86e-06 1.86e-06 5.00e-01 5.00e-01", "549.998 5.49998 0"),
        ((10, 10, 0), "5.00e-01 5.00e-01 1.86e-06 1.86e-06", "5.50203 2.04965e-05 0"),
    ],
)
def test_the_notebook_looks_up_its_keys(query, weights, values):
    """T02: the layer divides by √64, though these keys are 3 wide."""
    temp_mha = MultiHeadAttention(d_model=512, num_heads=8, p=0)
    temp_Q = torch.tensor([[[query]]]).double()
    temp_out, temp_attn = temp_mha.scaled_dot_product_attention(temp_Q, temp_K, temp_V)
    assert " ".join(f"{a:.2e}" for a in temp_attn.flatten()) == weights
    assert " ".join(f"{h:.6g}" for h in temp_out.flatten()) == values
    scores = np.array([sum(q * k for q, k in zip(query, key, strict=True)) for key in temp_K[0, 0].tolist()])
    same(temp_attn.flatten(), plain.softmax(scores / 8.0))


@pytest.mark.parametrize("as_published", [False, True])
def test_the_notebook_trains_its_classifier(as_published):
    """Twenty steps on texts of two kinds, each with its own half of the words but for one word in eight."""
    device = torch.device("cpu")
    model = TransformerClassifier(
        num_layers=1, d_model=32, num_heads=2, conv_hidden_dim=128, input_vocab_size=20, num_answers=2,
        as_published=as_published,
    )  # fmt: skip
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    y = torch.arange(64) % 2
    x = torch.randint(2, 11, (64, 8)) + 9 * y[:, None]
    x[:, 0], x[:, -1] = torch.randint(2, 20, (64,)), 1  # any word first, padding last
    model.train()
    losses = []
    for _ in range(20):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 < 0.5 < losses[0]
    model.eval()
    with torch.no_grad():
        assert (model(x).argmax(1) == y).double().mean() > 0.95
    assert not model.encoder.embedding.word_embeddings.weight[1].any(), "the row of padding stays 0"
    assert len(model.state_dict()) == len(dict(model.named_parameters())), "each parameter has one name"


def test_parameters_of_the_lecture():
    with torch.device("meta"):
        model = TransformerClassifier(
            num_layers=1, d_model=32, num_heads=2, conv_hidden_dim=128, input_vocab_size=50002, num_answers=2
        )
    assert parameter_count(model) == 1_612_802
    assert isinstance(model.model, EncoderClassifier)
    assert {type(module).__module__ for module in model.modules()} <= {
        "attendo_course.lecture", "attendo.models", "attendo.nn.attention", "attendo.nn.blocks",
        "attendo.nn.layers", "attendo.nn.positions",
        "torch.nn.modules.container", "torch.nn.modules.linear", "torch.nn.modules.normalization",
    }  # fmt: skip


@pytest.mark.parametrize(("q_len", "k_len"), [(3, 5), (5, 3), (1, 1)])
@pytest.mark.parametrize("d_input", [None, (4, 5, 7)])
def test_attention_equals_a_loop_over_heads(q_len, k_len, d_input):
    mha = randomized(MultiHeadAttention(6, 3, 0.1, d_input))
    widths = d_input or (6, 6, 6)
    X_q, X_k, X_v = (torch.randn(2, n, d) for n, d in zip((q_len, k_len, k_len), widths, strict=True))
    H, A = mha(X_q, X_k, X_v)
    assert H.shape == (2, q_len, 6)
    assert A.shape == (2, 3, q_len, k_len)
    same(A.sum(-1), np.ones((2, 3, q_len)))
    theta = plain.arrays(mha.attention)
    assert [name for name in theta if name.endswith("bias")] == ["out_proj.bias"]
    for row in range(2):
        x, k, v = (tensor[row].numpy() for tensor in (X_q, X_k, X_v))
        same(H[row], plain.multi_head(x, k, theta, 3, values=v))
        for head in range(3):
            rows = slice(2 * head, 2 * head + 2)
            Q, K = x @ theta["q_proj.weight"][rows].T, k @ theta["k_proj.weight"][rows].T
            same(A[row, head], plain.softmax(Q @ K.T / math.sqrt(2)))


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="d_model=6 is not a multiple of num_heads=4"):
        MultiHeadAttention(6, 4, 0)


def test_embeddings():
    embeddings = Embeddings(6, 9, max_position_embeddings=5, p=0.1).eval()
    assert not embeddings.word_embeddings.weight[1].any()
    ids = torch.tensor([[2, 3, 1, 1]])
    embeddings.LayerNorm.weight.data = torch.randn(6)
    theta = plain.arrays(embeddings.embedding)
    rows = theta["tokens.weight"][ids[0]] + plain.sinusoids(4, 6)
    same(embeddings(ids)[0], plain.layer_norm(rows, plain.part(theta, "norm"), 1e-12))
    (embeddings(ids) * torch.randn(6)).sum().backward()
    assert not embeddings.word_embeddings.weight.grad[1].any()
    assert embeddings.word_embeddings.weight.grad[2].any()
    assert {name for name, _ in embeddings.named_parameters()} == {
        "embedding.tokens.weight", "embedding.norm.weight", "embedding.norm.bias"
    }  # fmt: skip
    with pytest.raises(ValueError, match="the texts have 6 tokens, but the positions end at 5"):
        embeddings(torch.full((1, 6), 2))


@pytest.mark.parametrize("as_published", [False, True])
def test_the_encoder_of_a_classifier_is_seen_through_not_copied(as_published):
    model = randomized(TransformerClassifier(2, 6, 2, 10, 9, 3, as_published=as_published))
    ids = torch.tensor([[2, 3, 6, 4], [5, 1, 1, 1]])
    states = model.encoder(ids)
    if not as_published:
        states = states.masked_fill(ids[..., None] == 1, -math.inf)
    values, _ = torch.max(states, dim=1)
    same(model(ids), model.dense(values).detach())
    last = model.encoder.enc_layers[1]
    mask = None if as_published else padding_mask(ids)
    x = model.encoder.enc_layers[0](model.encoder.embedding(ids), mask)
    with recording(model.model) as record:
        record.model(ids, None if mask is None else mask.key_lengths)
    same(last.mha(x, x, x, mask)[1], record["encoder.blocks.1.self_attention"].weights.detach())
    nn.init.zeros_(last.mha.W_v.weight)
    assert not model.model.encoder.blocks[1].self_attention.v_proj.weight.any()
    with pytest.raises(ValueError, match="10001 tokens"):
        model(torch.full((1, 10_001), 2))


# ---- what the published classes leave out: dropout and the padding mask

SIZES = {"d_model": 6, "num_heads": 2, "conv_hidden_dim": 10, "input_vocab_size": 9, "num_answers": 2}
PADDED = torch.tensor([[5, 2, 1, 1, 1], [8, 3, 6, 4, 1]])


def notebook_encoder(ids, theta):
    """The notebook's encoder with d_model 6 and two heads, written out: without dropout and without a mask."""
    x = theta["embedding.tokens.weight"][ids] + plain.sinusoids(len(ids), 6)
    x = plain.layer_norm(x, plain.part(theta, "embedding.norm"), 1e-12)
    for block in plain.stack(plain.part(theta, "encoder")):
        norms = [plain.part(block, f"{name}_residual.norm") for name in ("self_attention", "feed_forward")]
        x = plain.layer_norm(x + plain.multi_head(x, x, plain.part(block, "self_attention"), 2), norms[0], 1e-6)
        net = plain.feed_forward(x, plain.part(block, "feed_forward"), plain.relu)
        x = plain.layer_norm(x + net, norms[1], 1e-6)
    return x


def notebook_classifier(ids, theta):
    return plain.linear(notebook_encoder(ids, theta).max(axis=0), plain.part(theta, "output_proj"))


def test_the_published_form_is_the_notebooks():
    """In training, whatever p; padding receives attention and can win the maximum."""
    model = randomized(TransformerClassifier(2, **SIZES, p=0.9, as_published=True)).train()
    encoder = randomized(Encoder(2, 6, 2, 10, 9, 5, p=0.9, as_published=True)).train()
    embedding, layers = plain.arrays(encoder.embedding.embedding), plain.arrays(encoder.encoder)
    own = {f"embedding.{name}": value for name, value in embedding.items()}
    own |= {f"encoder.{name}": value for name, value in layers.items()}
    for row, ids in enumerate(PADDED.tolist()):
        same(model(PADDED)[row], notebook_classifier(ids, plain.arrays(model.model)))
        same(model.encoder(PADDED)[row], notebook_encoder(ids, plain.arrays(model.model)))
        same(encoder(PADDED)[row], notebook_encoder(ids, own))


def test_by_default_a_padded_text_is_the_text_alone():
    model = randomized(TransformerClassifier(2, **SIZES))
    theta, states = plain.arrays(model.model), model.encoder(PADDED)
    for row, n in enumerate((2, 4)):
        ids = PADDED[row, :n].tolist()
        same(model(PADDED)[row], notebook_classifier(ids, theta))
        same(states[row, :n], notebook_encoder(ids, theta))
        assert abs(notebook_classifier(PADDED[row].tolist(), theta) - model(PADDED)[row].tolist()).max() > 1e-4
    shorter = PADDED[:, :4]
    assert torch.equal(model(PADDED), model(shorter)), "one more column of padding changes not a bit"
    x = model.encoder.embedding(PADDED)
    _, A = model.encoder.enc_layers[0].mha(x, x, x, padding_mask(PADDED))
    assert (A.gt(0.0) == PADDED.ne(1)[:, None, None]).all()
    same(A.sum(-1), np.ones((2, 2, 5)))


@pytest.mark.parametrize("ids", [[[2, 3], [1, 1]], [[2, 3], [1, 4]]])
def test_padding_that_no_length_describes_is_refused(ids):
    model = TransformerClassifier(1, **SIZES)
    for call in (model, model.encoder):
        with pytest.raises(ValueError, match=r"text 1 has padding \(id 1\) at its beginning or between tokens"):
            call(torch.tensor(ids))
    TransformerClassifier(1, **SIZES, as_published=True)(torch.tensor(ids))


def test_p_drops_the_output_of_each_class():
    """Half of the entries are 0, and the others are twice those of evaluation; the weights A are whole."""
    x, ids = torch.randn(4, 50, 6), torch.randint(2, 9, (4, 50))
    mha = MultiHeadAttention(6, 2, 0.5)
    drops = [(mha, lambda: mha(x, x, x)[0]), (CNN(6, 10, 0.5), None), (Embeddings(6, 9, 50, 0.5), None)]
    for module, call in drops:
        call = call or (lambda module=module: module(ids if isinstance(module, Embeddings) else x))
        found, whole = call(), (module.eval(), call())[1]
        kept = found != 0.0
        same(found[kept], 2.0 * whole[kept].detach())
        assert 0.45 < kept.double().mean() < 0.55
        assert whole.ne(0.0).all()
        assert torch.equal(call(), whole), "in evaluation nothing is dropped"
    same(mha.train()(x, x, x)[1].sum(-1), np.ones((4, 2, 50)))


def seeded(call):
    torch.manual_seed(3)
    return call()


def test_a_layer_drops_where_its_parts_do():
    """In training, too, a layer is the lecture's two lines for each sub-layer."""
    x, memory, mask = torch.randn(2, 4, 6), torch.randn(2, 5, 6), padding_mask(PADDED)
    encoder_layer, decoder_layer = EncoderLayer(6, 2, 10, p=0.5), DecoderLayer(6, 2, 10, p=0.5)
    causal = Mask(causal=True)

    def encoder_by_parts():
        out1 = encoder_layer.layernorm1(x + encoder_layer.mha(x, x, x)[0])
        return encoder_layer.layernorm2(out1 + encoder_layer.cnn(out1))

    def decoder_by_parts():
        out1 = decoder_layer.layernorm1(x + decoder_layer.mha(x, x, x, causal)[0])
        out2 = decoder_layer.layernorm2(out1 + decoder_layer.cross_mha(out1, memory, memory, mask)[0])
        return decoder_layer.layernorm3(out2 + decoder_layer.cnn(out2))

    for layer, whole, by_parts in (
        (encoder_layer, lambda: encoder_layer(x), encoder_by_parts),
        (decoder_layer, lambda: decoder_layer(x, memory, mask), decoder_by_parts),
    ):
        assert layer.mha.training
        found = seeded(whole)
        same(found, seeded(by_parts).detach())
        layer.eval()
        assert not layer.mha.training
        same(whole(), by_parts().detach())
        assert not torch.allclose(found, whole(), atol=1e-3)


def test_the_classifier_drops_a_tenth_unless_told_otherwise():
    for options, p in (({}, 0.1), ({"p": 0.3}, 0.3), ({"p": 0}, 0.0), ({"as_published": True}, 0.0)):
        model = TransformerClassifier(1, **SIZES, **options)
        assert {module.p for module in model.modules() if type(module) is Dropout} - {0.0} == {p} - {0.0}
        assert model.encoder.enc_layers[0].mha.dropout.p == model.encoder.embedding.embedding.dropout.p == p
        assert torch.equal(model(PADDED), model(PADDED)) == (p == 0.0)
        assert torch.equal(model.eval()(PADDED), model(PADDED))
    assert presets.nyu_classifier().config.dropout == 0.0


# ---- the decoder, of which the lecture has no code


def notebook_decoder_layer(y, memory, theta):
    """The decoder layer of the lecture's text and figure 4 with two heads, written out."""
    norms = [
        plain.part(theta, f"{name}_residual.norm") for name in ("self_attention", "cross_attention", "feed_forward")
    ]
    attended = plain.multi_head(y, y, plain.part(theta, "self_attention"), 2, causal=True)
    out1 = plain.layer_norm(y + attended, norms[0], 1e-6)
    crossed = plain.multi_head(out1, memory, plain.part(theta, "cross_attention"), 2)
    out2 = plain.layer_norm(out1 + crossed, norms[1], 1e-6)
    net = plain.feed_forward(out2, plain.part(theta, "feed_forward"), plain.relu)
    return plain.layer_norm(out2 + net, norms[2], 1e-6)


def test_decoder_layer():
    layer, y, memory = randomized(DecoderLayer(6, 2, 10)), torch.randn(2, 4, 6), torch.randn(2, 5, 6)
    theta = plain.arrays(layer.block)
    out, masked = layer(y, memory), layer(y, memory, padding_mask(PADDED))
    for row, n in enumerate((2, 4)):
        same(out[row], notebook_decoder_layer(y[row].numpy(), memory[row].numpy(), theta))
        same(masked[row], notebook_decoder_layer(y[row].numpy(), memory[row, :n].numpy(), theta))
    _, A = layer.cross_mha(y, memory, memory, padding_mask(PADDED))
    assert (A.gt(0.0) == PADDED.ne(1)[:, None, None]).all()


def encoder_decoder():
    stacks = {
        "num_layers": 2,
        "d_model": 6,
        "num_heads": 2,
        "ff_hidden_dim": 10,
        "maximum_position_encoding": 7,
    }
    return (
        randomized(Encoder(input_vocab_size=9, **stacks)),
        randomized(Decoder(target_vocab_size=8, **stacks)),
        torch.tensor([[0, 5, 7, 3, 2], [0, 4, 6, 2, 1]]),
    )


def test_decoder():
    encoder, decoder, y = encoder_decoder()
    h_enc, mask = encoder(PADDED), padding_mask(PADDED)
    x = decoder.embedding(y)
    for layer in decoder.dec_layers:
        x = layer(x, h_enc, mask)
    h_dec = decoder(y, h_enc, mask)
    same(h_dec, x.detach())
    assert decoder.num_layers == len(decoder.dec_layers) == 2
    alone = decoder(y[:1], encoder(PADDED[:1, :2]))
    same(h_dec[:1], alone.detach())
    with pytest.raises(ValueError, match="the texts have 8 tokens, but the positions end at 7"):
        decoder(torch.full((2, 8), 2), h_enc)
    with pytest.raises(ValueError, match="id 8 is none of a vocabulary of 8 tokens"):
        decoder(y + 1, h_enc)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 3)])
def test_the_decoder_step_by_step_is_the_decoder_at_once(sizes):
    encoder, decoder, y = encoder_decoder()
    h_enc, mask = encoder(PADDED), padding_mask(PADDED)
    cache = decoder.start(h_enc, mask, capacity=6)
    steps = [decoder.step(part, cache) for part in y.split(sizes, 1)]
    same(torch.cat(steps, 1), decoder(y, h_enc, mask).detach())
    assert cache.lengths.tolist() == [5, 5]
    with pytest.raises(ValueError, match="the texts have 8 tokens, but the positions end at 7"):
        decoder.step(y[:, :3], cache)


def test_the_stacks_over_a_model_of_attendo_are_the_model():
    config = ModelConfig(
        vocab_size=9,
        d_model=6,
        d_ff=10,
        n_heads=2,
        n_encoder_layers=2,
        n_decoder_layers=2,
        dropout=0.4,
        pad_id=0,
    )
    model = randomized(EncoderDecoder(config))
    encoder = Encoder.over(model.source_embedding, model.encoder, config.max_len)
    decoder = Decoder.over(model.target_embedding, model.decoder, config.max_len)
    src, tgt = torch.tensor([[5, 2, 0, 0], [8, 1, 6, 4]]), torch.tensor([[2, 5, 7], [2, 4, 6]])
    lengths = torch.tensor([2, 4])  # this model's padding is 0, and 1 is a token
    mask = padding_mask(src, pad_id=0)
    assert torch.equal(mask.key_lengths, lengths)
    h_dec = decoder(tgt, encoder(src), mask)
    assert torch.equal(h_dec, model.hidden(src, tgt, lengths))
    assert torch.equal(model.output(h_dec), model(src, tgt, lengths))
    cache, theirs = decoder.start(encoder(src), mask), model.start(src, lengths)
    assert torch.equal(model.output(decoder.step(tgt, cache)), model.step(tgt, theirs))
    layer = decoder.dec_layers[1]
    assert layer.cross_mha.W_k is model.decoder.blocks[1].cross_attention.k_proj
    assert layer.layernorm2 is model.decoder.blocks[1].cross_attention_residual.norm
    assert layer.cross_mha.dropout.p == 0.4
    assert not decoder.training
    assert Decoder.over(model.target_embedding, model.decoder.train(), 9).dec_layers[0].training


def test_a_decoder_only_block_has_no_cross_attention():
    config = ModelConfig(vocab_size=9, d_model=6, d_ff=10, n_heads=2, architecture="decoder", n_encoder_layers=0)
    block = DecoderLM(config).decoder.blocks[0]
    with pytest.raises(ValueError, match="the block of this layer has no cross-attention"):
        DecoderLayer.over(block).cross_mha  # noqa: B018


@pytest.mark.full
def test_the_encoder_decoder_of_the_page_learns_to_reverse():
    page = Path(lecture.__file__).with_name("book") / "en" / "nyu.md"
    (code,) = re.findall(
        r"^```python\n((?:(?!^```).)*?class EncoderDecoder.*?)^```", page.read_text("utf-8"), re.M | re.S
    )
    code, _, shown = code.rpartition("# → ")
    assert Snippet(code, "").outcome() == shown.strip() == "[[9, 7, 4], [8, 5]]"


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_softargmax(dim):
    s = torch.randn(3, 4, 5)
    same(nn_Softargmax(dim)(s), s.softmax(dim))
