"""Chat templates in the format of well-known models, and Hugging Face folders with tokenizers that use them."""

import functools
import json
import random

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from attendo.data.chat import Message

CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_2 = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% set extra = messages[0].content %}"
    "{% else %}{% set rest = messages %}{% set extra = false %}{% endif %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}{% if loop.index0 == 0 and extra %}{% set text = '<<SYS>>\n' + extra + '\n<</SYS>>\n\n' + m.content %}"
    "{% else %}{% set text = m.content %}{% endif %}"
    "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + text.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA_3 = (
    "{% for m in messages %}{% set text = '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n'"
    " + m.content | trim + '<|eot_id|>' %}{{ bos_token + text if loop.index0 == 0 else text }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
GEMMA_3 = (
    "{{ bos_token }}{% set first, rest = '', messages %}{% if messages[0].role == 'system' %}"
    "{% set first, rest = messages[0].content + '\n\n', messages[1:] %}{% endif %}{% for m in rest %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (first if loop.first else '') }}"
    "{{ (m.content | trim) + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ m.content + eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
ZEPHYR = """\
{% for m in messages %}
{{ '<|' + m.role + '|>\n' + m.content + eos_token }}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
"""
FORMATS = {
    "chatml": (CHATML, "bytes", ("<|im_start|>", "<|im_end|>")),
    "llama-2": (LLAMA_2, "prepend", ()),
    "llama-3": (LLAMA_3, "bytes", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    "gemma": (GEMMA, "no space", ("<start_of_turn>", "<end_of_turn>")),
    "gemma-3": (GEMMA_3, "no space", ("<start_of_turn>", "<end_of_turn>")),
    "mistral": (MISTRAL, "first", ()),
    "zephyr": (ZEPHYR, "prepend", ()),
}
"""The template, the kind of tokenizer and the special tokens of each format."""
TEXTS = ["It rains in Oslo today, it's 3.5 degrees. system user assistant model INST SYS"] * 20


@functools.cache
def trained(kind, special):
    """A small tokenizer of the library: byte-level, or with "▁" before words as in Llama, Mistral and Gemma."""
    base = ["<s>", "</s>", "<unk>", *special]
    model = models.BPE(unk_token=None if kind == "bytes" else "<unk>", byte_fallback=kind != "bytes")
    tokenizer = Tokenizer(model)
    if kind == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        base += [f"<0x{byte:02X}>" for byte in range(256)]
        alphabet = []
        mark = normalizers.Replace(" ", "▁")
        if kind == "first":
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        else:
            parts = [normalizers.Prepend("▁"), mark] if kind == "prepend" else [mark]
            tokenizer.normalizer = normalizers.Sequence(parts)
        strip = [decoders.Strip(" ", 1, 0)] if kind != "no space" else []
        joins = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        tokenizer.decoder = decoders.Sequence(joins)
    trainer = trainers.BpeTrainer(
        vocab_size=len(base) + len(alphabet) + 80,
        special_tokens=base,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in base[: 3 + len(special)]])
    return tokenizer


def tokenizer_folder(folder, kind, special, template):
    """Write the tokenizer files of a Hugging Face folder, and return the contents of its config.json."""
    folder.mkdir(exist_ok=True)
    tokenizer = trained(kind, special)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": template}
    settings = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names})
    (folder / "tokenizer_config.json").write_text(settings)
    return {"model_type": "llama", "vocab_size": tokenizer.get_vocab_size()}


_WORDS = (
    "rain", "Oslo", "{{x}}", "3.5%", "naïve", "東京", "\n", "  ", "it's", "[a]", "\t", "😀", "—",
    "A\n\nB", "<b>",
)  # fmt: skip


def random_talks(system, n, seed):
    """Random conversations, and whether a reply begins after each of them."""
    draw = random.Random(seed)

    def content():
        words = draw.choices(_WORDS, k=draw.randint(0, 8))
        words.insert(draw.randint(0, len(words)), "word")  # a content is never blank
        return draw.choice(("", " ")).join(words)

    for _ in range(n):
        n_turns = draw.randint(1, 6)
        roles = ["system"] * (system and draw.random() < 0.7)
        roles += [("user", "assistant")[turn % 2] for turn in range(n_turns)]
        yield [Message(role, content()) for role in roles], n_turns % 2 == 1 and draw.random() < 0.7
