"""Log-likelihoods over /v1/completions and /score, beside those of `transformers` with the tokenizer of each kind."""

import asyncio
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_tokenizers as tiny
import torch
from served_models import client_of, serving

transformers = pytest.importorskip("transformers")

from attendo.inference import Generator  # noqa: E402
from attendo.interop.exporting import export  # noqa: E402
from attendo.interop.huggingface.importing import import_model  # noqa: E402
from attendo.interop.huggingface.tokenizers import read_tokenizer  # noqa: E402

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
KINDS = ("gpt2", "smollm", "llama", "qwen2", "qwen3")
TEXTS = ["the quick brown fox", "Łódź , they said", "a"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder as Hugging Face has it for each kind, as the benchmark of lm-eval makes it, and its run folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        made = importlib.import_module("lm_eval").made
    found = {}
    for kind in KINDS:
        top = tmp_path_factory.mktemp(kind)
        (top / "hf").mkdir()
        made(kind, tiny.LINES, top / "hf")
        import_model(top / "hf", top / "run")
        found[kind] = top
    return found


@pytest.fixture(scope="module")
def app(folders):
    state, app = serving(*((kind, Generator.load(top / "run"), None, None) for kind, top in folders.items()))
    yield app
    state.models.stop()


def asked(app, route, **body):
    answer = asyncio.run(client_of(app).post(route, json=body))
    assert answer.status_code == 200, answer.text
    return answer.json()


def echoed(app, kind, prompts, **more):
    body = {"max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True} | more
    found = asked(app, "/v1/completions", model=kind, prompt=prompts, **body)
    return [choice["logprobs"] for choice in found["choices"]]


def oracle_of(folder):
    """The log-probability of each id of a row but the first, by `transformers`; and its tokenizer."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

    def values(row):
        with torch.inference_mode():
            found = model(torch.tensor([row])).logits[0].double().log_softmax(-1)
        return found[range(len(row) - 1), row[1:]].tolist()

    return values, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", KINDS)
def test_texts_and_ids_have_the_log_probabilities_of_transformers(kind, folders, app):
    values, theirs = oracle_of(folders[kind] / "hf")
    own = Generator.load(folders[kind] / "run").tokenizer
    rows = [theirs(text)["input_ids"] for text in TEXTS]
    assert [own.specials.prompt(own.encode(text)) for text in TEXTS] == rows
    begin = [theirs.eos_token_id if theirs.bos_token_id is None else theirs.bos_token_id]
    for row, of_text in zip(rows, echoed(app, kind, TEXTS), strict=True):
        wanted = [None, *values(row)][row[:1] == begin :]  # what the tokenizer adds is no token of the text
        assert of_text["token_logprobs"][:-1] == pytest.approx(wanted, abs=1e-3)
        assert [top is None for top in of_text["top_logprobs"][:-1]] == [one is None for one in wanted]
    bare = [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    for given in (bare, [begin + row for row in bare]):  # whatever the tokenizer adds
        for row, of_ids in zip(given, echoed(app, kind, given), strict=True):
            assert of_ids["token_logprobs"][:-1] == pytest.approx([None, *values(row)], abs=1e-3)
            assert of_ids["token_logprobs"][-1] == pytest.approx(max(of_ids["top_logprobs"][-1].values()), abs=1e-3)
    for text, row in zip(TEXTS, bare, strict=True):  # as lm-eval's rolling log-likelihood, and the end
        (scored,) = asked(app, "/score", model=kind, text=text)["results"]
        wanted = values([*begin, *row, theirs.eos_token_id])
        assert [token["log_prob"] for token in scored["tokens"]] == pytest.approx(wanted, abs=1e-3)


@pytest.mark.full
def test_lm_eval_measures_over_http_what_its_own_backend_measures(tmp_path):
    """The unchanged package, which `make test-full` installs, on two local tasks. Nothing is downloaded."""
    out = tmp_path / "lm-eval.json"
    command = [sys.executable, BENCHMARKS / "lm_eval.py", "--peer", sys.executable, "--out", out]
    subprocess.run(command, check=True, timeout=900)
    found = json.loads(out.read_text(encoding="utf-8"))["kinds"]
    assert list(found) == list(KINDS)
    for tasks in found.values():
        assert set(tasks) == {"local_choice", "local_rolling"}
        for task in tasks.values():
            assert task["n"] > 10
            assert task["largest_difference"] < 1e-3


def test_an_end_that_is_drawn_is_the_last_token_of_the_table(folders):
    """lm-eval leaves out the last token of an echo, which it takes for the one that was drawn."""
    generator = Generator.load(folders["gpt2"] / "run")
    ids, eos_id = generator.tokenizer.encode("the quick"), generator.tokenizer.eos_id
    with torch.no_grad():
        state = generator.model.hidden(token_ids=torch.tensor([ids]))[0, -1]
        generator.model.output_proj.weight[eos_id] = 10 * state  # now the end is next
    state, app = serving(("ends", generator, None, None))
    (told,) = echoed(app, "ends", ids)
    assert len(told["token_logprobs"]) == len(told["tokens"]) == len(ids) + 1
    assert told["tokens"][-1] == generator.tokenizer.pieces([eos_id])[0]
    assert told["token_logprobs"][-1] == pytest.approx(0.0, abs=1e-3)
    body = {"model": "ends", "prompt": ids, "max_tokens": 3, "temperature": 0, "logprobs": 0, "stream": True}
    events = asyncio.run(client_of(app).post("/v1/completions", json=body)).text.split("\n\n")
    (last,) = json.loads(events[-3].removeprefix("data: "))["choices"]
    assert (last["text"], last["logprobs"]["tokens"]) == ("", told["tokens"][-1:])
    state.models.stop()


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_tokenizer_adds_what_the_models_own_does(kind, folders, tmp_path):
    export(folders[kind] / "run", tmp_path / "out", "huggingface", most=2)
    one, two = (transformers.AutoTokenizer.from_pretrained(path) for path in (folders[kind] / "hf", tmp_path / "out"))
    assert [one(text)["input_ids"] for text in TEXTS] == [two(text)["input_ids"] for text in TEXTS]


@pytest.mark.some(3)
@pytest.mark.parametrize("adds", [None, True, False])
@pytest.mark.parametrize("kind", ["smollm", "llama"])
def test_what_tokenizer_json_adds_counts_and_add_bos_token_where_there_is_none(kind, adds, folders, tmp_path):
    hf = tmp_path / "hf"
    shutil.copytree(folders[kind] / "hf", hf)
    config = json.loads((hf / "config.json").read_text())
    own = json.loads((hf / "tokenizer_config.json").read_text())
    (hf / "tokenizer_config.json").write_text(json.dumps(own if adds is None else own | {"add_bos_token": adds}))
    theirs = transformers.AutoTokenizer.from_pretrained(hf)
    ours = read_tokenizer(hf, config)
    assert ours.specials.prompt(ours.encode("the fox")) == theirs("the fox")["input_ids"]
    if kind == "llama":  # files of before tokenizer.json
        old = tmp_path / "old"
        tiny.made("llama", old)
        (old / "tokenizer_config.json").write_text(json.dumps({} if adds is None else {"add_bos_token": adds}))
        found = read_tokenizer(old, tiny.config_of("llama", 420))
        assert found.specials.before_prompt == (() if adds is False else (1,))
