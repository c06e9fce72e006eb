"""Shortlists: what they are learned to be, and that a search with one holds nothing else possible, in any batch."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from command_line import attendo, refused
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

from attendo.data import forecasts
from attendo.decoding import shortlist as module
from attendo.decoding.backends import best_backend, eager_backend, ensemble
from attendo.decoding.beam import DecodingConfig
from attendo.decoding.logit_filters import SamplingConfig
from attendo.decoding.native.compiled import CompiledModel
from attendo.decoding.native.library import NoLibrary, library
from attendo.decoding.options import SpecialIds
from attendo.decoding.searcher import Searcher
from attendo.errors import AttendoError
from attendo.inference.translator import Translator
from attendo.models import EncoderDecoder, ModelConfig

VOCAB = 150
SPECIAL = SpecialIds(bos_id=1, eos_id=2, banned_ids=(0, 1))
CONFIG = DecodingConfig(beam=3, n_best=3, max_length_ratio=1, max_length_extra=4)


def random_shortlist(seed: int, per_token: int) -> module.Shortlist:
    rng = np.random.default_rng(seed)
    return module.Shortlist(rng.integers(3, VOCAB, (VOCAB, per_token)), np.array([2, 5, 9]))


def model(tie: Any = "all") -> EncoderDecoder:
    torch.manual_seed(3)
    config = ModelConfig(
        vocab_size=VOCAB, d_model=18, d_ff=24, n_heads=2, n_encoder_layers=1, n_decoder_layers=2, tie=tie,
        output_bias=tie == "none", dropout=0.0,
    )  # fmt: skip
    made = EncoderDecoder(config).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


TIED, BIASED = model(), model("none")
try:
    library()
    FORMS = ["32 bits", "8 bits", "torch"]
except NoLibrary:
    FORMS = ["torch"]


def member(form: str, shortlist: module.Shortlist | None, of: EncoderDecoder = BIASED) -> Any:
    if form != "torch":
        return best_backend(of, 0, bits=8 if form == "8 bits" else 32, shortlist=shortlist)
    plain = eager_backend(of, 0)
    if shortlist is None:
        return plain
    start, step = module.masked(plain.start, plain.step, shortlist)
    return dataclasses.replace(plain, start=start, step=step)


def searched(chosen, sources, config=CONFIG):
    return Searcher(chosen, SPECIAL, 30).search(sources, config)


def some_sources(rng: np.random.Generator, n: int) -> list[list[int]]:
    return [[*rng.integers(3, VOCAB, rng.integers(1, 6)).tolist(), 2] for _ in range(n)]


# ---- what it is


@given(st.lists(st.integers(0, VOCAB - 1), max_size=12), st.integers(0, 9))
def test_a_list_has_what_its_tokens_and_every_text_may_have_and_no_more(source, seed):
    shortlist = random_shortlist(seed, 4)
    wanted = {2, 5, 9} | set(source) | {int(token) for own in source for token in shortlist.likely[own]}
    assert shortlist.of(source).tolist() == sorted(wanted)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(*[st.lists(st.integers(3, 9), min_size=1, max_size=4)] * 2), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_the_table_is_that_of_ibm_model_1(pairs, k):
    table: dict[tuple[int, int], float] = {}
    for source, target in pairs:
        table |= {(s, t): 1.0 for s in [*source, 2] for t in target}
    for _ in range(module.ROUNDS):
        expected = dict.fromkeys(table, 0.0)
        for source, target in pairs:
            for t in target:
                norm = sum(table[s, t] for s in [*source, 2])
                for s in [*source, 2]:
                    expected[s, t] += table[s, t] / norm
        table = {
            (s, t): value / sum(v for (other, _), v in expected.items() if other == s)
            for (s, t), value in expected.items()
        }
    shortlist = module.learned_shortlist(pairs, 10, 2, per_token=k, frequent=0)
    for s in {s for s, _ in table}:
        best = sorted((value for (own, _), value in table.items() if own == s), reverse=True)[:k]
        kept = [t for t in shortlist.likely[s].tolist() if t != 2]
        assert len(kept) == len(set(kept)) == len(best)
        np.testing.assert_allclose([table[s, t] for t in kept], best, rtol=1e-9)


def test_the_most_frequent_are_in_and_only_so_many_links_are_counted(monkeypatch):
    pairs = [([4], [7, 7, 8]), ([5], [7, 8]), ([6], [9])]
    assert module.learned_shortlist(pairs, 10, 2, per_token=1, frequent=2).frequent.tolist() == [2, 7, 8]
    assert module.learned_shortlist(pairs, 10, 2, per_token=1, frequent=9).frequent.tolist() == [2, 7, 8, 9]
    monkeypatch.setattr("attendo.decoding.shortlist.MOST_LINKS", 10)
    assert module.learned_shortlist(pairs, 10, 2, per_token=1, frequent=9).frequent.tolist() == [2, 7, 8]
    with pytest.raises(AttendoError, match="there are none"):
        module.learned_shortlist([([], [3])], 10, 2)


# ---- searching with one


@pytest.mark.some(4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("of", [TIED, BIASED], ids=["tied", "biased"])
@pytest.mark.parametrize("per_token", [2, 40])  # 40: nearly all of the vocabulary is in some list
def test_logits_are_the_models_own_in_a_list_and_minus_infinity_outside(form, of, per_token):
    shortlist = random_shortlist(1, per_token)
    whole, short = member(form, None, of), member(form, shortlist, of)
    sources = some_sources(np.random.default_rng(0), 5)
    with torch.inference_mode():
        caches = [one.start(sources, 2, 8) for one in (whole, short)]
        left = [source for source in sources for _ in range(2)]
        for kept in ([0, 1, 2, 3, 6, 7, 8, 9], [1, 0, 2, 2, 5, 4, 6, 6], [2, 3], [1, 0]):
            ids = torch.randint(3, VOCAB, (len(left), 1), generator=torch.Generator().manual_seed(len(kept)))
            all_of_them, listed = whole.step(ids, caches[0]), short.step(ids, caches[1])
            for source, row, own in zip(left, all_of_them, listed, strict=True):
                wanted = torch.full_like(row, -torch.inf)
                tokens = torch.from_numpy(shortlist.of(source))
                wanted[tokens] = row[tokens]
                assert torch.equal(own, wanted)
            change = "reorder" if kept[:2] == [1, 0] else "keep"
            for cache in caches:
                getattr(cache, change)(torch.tensor(kept))
            left = [left[row] for row in kept]


@settings(max_examples=examples(5, 10), deadline=None)
@given(st.sampled_from(FORMS), st.integers(0, 999), st.integers(1, 8), st.integers(1, 4), st.integers(1, 20))
def test_a_source_finds_the_same_alone_in_a_batch_and_joined(form, seed, n, beam, per_token):
    of = model("none").double() if form == "torch" else BIASED
    chosen = member(form, random_shortlist(seed, per_token), of)
    config = dataclasses.replace(CONFIG, beam=beam, n_best=1)
    sources = some_sources(np.random.default_rng(seed), n)
    alone = [searched(chosen, [source], config)[0] for source in sources]
    search = Searcher(chosen, SPECIAL, 30).continuous(config)
    joined: dict[int, Any] = {}
    for source in sources:
        search.add([source])
        joined.update(search.advance())
    while search.going_on:
        joined.update(search.advance())
    for found in (searched(chosen, sources, config), [joined[number] for number in range(n)]):
        if form != "torch":
            assert found == alone
        else:  # the last digits of torch's products depend on the batch
            assert [one[0].token_ids for one in found] == [one[0].token_ids for one in alone]


@pytest.mark.parametrize("form", FORMS)
def test_a_list_of_all_tokens_changes_nothing_and_a_shorter_one_is_kept_to(form):
    sources = some_sources(np.random.default_rng(4), 6)
    everything = module.Shortlist(np.full((VOCAB, 1), 2), np.arange(VOCAB))
    free = searched(member(form, None), sources)
    assert searched(member(form, everything), sources) == free
    shortlist = random_shortlist(2, 3)
    found = searched(member(form, shortlist), sources)
    assert found != free
    for source, hypotheses in zip(sources, found, strict=True):
        assert {t for one in hypotheses for t in one.token_ids} <= set(shortlist.of(source).tolist())


def test_probabilities_are_those_of_the_list():
    shortlist, source = random_shortlist(3, 3), [7, 8, 2]
    tokens = shortlist.of(source)
    for form in FORMS:
        (best, *_) = searched(member(form, shortlist), [source])[0]
        fed = torch.tensor([[1, *best.token_ids]])
        rows = member(form, None).forced([source], fed)[0][:, torch.from_numpy(tokens)].double().log_softmax(-1)
        place = np.searchsorted(tokens, [*best.token_ids, 2][: len(best.token_log_probs)])
        wanted = rows[torch.arange(len(place)), torch.from_numpy(place)]
        np.testing.assert_allclose(best.token_log_probs, wanted.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_models_together_keep_to_their_list():
    shortlist = random_shortlist(5, 3)
    members = [member(FORMS[0], shortlist), member(FORMS[0], shortlist, TIED)]
    both = ensemble(members)
    source = [7, 8, 2]
    found = Searcher(both, SPECIAL, 30).search([source], CONFIG)[0]
    assert {t for one in found for t in one.token_ids} <= set(shortlist.of(source).tolist())


@pytest.mark.skipif(FORMS == ["torch"], reason="nothing is compiled here")
def test_only_the_listed_outputs_are_computed():
    shortlist, compiled = random_shortlist(6, 2), CompiledModel(BIASED)
    short = module.ShortlistedModel(compiled, BIASED.output_proj, shortlist)
    sources = [[7, 2], [8, 2]]
    cache = short.start(sources, 1, 4)
    short.step(torch.tensor([[1], [1]]), cache)
    assert cache.made.outputs.shape == (2, len(set().union(*(shortlist.of(one) for one in sources))))


@pytest.mark.parametrize("form", FORMS)
def test_a_cache_may_get_more_rows_than_it_had(form):
    shortlist = random_shortlist(7, 3)
    with torch.inference_mode():
        cache = (short := member(form, shortlist)).start([[7, 2], [8, 2]], 1, 4)
        short.step(torch.tensor([[1], [1]]), cache)
        cache.keep(torch.tensor([0, 0, 1, 1, 1]))
        logits = short.step(torch.full((5, 1), 4), cache)
    for row, source in zip(logits, [[7, 2]] * 2 + [[8, 2]] * 3, strict=True):
        assert torch.isfinite(row).nonzero()[:, 0].tolist() == shortlist.of(source).tolist()


# ---- from texts to a file, and to a translator


@pytest.fixture(scope="module")
def translator():
    return tiny_translator(tiny_tokenizer(), max_len=64)


@pytest.fixture
def run(translator, tmp_path):
    """A run folder that knows its data, `pairs.tsv` beside it."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    config = save_run(tmp_path / "run", translator) / "config.toml"
    config.write_text(f'[data]\ntrain = ["{pairs}"]\n\n' + config.read_text())
    return tmp_path / "run"


PAIRS = list(forecasts.pairs(40, "train"))


def test_a_file_gives_back_what_was_saved_and_refuses_what_is_not_its_own(translator, tmp_path):
    path, tokenizer = tmp_path / "list.safetensors", translator.tokenizer
    made = module.shortlist_of_pairs(tokenizer, PAIRS, per_token=5, frequent=10)
    module.save_shortlist(path, made, tokenizer)
    again = module.load_shortlist(path, tokenizer)
    assert (again.likely == made.likely).all() and (again.frequent == made.frequent).all()
    with pytest.raises(AttendoError, match="another tokenizer"):
        module.load_shortlist(path, tiny_tokenizer(seed=20))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(AttendoError, match="damaged"):
        module.load_shortlist(path, tokenizer)
    with pytest.raises(AttendoError, match="no such file"):
        module.load_shortlist(tmp_path / "none", tokenizer)
    with pytest.raises(AttendoError, match="per_token=0 must be"):
        module.shortlist_of_pairs(tokenizer, PAIRS, per_token=0)


def test_a_translator_keeps_to_it_in_all_but_scores_and_refuses_what_does_not_go_with_it(run):
    loaded = Translator.load(run)
    with pytest.raises(AttendoError, match="not a shortlist file of attendo"):
        module.load_shortlist(run / "model.safetensors", loaded.tokenizer)
    loaded.shortlist = module.shortlist_of_pairs(loaded.tokenizer, PAIRS, per_token=5, frequent=10)
    full = Translator.load(run).score(PAIRS[:2])
    assert loaded.score(PAIRS[:2]) == full  # of all tokens
    with pytest.raises(AttendoError, match="does not support a prefix"):
        loaded.translate([PAIRS[0][0]], prefixes=PAIRS[0][1][:2])
    text, ids = PAIRS[0][0], [*loaded.tokenizer.encode(PAIRS[0][0]), loaded.tokenizer.eos_id]
    assert "".join(loaded.stream(text)) == loaded.translate([text], beam=1, guard=False)[0].text
    drawn = loaded.sample([text], SamplingConfig(seed=3, temperature=3.0, max_tokens=20))[0].candidates[0]
    assert drawn.token_ids and set(drawn.token_ids) <= set(loaded.shortlist.of(ids).tolist())
    loaded.decoding = dataclasses.replace(loaded.decoding, coverage_penalty=0.2)
    with pytest.raises(AttendoError, match="does not support a coverage penalty"):
        loaded.translate([PAIRS[0][0]])


def test_the_commands(run, translator, tmp_path):
    pairs, out = tmp_path / "pairs.tsv", tmp_path / "list.safetensors"
    made = attendo("shortlist", run, pairs, "--out", out, "--per-token", "3", "--frequent", "5")
    assert made.code == 0, made.err
    assert "up to 3 targets per source token, 6 for every text" in made.err
    tokenizer = translator.tokenizer
    lists = module.load_shortlist(out, tokenizer)
    text = PAIRS[0][0]
    help_text = attendo("shortlist", "--help").out
    assert "Example: attendo shortlist" in help_text and max(map(len, help_text.splitlines())) <= 80
    free, short = (
        json.loads(attendo("translate", run, text, "--json", *options).out) for options in ([], ["--shortlist", out])
    )
    assert ("shortlist" in free, short["shortlist"]) == (False, True)
    listed = set(lists.of([*tokenizer.encode(text), tokenizer.eos_id]).tolist())
    ids = set(short["translations"][0]["token_ids"])
    assert ids and ids <= listed
    assert not set(free["translations"][0]["token_ids"]) <= listed
    assert "no such file" in refused("translate", run, text, "--shortlist", tmp_path / "none")
