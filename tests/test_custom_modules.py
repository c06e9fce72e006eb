"""Custom modules, as the page on changing a block has them: trained, kept, resumed, looked into, or refused."""

import re
import shutil
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from command_line import attendo, refused
from tiny_corpus import SMALL, pairs_file, small_run
from torch import nn

import attendo as library
from attendo.bundle import load_bundle
from attendo.errors import AttendoError
from attendo.inspecting.recording import recording
from attendo.microscope.answers import layer_of, positions_answer
from attendo.models import DecoderLM, EncoderDecoder, ModelConfig
from attendo.nn.attention import Attend
from attendo.nn.positions import DistanceBias
from attendo.runs.resume import resumed_run, verify_resume
from attendo.runs.settings import joined
from attendo.runs.task_specs import family_of
from attendo.runs.training_run import new_run

DOCS = Path(__file__).resolve().parents[1] / "docs"
FILE = re.compile(r'^```python title="(.+?)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
FILES = dict(FILE.findall((DOCS / "en" / "change-a-block.md").read_text(encoding="utf-8")))
SIDES = ("encoder", "decoder")
PATH = "encoder.blocks.0.self_attention"
CONFIG = ModelConfig(vocab_size=11, d_model=8, n_heads=2, d_ff=16, n_encoder_layers=1, n_decoder_layers=1, dropout=0.0)


def block(name):
    """The names of a file of the page; what it does at its top is done."""
    names = {"__name__": name}
    exec(compile(FILES[name], name, "exec"), names)  # the page's own code
    return names


BIAS = block("distance_bias.py")
WITH_BIAS = BIAS["with_log_distance"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with pairs.tsv and the run that the page's train.py leaves, of few steps."""
    folder = tmp_path_factory.mktemp("near")
    pairs_file(folder)
    settings = joined(SMALL, {"training": {"steps": 8, "evaluate_every": 4}, "checkpoint": {"every_steps": 4}})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(sys.modules, "distance_bias", type("Module", (), BIAS))
        train = library.train
        patch.setattr(library, "train", lambda *a, **k: train(*a, **(k | {"settings": settings})))
        with redirect_stdout(StringIO()) as said:
            block("train.py")
    (folder / "said.txt").write_text(said.getvalue(), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def plain(place):
    """A run without such parts beside it, and test.tsv."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()):
        patch.chdir(place)
        block("train_plain.py")
    folder = place / "runs" / "plain"
    lines = (place / "pairs.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (place / "test.tsv").write_text("".join(lines[:20]), encoding="utf-8")
    return folder


@pytest.fixture
def within(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setitem(sys.modules, "distance_bias", type("Module", (), BIAS))
    return place


def test_the_file_is_short_and_its_own_tests_pass():
    assert len(FILES["distance_bias.py"].splitlines()) < 40
    tests = [function for name, function in BIAS.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_training_says_what_the_command_says(within):
    lines = (within / "said.txt").read_text(encoding="utf-8").splitlines()
    evaluated = [line for line in lines if re.match(r"step [48]: BLEU .*  loss \d", line)]
    assert len(evaluated) == 3 and any(line.startswith("    → ") for line in lines)
    assert re.match(r"done: .*; 8 steps in .* CPU-seconds\)$", lines[-2])
    assert re.match(r"kept: step [48], chrF \d", lines[-1])


def test_the_run_learns_the_part_and_is_used_as_the_page_says(within, capsys):
    block("use.py")
    lines = capsys.readouterr().out.splitlines()
    slopes = [line for line in lines if line.startswith(f"{PATH}.positions [")]
    assert len(slopes) == 1 and "[1.0, 1.0]" not in slopes[0]
    assert re.search(r"torch\.Size\(\[1, 2, (\d+), \1\]\)", lines[-1])
    page = (within / "near.html").read_text(encoding="utf-8")
    assert '"name":"near","own_parts":true' in page


def test_a_second_run_takes_the_settings_of_the_first(within, plain):
    configs = [(within / "runs" / name / "config.toml").read_text(encoding="utf-8") for name in ("near", "plain")]
    assert configs[0] == configs[1] and "own_parts" not in load_bundle(plain).card


def test_two_runs_are_compared_in_numbers(within, plain, capsys):
    block("compare.py")
    page = (DOCS / "en" / "change-a-block.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```\n(plain {.*?)^```", page, re.MULTILINE | re.DOTALL)
    found = capsys.readouterr().out
    said, wanted = (re.sub(r"None|first|second|[+-]?\d+\.\d+", "", text) for text in (found, shown))
    assert said == wanted
    translator = library.load(plain)
    with pytest.raises(AttendoError, match=r"evaluate requires pairs, \[\(source, target\), …\]"):
        translator.evaluate(["rain", "snow"], ["雨", "雪"])


def test_a_window_hides_keys_and_the_microscope_shows_it(plain):
    translator = library.load(plain)
    attention = translator.model.get_submodule(PATH)
    attention.positions = block("window.py")["Window"]()
    seen = library.look(translator, "It will rain in Oslo on Monday morning.")
    weights = torch.from_numpy(seen.weights(PATH))
    assert weights.shape[-1] > 6 and not weights.triu(5).any() and weights.triu(4).any()
    assert '"biases":[[null,' in seen.page()


def test_a_table_of_signed_distances_differs_between_encoder_and_decoder():
    model = EncoderDecoder(CONFIG).eval()
    block("near_table.py")["with_table"](model)
    encoder, decoder = (model.get_submodule(f"{side}.blocks.0.self_attention.positions") for side in SIDES)
    assert (encoder.table.shape, decoder.table.shape) == ((17, 2), (9, 2))
    for bias in (encoder, decoder):
        nn.init.normal_(bias.table)
    found = encoder(torch.tensor([[3], [20]]), torch.arange(6))
    assert found.shape == (2, 2, 1, 6)
    torch.testing.assert_close(found[0, 1, 0, 5], encoder.table[8 + 2, 1])  # two places to the right
    torch.testing.assert_close(found[1, 0, 0, 5], encoder.table[0, 0])  # beyond the reach, to the left
    src, tgt = torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6, 7, 8]])
    cache = model.start(src)
    steps = [model.step(token, cache) for token in tgt.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(src, tgt))


def test_a_language_model_is_tested_token_by_token_as_the_page_says():
    model = DecoderLM(replace(CONFIG, architecture="decoder", n_encoder_layers=0)).eval()
    WITH_BIAS(model)
    ids = torch.tensor([[3, 4, 5, 6]])
    page = (DOCS / "en" / "change-a-block.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(lines, {"torch": torch, "model": model, "ids": ids, "cache": model.start(len(ids))})


def test_it_goes_on_and_that_is_proven_to_the_bit(within, tmp_path, monkeypatch, capsys):
    shutil.copytree(within / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(FILES, "go_on.py", FILES["go_on.py"].replace("1000", "4"))
    block("go_on.py")
    out = capsys.readouterr().out
    assert out.startswith("step 12: BLEU ") and re.search(r"^replayed: step 8 to step 12, ", out, re.MULTILINE)
    assert out.endswith("bit-identical: weights, optimizer, random states\n")
    with pytest.raises(AttendoError, match="was trained with custom modules"):
        verify_resume(Path("runs/near"))


def test_a_search_gives_what_the_modules_give_and_says_why_it_is_not_compiled(within):
    translator = library.load("runs/near", own_parts=WITH_BIAS)
    texts = ["It will rain in Oslo.", "On Monday it will snow."]
    plain = translator.translate(texts, beam=2)
    why = translator.prepare().why_not_compiled
    assert why == f"{PATH}.positions is a LogDistance, which the compiled steps do not support"
    for one, other in zip(plain, translator.translate(texts, beam=2), strict=True):
        assert one.text == other.text and one.score == pytest.approx(other.score, abs=1e-4)


def test_commands_refuse_the_run_in_one_line_and_its_card_says_how_it_is_loaded(within):
    line = (
        "runs/near was trained with custom modules (distance_bias.py:with_log_distance)."
        " Their code is not stored in the run folder. Load the run from Python:"
        " from distance_bias import with_log_distance; attendo.load('runs/near',"
        " own_parts=with_log_distance)"
    )
    assert f"error: {line}" in (DOCS / "en" / "change-a-block.md").read_text(encoding="utf-8")
    for command in (
        ("translate", "runs/near", "It will rain."),
        ("look", "runs/near", "It will rain."),
        ("evaluate", "runs/near", "pairs.tsv"),
        ("embed", "runs/near", "It will rain."),
    ):
        assert refused(*command) == line, command
    given, (begin, _) = "('runs/near', own_parts=with_log_distance)", line.split("attendo.load")
    resume = f"from attendo.runs.resume import resumed_run; resumed_run{given}.to_end(print)"
    verify = f"from attendo.runs.resume import verify_resume; print(verify_resume{given})"
    assert refused("resume", "runs/near", "--more-steps", "2", "--threads", "1") == begin + resume
    assert refused("verify-resume", "runs/near") == begin + verify
    assert resumed_run("runs/near", own_parts=WITH_BIAS).saved.endswith(f"; {resume}")
    for target in ("huggingface", "ctranslate2", "argos", "onnx"):
        said = refused("export", "runs/near", "out", "--to", target)
        assert said.endswith("which no other program supports: it cannot be exported")
    card = " ".join(attendo("info", "runs/near").out.split())
    assert "in Python from distance_bias import with_log_distance; attendo.load('runs/near', own_parts=with" in card
    assert "own_parts=with_log_distance).translate" in card and "attendo translate" not in card


def test_what_is_handed_in_must_be_what_the_run_has(within, tmp_path):
    with pytest.raises(AttendoError, match=r"norm.alpha is not in both"):
        library.load("runs/near", own_parts=block("dynamic_tanh.py")["with_dynamic_tanh"])
    small_run(tmp_path / "plain", within / "pairs.tsv", training={"steps": 1})
    with pytest.raises(AttendoError, match=r"was trained without custom modules\. Load it without own_parts"):
        load_bundle(tmp_path / "plain", WITH_BIAS)


def with_table(reach, kind=nn.Parameter):
    """A function as a file with a constant has it: what each head adds at each signed distance up to `reach`."""

    class Table(DistanceBias):
        def __init__(self, n_heads):
            super().__init__()
            table = torch.zeros(n_heads, 2 * reach + 1)
            if kind is nn.Parameter:
                self.table = kind(table)
            else:
                self.register_buffer("table", table)

        def forward(self, queries, keys):
            places = (keys - queries[:, :, None]).clamp(-reach, reach) + reach
            return self.table[:, places].transpose(0, 1)

    def with_it(model):
        for block in model.encoder.blocks:
            block.self_attention.positions = Table(model.config.n_heads)

    return with_it


@pytest.mark.parametrize("kind", [nn.Parameter, torch.Tensor])
def test_a_part_of_another_shape_is_refused_when_loaded_and_when_resumed(within, tmp_path, kind):
    folder, other = tmp_path / "run", with_table(4, kind)
    list(run_with(with_table(8, kind), folder).reports())
    library.load(folder, own_parts=with_table(8, kind))
    told = r"positions.table has shape \(2, 17\), but test_custom_modules.py:with_table.* defines \(2, 9\)"
    for use in (library.load, resumed_run, verify_resume):
        with pytest.raises(AttendoError, match=told):
            use(folder, own_parts=other)
    with pytest.raises(AttendoError, match=r"positions.* is not in both"):
        resumed_run(folder, own_parts=WITH_BIAS)


def run_with(own_parts, folder, **tables):
    tables = joined(SMALL, {"data": {"train": ["pairs.tsv"]}, "training": {"steps": 1}}, tables)
    init_from = Path("runs/near") if "init_from" in str(folder) else None
    return new_run(family_of("translation"), tables, folder, init_from=init_from, own_parts=own_parts)


def test_a_function_that_changes_nothing_is_refused(within, tmp_path):
    with pytest.raises(
        AttendoError, match=r"test_custom_modules.py:.*nothing replaced no module or parameter of the model"
    ):

        def nothing(model):
            model.get_submodule("encoder.blocks.0")

        run_with(nothing, tmp_path / "run")


def test_what_counts_parts_on_paper_is_refused(within, tmp_path):
    with pytest.raises(AttendoError, match=r"lora.rank and training.frozen do not support custom modules"):
        run_with(WITH_BIAS, tmp_path / "run", training={"frozen": ["encoder"]})


def test_a_run_may_start_from_one_with_such_parts_and_train_one_alone(within, tmp_path):
    def slopes_alone(model):
        WITH_BIAS(model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad = name.endswith("slopes")

    run = run_with(slopes_alone, tmp_path / "init_from")
    before = {name: p.detach().clone() for name, p in run.run.model.named_parameters()}
    theirs = dict(library.load("runs/near", own_parts=WITH_BIAS).model.named_parameters())
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in before.items())
    list(run.reports())
    moved = {name for name, p in run.run.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved and all(name.endswith("slopes") for name in moved)


@pytest.mark.parametrize(
    ("file", "name", "unknown"),
    [
        ("squared_relu.py", "with_squared_relu", "encoder.blocks.0.feed_forward is a SquaredReLU"),
        ("dynamic_tanh.py", "with_dynamic_tanh", "self_attention_residual.norm is a DynamicTanh"),
    ],
)
def test_other_nets_and_norms_train_and_are_recorded(within, tmp_path, file, name, unknown):
    own_parts = block(file)[name]
    list(run_with(own_parts, tmp_path / "run").reports())
    translator = library.load(tmp_path / "run", own_parts=own_parts)
    assert unknown in str(translator.prepare().why_not_compiled)
    with recording(translator.model, "encoder.blocks.0.feed_forward.output") as record:
        record.model.encode(torch.tensor([[3, 4]]))
    assert record["encoder.blocks.0.feed_forward"].output.shape == (1, 2, 16)


def test_the_microscope_computes_with_the_bias_and_draws_it(within):
    translator = library.load("runs/near", own_parts=WITH_BIAS)
    seen = library.look(translator, "It will rain.").result
    layer, record = layer_of(seen, PATH), seen.record[PATH]
    n, slopes = layer["k_len"], seen.model.get_submodule(PATH).positions.slopes
    row = torch.tensor(layer["biases"])[1, n - 1 :]  # from the first query, of the second head
    torch.testing.assert_close(row, (-slopes[1] * torch.arange(n).add(1.0).log()).detach())
    query, key = record.query[0, 1], record.key[0, 1]
    weights = (query[0] @ key.T * layer["scale"] + row).softmax(-1)
    torch.testing.assert_close(weights, record.weights[0, 1, 0])
    answer = positions_answer(seen, "source")
    assert (answer["kind"], answer["name"], answer["note"]) == ("own", "LogDistance", "own")


def test_an_attend_of_ones_own_is_not_mistaken_for_the_softmax():
    class Even(Attend):
        def forward(self, query, key, value, mask=None, bias=None):
            return value.mean(2, keepdim=True).expand_as(query)

    model = EncoderDecoder(CONFIG).eval()
    model.encoder.blocks[0].self_attention.attend = Even()
    with recording(model) as record:
        record.model(torch.tensor([[3, 4]]), torch.tensor([[1]]))
    assert PATH not in record.paths and "decoder.blocks.0.self_attention" in record.paths


def test_both_languages_have_the_same_code():
    pages = [(DOCS / language / "change-a-block.md").read_text(encoding="utf-8") for language in ("en", "ja")]
    code = [re.findall(r"^```.*?^```", page, re.MULTILINE | re.DOTALL) for page in pages]
    assert code[0] == code[1] and len(code[0]) >= 7
    assert set(FILES) == set(dict(FILE.findall(pages[1])))
