"""The speed of language models with random weights: attendo, llama.cpp, CTranslate2 and Transformers.

    python benchmarks/language_models.py --shape smollm2-135m --llama-python PYTHON [--threads 1] [--batch 1]
        [--rounds 5] [--prompt 512] [--new 128] [--names attendo-8,llama-q8_0,...]

All programs have the same weights (std 0.02, no biases, output layer tied to the embeddings) and read the same tokens.
PYTHON is an interpreter with llama-cpp-python, built for this machine (CMAKE_ARGS="-DGGML_NATIVE=ON"), and gguf.

A round measures all programs one after the other, in alternating order. prompt is the time to read the prompt. decode
is the time for the new tokens, each with its logits and the choice of the likeliest token. One thread is measured in
CPU time, and more threads in wall time. Ratios are those of tokens per second, attendo divided by the other program,
as quartiles over the rounds.

Settings: llama.cpp computes with flash attention (the faster of both settings here), micro-batches of 512 tokens, an
f16 cache, and its own quantization (llama_model_quantize), which repacks Q4_0 for this CPU. CTranslate2 generates
greedily, and its time for the prompt is that of one new token. Transformers uses float32 or bfloat16, SDPA and its
dynamic cache.
The programs run in processes of their own. Idle threads sleep.
"""

import ctypes
import sys
import tempfile
from pathlib import Path

from turns import asked, clock, contenders, listed, orders, ratios, shared_options, spread, store, tell

SHAPES = {  # d_model, d_ff, layers, heads, key heads, vocabulary
    "tiny": (64, 160, 2, 4, 2, 1000),
    "smollm2-135m": (576, 1536, 30, 9, 3, 49152),
    "qwen-0.5b": (896, 4864, 24, 14, 2, 151936),
    "llama-1b": (2048, 8192, 16, 32, 8, 128256),
}
ATTENDO = {  # bits of the weights, and of the cache if it is not the default
    "attendo-32": (32,), "attendo-16": (16,), "attendo-8": (8,), "attendo-4": (4,), "attendo-8-cache-8": (8, 8),
}  # fmt: skip
LLAMA = {
    "llama-f32": 0,
    "llama-f16": 1,
    "llama-q8_0": 7,
    "llama-q4_0": 2,
}  # llama.cpp's numbers of file types
OTHERS = ("ctranslate2-int8", "transformers", "transformers-16")
PAIRS = [
    ("attendo-32", "llama-f32"),
    ("attendo-16", "llama-f16"),
    ("attendo-8", "llama-q8_0"),
    ("attendo-4", "llama-q4_0"),
    ("attendo-8", "ctranslate2-int8"),
    ("attendo-32", "transformers"),
    ("attendo-16", "transformers-16"),
    ("attendo-8-cache-8", "attendo-8"),
]
CONTEXT = 2048


def model_of(shape):
    """Return attendo's model of a shape with random weights."""
    import torch

    from attendo.models import DecoderLM, ModelConfig

    d_model, d_ff, layers, heads, key_heads, vocab = SHAPES[shape]
    config = ModelConfig(
        architecture="decoder", vocab_size=vocab, d_model=d_model, d_ff=d_ff, n_heads=heads,
        n_kv_heads=key_heads, n_encoder_layers=0, n_decoder_layers=layers, max_len=CONTEXT, positions="rotary",
        norm="rms", norm_first=True, feed_forward_gated=True, activation="silu", attention_bias=False,
        feed_forward_bias=False, output_bias=False, tie="all", initialization="normal", embedding_scale=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return DecoderLM(config).eval()


def write_gguf(tensors, shape, path):
    """Write the weights of attendo's model, which pairs neighboring entries for rotary positions as llama.cpp does."""
    import gguf

    d_model, d_ff, layers, heads, key_heads, vocab = SHAPES[shape]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(d_model)
    writer.add_feed_forward_length(d_ff)
    writer.add_block_count(layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(d_model // heads)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("none")
    names = {
        "self_attention.q_proj": "attn_q", "self_attention.k_proj": "attn_k", "self_attention.v_proj": "attn_v",
        "self_attention.out_proj": "attn_output", "self_attention_residual.norm": "attn_norm",
        "feed_forward.gate_proj": "ffn_gate", "feed_forward.in_proj": "ffn_up", "feed_forward.out_proj": "ffn_down",
        "feed_forward_residual.norm": "ffn_norm",
    }  # fmt: skip
    writer.add_tensor("token_embd.weight", tensors["embedding.tokens.weight"])
    writer.add_tensor("output_norm.weight", tensors["decoder.norm.weight"])
    for layer in range(layers):
        for mine, theirs in names.items():
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", tensors[f"decoder.blocks.{layer}.{mine}.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Attendo:
    """attendo's backend, as `attendo generate` uses it."""

    def __init__(self, options, name):
        import torch

        from attendo.decoding.backends import best_decoder

        torch.set_num_threads(options.threads)
        self.torch = torch
        self.backend = best_decoder(model_of(options.shape), *ATTENDO[name])
        assert self.backend.why is None, self.backend.why

    def run(self, prompts, n_new, now):
        """Return the times before, between and after prompt and new tokens, and the likeliest tokens."""
        with self.torch.inference_mode():
            cache = self.backend.start(len(prompts), len(prompts[0]) + n_new)
            times, found = [now()], []
            ids = self.torch.tensor(prompts)
            for _ in range(n_new):
                ids = self.backend.step(ids, cache).argmax(-1, keepdim=True)
                found.append(ids[:, 0].tolist())
                times += [now()] if len(times) < 2 else []
        return [*times, now()], found


class Llama:
    """llama.cpp through its C functions."""

    def __init__(self, options, name):
        import llama_cpp

        self.lib, self.batch_rows = llama_cpp, options.batch
        plain, path = options.file / "f32.gguf", options.file / f"{name}.gguf"
        if LLAMA[name] and not path.exists():
            wanted = llama_cpp.llama_model_quantize_default_params()
            wanted.ftype = LLAMA[name]
            assert llama_cpp.llama_model_quantize(str(plain).encode(), str(path).encode(), ctypes.byref(wanted)) == 0
        path = path if LLAMA[name] else plain
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = (
            options.batch * (options.prompt + options.new),
            512,
            512,
        )
        params.n_seq_max = options.batch
        params.n_threads = params.n_threads_batch = options.threads
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)
        self.vocab = SHAPES[options.shape][5]

    def decoded(self, ids, rows, position, last):
        """Read the ids, one per entry of `rows`, and return the likeliest token after each id if `last`."""
        import numpy as np

        batch = self.batch
        batch.n_tokens = len(ids)
        for i, (token, row) in enumerate(zip(ids, rows, strict=True)):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position(i), 1, row
            batch.logits[i] = last(i)
        assert self.lib.llama_decode(self.context, batch) == 0
        wanted = [i for i in range(len(ids)) if last(i)]
        logits = [self.lib.llama_get_logits_ith(self.context, i) for i in wanted]
        return [int(np.ctypeslib.as_array(row, (self.vocab,)).argmax()) for row in logits]

    def run(self, prompts, n_new, now):
        """Return the times before, between and after prompt and new tokens, and the likeliest tokens."""
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), False)
        times, ids, n = [now()], [], len(prompts[0])
        for row, prompt in enumerate(prompts):
            for first in range(0, n, 512):
                part = prompt[first : first + 512]
                end = len(part) - 1 if first + 512 >= n else -1
                ids += self.decoded(part, [row] * len(part), lambda i, f=first: f + i, lambda i, e=end: i == e)
        times.append(now())
        found = [ids]
        for step in range(n_new - 1):
            ids = self.decoded(ids, range(len(ids)), lambda i, at=n + step: at, lambda i: True)
            found.append(ids)
        return [*times, now()], found


class CTranslate2:
    """CTranslate2's generator."""

    def __init__(self, options, name):
        import ctranslate2

        self.generator = ctranslate2.Generator(
            str(options.file / "ctranslate2"),
            compute_type="int8",
            inter_threads=1,
            intra_threads=options.threads,
        )

    def run(self, prompts, n_new, now):
        """Return the times before, between and after prompt and new tokens, and the likeliest tokens."""
        tokens = [[str(token) for token in prompt] for prompt in prompts]
        fixed = {"include_prompt_in_result": False, "sampling_topk": 1, "end_token": [], "beam_size": 1}
        times = [now()]
        self.generator.generate_batch(tokens, max_length=1, min_length=1, **fixed)
        times.append(now())
        found = self.generator.generate_batch(tokens, max_length=n_new, min_length=n_new, **fixed)
        end = now() - (times[1] - times[0])  # the second call reads the prompt again
        return [*times, end], [list(step) for step in zip(*(one.sequences_ids[0] for one in found), strict=True)]


class Transformers:
    """The Llama model of Transformers, with other random weights."""

    def __init__(self, options, name):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.set_num_threads(options.threads)
        self.torch = torch
        d_model, d_ff, layers, heads, key_heads, vocab = SHAPES[options.shape]
        config = LlamaConfig(
            hidden_size=d_model, intermediate_size=d_ff, num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=key_heads, vocab_size=vocab, tie_word_embeddings=True,
            max_position_embeddings=CONTEXT,
        )  # fmt: skip
        self.model = LlamaForCausalLM(config).eval()
        if name == "transformers-16":
            self.model = self.model.bfloat16()

    def run(self, prompts, n_new, now):
        """Return the times before, between and after prompt and new tokens, and the likeliest tokens."""
        times, past, ids = [now()], None, self.torch.tensor(prompts)
        with self.torch.inference_mode():
            for _ in range(n_new):
                found = self.model(ids, past_key_values=past, use_cache=True, logits_to_keep=1)
                past, ids = found.past_key_values, found.logits[:, -1].argmax(-1, keepdim=True)
                times += [now()] if len(times) < 2 else []
        return [*times, now()], None


def work(options):
    """Answer the requests of the comparing process for one program."""
    name = options.work
    kind = Attendo if name in ATTENDO else Llama if name in LLAMA else Transformers
    if name == "ctranslate2-int8":
        kind = CTranslate2
    sys.stdout = sys.stderr
    program = kind(options, name)
    tell({"ready": name})
    now = clock(options.threads)[1]
    for order in orders():
        times, found = program.run(order["prompts"], order["new"], now)
        tell({"prompt": times[1] - times[0], "decode": times[2] - times[1], "found": found})


def prepare(options, names):
    """Write the files of the other programs, and return the folder."""
    import numpy as np

    folder = options.folder / options.shape
    folder.mkdir(parents=True, exist_ok=True)
    model = model_of(options.shape)
    if set(names) & set(LLAMA) and not (folder / "f32.gguf").exists():
        tensors = {name: p.detach().numpy().astype(np.float32) for name, p in model.named_parameters()}
        write_gguf(tensors, options.shape, folder / "f32.gguf")
    if "ctranslate2-int8" in names and not (folder / "ctranslate2").exists():
        from attendo.interop.to_ctranslate2 import _spec_of

        spec = _spec_of(model, [str(number) for number in range(SHAPES[options.shape][5])])
        spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = "0"
        spec.optimize()
        (folder / "ctranslate2").mkdir()
        spec.save(str(folder / "ctranslate2"))
    return folder


def compare(options, names, folder):
    """Measure all rounds and return the figures."""
    import random

    draw = random.Random(0)
    vocab = SHAPES[options.shape][5]
    commands = {
        name: [
            options.llama_python if name in LLAMA else sys.executable, __file__, "--shape", options.shape, "--work",
            name, "--file", folder, "--threads", options.threads, "--batch", options.batch, "--prompt",
            options.prompt, "--new", options.new,
        ]
        for name in names
    }  # fmt: skip
    times, tokens = {name: {"prompt": [], "decode": []} for name in names}, {}
    with contenders(commands, options.threads) as (workers, _):
        for number in range(options.rounds + 1):
            prompts = [[draw.randrange(vocab) for _ in range(options.prompt)] for _ in range(options.batch)]
            order = {"prompts": prompts, "new": options.new if number else 8}
            for name in names if number % 2 else reversed(names):
                answer = asked(name, workers[name], order)
                if number:  # the first is a warm-up
                    tokens[name] = answer["found"]
                    for part in times[name]:
                        times[name][part].append(answer[part])
    n = {"prompt": options.batch * options.prompt, "decode": options.batch * (options.new - 1)}
    speeds = {
        name: {part: spread([n[part] / s for s in seconds]) for part, seconds in parts.items()}
        for name, parts in times.items()
    }
    compared = {
        f"{mine} / {theirs}": {part: ratios(times[theirs][part], times[mine][part]) for part in n}
        for mine, theirs in PAIRS
        if mine in names and theirs in names
    }
    equal = None
    if "attendo-32" in names and "llama-f32" in names:
        pairs = zip(tokens["attendo-32"], tokens["llama-f32"], strict=True)
        equal = sum(mine == theirs for mine, theirs in pairs)
    return {"tokens per second": speeds, "ratios": compared, "equal steps of attendo-32 and llama-f32": equal}


def main():
    """Parse the options, run the measurements, and print and store the results."""
    parser = shared_options(__doc__, rounds=5)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--llama-python", default=sys.executable)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--names", type=listed(), default=[*list(ATTENDO)[:4], *LLAMA, *OTHERS])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "language_models")
    options = parser.parse_args()
    if options.work:
        work(options)
        return
    folder = prepare(options, options.names)
    facts = {name: getattr(options, name) for name in ("shape", "threads", "batch", "prompt", "new", "rounds")}
    facts["clock"] = clock(options.threads)[0]
    store("language-models", facts | compare(options, options.names, folder), options.out)


if __name__ == "__main__":
    main()
