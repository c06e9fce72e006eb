"""The commands of the guides that have no test of their own run on small data."""

import gzip
import importlib.util
import re
import shlex
import shutil

import pytest
import torch
import typer
from documented import ROOT, Workshop, blocks, commands
from torch.distributed.run import get_args_parser

from attendo.cli import build_app

NAMES = "automatic-choice cost-model data decoding export gpu report several-machines training"
PAGES = NAMES.split()
ELSEWHERE = re.compile(r"attendo import|attendo \S+ runs/(minilm|opus|smollm)")
"""Commands of imported models, which test_docs_fine_tune.py runs."""

RUNS = (
    "attendo train translation --train pairs.tsv --out runs/mine",
    "attendo train translation --train pairs.tsv --out runs/other --set training.seed=2",
    "attendo train language-model --train novel.txt --out runs/story",
)


def lines_of(page):
    """The commands of a page, in blocks of any kind, without comments."""
    lines = commands((ROOT / f"docs/en/{page}.md").read_text("utf-8"), language=None)
    return [line for line in lines if re.match(r"(attendo [a-z]|torchrun )", line)]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        made = Workshop(tmp_path_factory.mktemp("guides"))
        patched.chdir(made.folder)
        patched.setenv("ATTENDO_NATIVE", "0")
        for name in ("shards", "reviews", "books/old", "texts"):
            (made.folder / name).mkdir(parents=True)
        pairs = (made.folder / "pairs.tsv").read_text("utf-8").splitlines()
        for name, rows in (("valid", pairs[:20]), ("shards/a", pairs[20:70]), ("shards/b", pairs[70:])):
            (made.folder / f"{name}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        for language, n in (("en", 0), ("de", 1)):
            (made.folder / f"shards/a.{language}").write_text("\n".join(row.split("\t")[n] for row in pairs))
        labels = (f"{'good' if 'rain' in row else 'bad'}\t{n}\t{row.split(chr(9))[0]}" for n, row in enumerate(pairs))
        (made.folder / "reviews/a.tsv").write_text("\n".join(labels) + "\n", encoding="utf-8")
        novel = (made.folder / "novel.txt").read_text("utf-8")
        for name in ("books/old/a.txt", "texts/a.txt"):
            (made.folder / name).write_text(novel, encoding="utf-8")
        for name in ("input.txt", "prompts.txt", "big.txt"):
            (made.folder / name).write_text("It will rain.\nIt was a dark night.\n")
        (made.folder / "big.txt.gz").write_bytes(gzip.compress(b"It will rain.\n"))
        for line in RUNS:
            made.run(line)
        (made.folder / "gold.txt").write_text("0-0\n" * len(pairs), encoding="utf-8")
        yield made


@pytest.fixture
def runs(workshop):
    """The runs as they are first, since pages train runs of the same names."""
    first = workshop.folder / "first"
    if not first.exists():
        shutil.copytree(workshop.folder / "runs", first)
    shutil.rmtree(workshop.folder / "runs")
    shutil.copytree(first, workshop.folder / "runs")


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_guide_have_known_options_and_values(page):
    """Read but not run: `make test` runs the commands of some guides, and make test-full all."""
    for line in lines_of(page):
        words, command = shlex.split(line.split(" > ")[0]), typer.main.get_command(build_app())
        words = words[words.index("attendo") + 1 :]
        while subcommands := getattr(command, "commands", None):
            command = subcommands[words.pop(0)]
        with command.make_context("attendo", words):
            pass


@pytest.mark.some(2)
@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_guide_run(page, workshop):
    lines = [line for line in lines_of(page) if not ELSEWHERE.match(line)]
    assert lines
    for line in lines:
        if line.startswith("torchrun"):
            line = under_torchrun(line)
        if line.startswith("attendo generate"):
            line = line.replace("runs/mine", "runs/story").replace("--output texts.txt", "--output new.txt")
        if importlib.util.find_spec("tensorboard") is None:
            line = line.replace(" --set training.tensorboard=true", "")
        if "--device cuda" in line and not torch.cuda.is_available():
            with pytest.raises(AssertionError, match="PyTorch finds no GPU"):
                workshop.run(line)
        else:
            workshop.run(line)


def under_torchrun(line):
    """The command that torchrun starts in each process."""
    options = get_args_parser().parse_args(shlex.split(line)[1:])
    assert options.no_python
    return shlex.join([options.training_script, *options.training_script_args])


@pytest.mark.some(2)
@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("page", ["look", "report", "decoding", "reproducibility"])
def test_a_guide_shows_what_its_commands_print(page, workshop):
    shown = [block for _, block in blocks((ROOT / f"docs/en/{page}.md").read_text("utf-8")) if block.startswith("$ ")]
    assert shown
    for block in shown:
        line, *expected = block.removeprefix("$ ").splitlines()
        if page == "look":  # maps, numbers and texts depend on the model
            line = (
                line.replace("runs/demo", "runs/mine")
                .replace("runs/m30k", "runs/mine")
                .replace("attention:3", "attention:2")
            )
            expected = [
                text
                for text in expected
                if sum(len(word) > 1 for word in words(text)) > 3
                and not re.search("[ぁ-ん]|without cross|decoder[.]", text)
            ]
        outcome = workshop.run(line.replace("runs/wide", "runs/mine").replace("runs/narrow", "runs/other"))
        printed = set(map(words, (outcome.out + outcome.err).splitlines()))
        for text in expected:
            assert words(text) in printed, (line, text, printed)


def words(line):
    """The words of a line that do not depend on the model: no numbers, names of runs, texts and verdicts."""
    if re.fullmatch(r".*\t\d+-\d+( \d+-\d+)*", line):
        return ("text", "links")
    if " p = " in line:
        return ("verdict",)
    names = {"wide", "narrow", "mine", "other", "char"}
    return tuple(word for word in re.findall("[A-Za-z]+", line.replace("tok:13a", "tok:char")) if word not in names)
