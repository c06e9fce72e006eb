"""Translations that are drawn: by the model's law, each by its own seed, alone or in any batch."""

import dataclasses
import json
from collections import Counter

import pytest
import torch
from command_line import attendo, refused
from exact_sampling import exact_texts, p_value
from hypothesis import given, settings
from hypothesis import strategies as st
from search_table import SPECIAL, Table
from streamed_translators import COMPILED, MADE, PARTS, TOGETHER, double, made, texts
from tiny_translator import save_run

from attendo.cli.reporting import one_line
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.beam import DecodingConfig
from attendo.decoding.sampling import SamplingConfig, configs_of_lines
from attendo.decoding.searcher import SearchBackend, Searcher
from attendo.errors import AttendoError
from attendo.inference.translator import Translator

LEVEL = 0.001


@settings(max_examples=40)
@given(seed=st.integers(0, 2**63 - 1), n=st.integers(0, 5), data=st.data())
def test_a_prefix_counts_as_drawn(seed, n, data):
    """Also beside sources with prefixes of other lengths, and with a penalty for what was drawn."""
    table, config = Table(seed=5, vocab=6, end_bias=-1.0), SamplingConfig(seed=seed, repetition_penalty=1.4)
    others = data.draw(st.lists(st.lists(st.integers(2, 5), max_size=3), max_size=3))
    search = DecodingConfig(max_length_ratio=0, max_length_extra=8)
    searcher = Searcher(SearchBackend(table.start, table.step), SPECIAL, 9)
    [whole] = searcher.sample([(7,)], [config], search)
    prefixes = [*others, whole.token_ids[:n]]
    sources, configs = [*[(4, 4)] * len(others), (7,)], [config] * len(prefixes)
    found = searcher.sample(sources, configs, search, prefixes)
    assert found[-1].token_ids == whole.token_ids
    assert found[-1].token_log_probs == pytest.approx(whole.token_log_probs)
    for prefix, one in zip(prefixes, found, strict=True):
        assert one.token_ids[: len(prefix)] == tuple(prefix)


@pytest.mark.some(2)
@pytest.mark.parametrize("how", ["one", "together", "compiled"])
def test_draws_come_as_often_as_the_model_says(how):
    translator = {"one": MADE["byte"], "together": TOGETHER, "compiled": COMPILED}[how]
    tokenizer, n = translator.tokenizer, 800
    config = SamplingConfig(temperature=2.0, top_k=3, max_tokens=2)
    source = torch.tensor([[*tokenizer.encode("rain"), tokenizer.eos_id]])

    def logits_of(ids):
        tgt = torch.tensor([[tokenizer.bos_id, *ids]])
        with torch.inference_mode():
            found = [model(source, tgt)[0, -1].double() for model in (translator.model, *translator.companions)]
        return torch.stack([logits.softmax(-1) for logits in found]).mean(0).log().tolist()

    wanted = exact_texts(logits_of, config, never=(tokenizer.pad_id, tokenizer.bos_id), end=tokenizer.eos_id)
    assert len(wanted) >= 7
    found = translator.sample(["rain"] * n, [dataclasses.replace(config, seed=seed) for seed in range(n)])
    counts = Counter(one.candidates[0].token_ids + (tokenizer.eos_id,) * one.candidates[0].finished for one in found)
    assert counts.keys() <= wanted.keys()
    assert p_value([counts[text] for text in wanted], [n * p for p in wanted.values()]) > LEVEL


@settings(max_examples=9)
@given(
    which=st.sampled_from(["bpe", "byte", "word", "together", "compiled"]),
    rows=st.lists(
        st.tuples(texts, st.integers(0, 2**63 - 1), st.sampled_from([0.0, 0.7, 3.0]), st.sampled_from(["", "rain"])),
        min_size=1,
        max_size=4,
    ),
    random=st.randoms(use_true_random=False),
)
def test_a_draw_is_the_same_alone_and_in_any_batch_and_order(which, rows, random):
    translator = {"together": TOGETHER, "compiled": COMPILED}.get(which) or MADE[which]

    def drawn(some):
        configs = [SamplingConfig(seed=seed, temperature=t, top_p=0.9) for _, seed, t, _ in some]
        found = translator.sample([row[0] for row in some], configs, longest=12, prefixes=[row[3] for row in some])
        return [(one.source, one.seed, one.text, one.candidates[0].token_ids) for one in found]

    together = drawn(rows)
    assert [one[:2] for one in together] == [row[:2] for row in rows]
    order = random.sample(range(len(rows)), len(rows))
    assert drawn([rows[n] for n in order]) == [together[n] for n in order]
    assert drawn(rows[:1]) == together[:1]


def test_temperature_0_is_the_greedy_translation_with_its_numbers():
    translator = MADE["bpe"]
    for prefixes in (None, "雨"):
        wanted = translator.translate(PARTS, beam=1, guard=False, longest=10, prefixes=prefixes, alignments=True)
        found = translator.sample(
            PARTS, SamplingConfig(temperature=0.0, seed=3), longest=10, prefixes=prefixes, alignments=True
        )
        for one, other in zip(found, wanted, strict=True):
            assert one.seed == 3 and other.seed is None and one.parts == other.parts
            a, b = one.candidates[0], other.candidates[0]
            assert (a.token_ids, a.text, a.finished) == (b.token_ids, b.text, b.finished)
            assert a.alignment == b.alignment and a.alignment
            assert a.token_log_probs == pytest.approx(b.token_log_probs, abs=1e-9)
            assert a.score == pytest.approx(b.score, abs=1e-9)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_numbers_of_a_draw_are_those_of_score(compiled):
    translator = made("word", scale=0.3, output_bias=True)
    with torch.no_grad():
        translator.model.output_proj.bias.zero_()[Tokenizer.eos_id] = 4.0
    prepared = translator.prepare() if compiled else double(translator)
    config = SamplingConfig(temperature=2.0, min_p=0.0001)
    configs = [dataclasses.replace(config, seed=seed) for seed in range(60)]
    found = [one for one in prepared.sample(["rain"] * 60, configs) if one.candidates[0].finished and one.text]
    given_back = prepared.score([("rain", one.text) for one in found])
    assert len({one.text for one in found}) > 5
    for one, scored in zip(found, given_back, strict=True):
        assert one.candidates[0].token_ids == scored.token_ids
        assert one.candidates[0].log_prob == pytest.approx(scored.log_prob, abs=1e-4 if compiled else 1e-9)
        assert one.score == pytest.approx(scored.score, abs=1e-4 if compiled else 1e-9)


def test_parts_are_drawn_apart_and_limits_hold():
    translator = MADE["character"]
    [found] = translator.sample(["Snow.\nSnow."], SamplingConfig(seed=1, temperature=3.0), longest=8)
    first, second = found.text.split("\n")[0], found.text.split("\n")[-1]
    assert found.parts == 2 and first != second
    assert first == translator.sample(["Snow."], SamplingConfig(seed=1, temperature=3.0))[0].text.split("\n")[0]
    [cut] = translator.sample(["Snow"], SamplingConfig(seed=1, max_tokens=3), prefixes="a")
    assert len(cut.candidates[0].token_ids) == 3 and not cut.candidates[0].finished and cut.text[0] == "a"
    [none] = translator.sample(["Snow"], SamplingConfig(seed=1, max_tokens=0))
    assert none.text == "" and none.score == 0.0 and not none.candidates[0].finished
    assert len(translator.sample(["Snow"])[0].candidates[0].token_ids) <= 10
    assert translator.sample([]) == [] and translator.sample([" "])[0].text == ""


def test_a_seed_that_nobody_chose_is_told_and_gives_the_text_again():
    translator = MADE["byte"]
    found = translator.sample(["rain"] * 3)
    assert len({one.seed for one in found}) == len({one.text for one in found}) == 3
    again = translator.sample(["rain"] * 3, [SamplingConfig(seed=one.seed) for one in found])
    assert [one.text for one in again] == [one.text for one in found]


def test_configs_that_are_refused():
    translator = MADE["byte"]
    with pytest.raises(AttendoError, match=r"1 configs for 2 texts \(expected one config per text, or one for all"):
        translator.sample(["a", "b"], [SamplingConfig()])
    with pytest.raises(AttendoError, match="stop is not supported for given texts"):
        translator.sample(["a"], SamplingConfig(stop=("x",)))
    with pytest.raises(AttendoError, match="prefix"):
        translator.sample(["a"], prefixes="b" * 40)


def test_a_draw_that_runs_away_is_flagged():
    translator = made("byte", max_length_extra=60, output_bias=True)
    with torch.no_grad():
        translator.model.output_proj.bias.zero_()[70] = 90.0
    assert translator.sample(["a"])[0].loop == "left"


def test_a_recording_holds_a_draw():
    translator = made("byte")
    with translator.recording() as record:
        [found] = translator.sample(["rain"], SamplingConfig(seed=5, max_tokens=4))
    assert record["decoder.blocks.0.cross_attention"].weights.shape[-2] == 1 + len(found.candidates[0].token_ids)


# ---- the command


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("draws") / "run", made("byte", scale=0.3))


def test_the_command_draws_each_line_by_a_seed_of_its_own(run_folder, tmp_path):
    options = ["--temperature", "1.3", "--top-k", "50", "--top-p", "0.95", "--min-p", "0.001"]
    config = SamplingConfig(temperature=1.3, top_k=50, top_p=0.95, min_p=0.001, seed=7)
    lines = ["rain", "", "rain", "fog"]
    wanted = [one_line(t.text) for t in Translator.load(run_folder).sample(lines, configs_of_lines(config, 1, 4))]
    assert len(set(wanted)) == 4
    file, out = tmp_path / "in.txt", tmp_path / "out.txt"
    file.write_text("\n".join(lines) + "\n")
    attendo("translate", run_folder, "--input", file, "--output", out, *options, "--seed", "7")
    assert out.read_text().split("\n")[:-1] == wanted
    piped = attendo("translate", run_folder, *options, "--seed", "7", stdin=file.read_bytes())
    assert piped.out == out.read_text() and "--seed" not in piped.err
    assert attendo("translate", run_folder, *lines, *options, "--seed", "7").out == piped.out
    shown = attendo("translate", run_folder, "--json", *options, "--seed", "7", stdin=file.read_bytes())
    facts = [json.loads(line) for line in shown.out.splitlines()]
    assert [one_line(f["translations"][0]["text"]) for f in facts] == wanted
    again = attendo("translate", run_folder, "rain", *options, "--seed", facts[2]["seed"])
    assert again.out == wanted[2] + "\n"
    for name, seed in (("0", []), ("1", ["--seed", "0"])):
        files = ["--input", file, "--output", tmp_path / name]
        attendo("translate", run_folder, *files, "--temperature", "1", *seed)
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()


def test_a_draw_without_a_seed_says_which_it_was(run_folder):
    for lines in (["rain"], ["rain", "fog"]):
        found = attendo("translate", run_folder, *lines, "--temperature", "2")
        note = found.err.splitlines()[-1]
        assert note.startswith("(to sample the same translations again: --seed ")
        again = attendo("translate", run_folder, *lines, "--temperature", "2", "--seed", note.split()[-1].rstrip(")"))
        assert again.out == found.out and "--seed" not in again.err
    assert "--seed" not in attendo("translate", run_folder, "rain", "--temperature", "0").err


def test_what_was_begun_with_other_options_is_not_gone_on_with(run_folder, tmp_path, monkeypatch):
    requests = []
    monkeypatch.setattr("attendo.cli.options.file_done", lambda *given: requests.append(json.dumps(given[3])) or 0)
    files = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt"]
    drawing = ["--temperature", "1"]
    for options in (
        [],
        drawing,
        [*drawing, "--seed", "2"],
        [*drawing, "--top-k", "5"],
        ["--temperature", "2"],
    ):
        assert attendo("translate", run_folder, *files, *options).code == 0
    assert len(set(requests)) == 5 and '"draw"' not in requests[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--top-p", "0.9"], "--top-p applies only to sampling. Add --temperature"),
        (["--seed", "1"], "--seed applies only to sampling. Add --temperature"),
        (["--temperature", "-1"], "temperature=-1.0 must be 0 (greedy) or a finite number above 0"),
        (["--temperature", "1", "--top-p", "2"], "top_p=2.0 must be"),
        (["--temperature", "1", "--beam", "4"], "--temperature and --beam cannot be combined"),
        (["--temperature", "1", "--n-best", "2"], "--temperature and --n-best cannot be combined"),
        (
            ["--temperature", "1", "--set", "decoding.no_repeat_ngram=3"],
            "--temperature and --set decoding.no_repeat_ngram cannot be combined (possible: max_length_ratio",
        ),
        (["--stream", "--beam", "4"], "--stream and --beam cannot be combined"),
        (["--stream", "--json"], "--stream and --json cannot be combined"),
        (["--stream", "--temperature", "1"], "--stream and --temperature cannot be combined"),
        (["--stream", "--set", "decoding.beam=2"], "--stream and --set decoding.beam cannot be combined"),
        (["--stream", "another text"], "--stream requires exactly one TEXT"),
    ],
)
def test_options_that_do_not_go_together(run_folder, options, said):
    assert said in refused("translate", run_folder, "rain", *options)


def test_options_that_do_go_together(run_folder):
    found = attendo(
        "translate", run_folder, "rain", "--temperature", "0", "--alignments", "--n-best", "1",
        "--set", "decoding.max_length_extra=6",
    )  # fmt: skip
    text, links = found.out.rstrip("\n").split("\t")
    assert found.code == 0 and text and 4 <= len(links.split()) <= 6
    assert attendo("translate", run_folder, "rain", "--stream", "--beam", "1", "--bits", "8").code == 0
    example = 'runs/mine "It will rain." --temperature 0.8'
    assert example in " ".join(attendo("translate", "--help").out.split())
