"""attendo.train: its arguments become the settings that the command's options become."""

import pytest
from tiny_corpus import SMALL
from tiny_texts import forecast_texts

import attendo
from attendo.runs import training_run


class Begun(Exception):
    """Carries the tables that a run would have been made with."""


@pytest.fixture
def tables(monkeypatch):
    """The tables that `attendo.train` makes of its arguments."""

    def begun(family, tables, *arguments, **options):
        raise Begun(tables)

    monkeypatch.setattr(training_run, "new_run", begun)

    def tables(**arguments):
        with pytest.raises(Begun) as raised:
            attendo.train("a.tsv", "runs/a", **arguments)
        return raised.value.args[0]

    return tables


@pytest.mark.parametrize("name", ["minutes", "cpu_minutes", "epochs", "steps"])
def test_an_end_replaces_that_of_the_settings_and_of_the_preset(tables, name):
    settings = {"training": {"minutes": 3, "steps": 4, "seed": 5}}
    training = tables(preset="tiny", settings=settings, **{name: 2})["training"]
    ends = {key: training[key] for key in ("minutes", "cpu_minutes", "epochs", "steps") if key in training}
    assert (ends, training["seed"]) == ({name: 2}, 5)


def test_without_an_end_that_of_the_settings_is_kept(tables):
    assert tables(settings={"training": {"minutes": 3}})["training"] == {"minutes": 3}


@pytest.mark.parametrize("columns", ["source=en,target=ja", {"source": "en", "target": "ja"}])
def test_columns_are_given_as_on_the_command_line_or_by_role(tables, columns):
    assert tables(columns=columns)["data"] == {"train": ["a.tsv"], "columns": "source=en,target=ja"}


@pytest.mark.parametrize("task", ["language-model", "masked-language-model"])
def test_texts_have_one_column(tables, task):
    assert tables(task=task, columns="body")["data"] == {"train": ["a.tsv"], "column": "body"}


def test_two_ends_are_refused():
    with pytest.raises(attendo.AttendoError, match=r"^give only one of minutes, steps$"):
        attendo.train("a.tsv", "runs/a", minutes=1, steps=2)


def test_a_classifier_is_trained_from_columns_by_name(tmp_path):
    file = tmp_path / "tickets.csv"
    rows = [f'{n},{n % 2},"{text}"' for n, text in enumerate(forecast_texts(60))]
    file.write_text("\n".join(["id,category,body", *rows, ""]), encoding="utf-8")
    columns = {"label": "category", "text": "body"}
    model = {"d_model": 16, "d_ff": 16, "n_heads": 2, "n_encoder_layers": 1}
    settings = {"model": model, "training": SMALL["training"]}
    classifier = attendo.train(
        file, tmp_path / "run", task="classification", columns=columns, steps=2, settings=settings
    )
    assert classifier.labels.names == ("0", "1")
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*") if path.is_file()} == {
        file.stat().st_mode & 0o777
    }
