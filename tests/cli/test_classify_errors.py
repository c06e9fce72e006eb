"""attendo errors and attendo label, as commands."""

import json
import threading
import urllib.request

import pytest
from command_line import attendo, refused
from tiny_classifiers import COUNTS, config, saved

from attendo.data.corpora import read_rows
from attendo.data.held_out import TrainedRows, save_trained_rows
from attendo.microscope.server import LabelServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    card = {"task": "classification", "labels": COUNTS}
    made = tmp_path_factory.mktemp("classifier") / "run"
    train = made.with_name("train.csv")
    train.write_text("kind,body\nwet,rain 0\n")
    saved(made, config(), card, train=[str(train)], columns="label=kind,text=body")
    save_trained_rows(made, TrainedRows(), TrainedRows.of(f"rain {n}" for n in range(60)))
    return made


def test_errors_prints_and_writes_the_ranking(folder, tmp_path):
    file, out = tmp_path / "a.csv", tmp_path / "b.xlsx"
    rows = [("wet" if n % 9 else "dry", f"rain {n}") for n in range(60)] + [("dry", "sun")] * 10
    file.write_text("kind,body\n" + "".join(f"{label},{text}\n" for label, text in rows))
    outcome = attendo("errors", folder, file, "--top", 3, "--out", out)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["line", "label", "suggested", "p(label)", "p(suggested)", "text"]
    assert len(lines) == 6 and "of 70 labels seem wrong" in lines[-1]
    assert "60 of 70 texts are training rows; their labels are cross-validated" in outcome.err
    written = [row.fields for row in read_rows(out, ("line", "label", "text"))]
    assert sorted((label, text) for _, label, text in written) == sorted(rows)
    assert all(rows[int(line) - 2] == (label, text) for line, label, text in written)
    file.write_text("kind,body\nwet,sun\ndry,sun\ncold,fog\n")
    found = json.loads(attendo("errors", folder, file, "--top", 2, "--json").out)
    assert (found["rows"], len(found["errors"])) == (3, 2) and 0 <= found["wrong"] <= 3
    assert found["errors"][0]["label_probability"] < found["errors"][1]["label_probability"]
    assert "must end in .csv" in refused("errors", folder, file, "--out", tmp_path / "a.txt")
    file.write_text("kind,body\nwet,rain\ndyr,sun\n")
    assert "a.csv:3: the label 'dyr' was not seen in training" in refused("errors", folder, file)


def test_label_asks_writes_and_names_the_next_command(folder, tmp_path, monkeypatch):
    texts, out = tmp_path / "texts.txt", tmp_path / "labels.csv"
    texts.write_text("".join(f"{word} {n}\n" for word in ("rain", "sun") for n in range(30)))

    def run(server):
        server._socket.close()
        for n in range(20):
            server.labeling.label("wet" if n % 2 else "dry")

    monkeypatch.setattr(LabelServer, "run", run)
    outcome = attendo("label", folder, texts, "--out", out, "--port", 0)
    assert outcome.code == 0, outcome.err
    assert "30 of 60 different texts are training rows and are left out" in outcome.err
    assert out.read_text().startswith("kind,body\ndry,sun ")
    command = f"attendo train classification --train {out} --columns label=kind,text=body"
    assert f"20 labels. To train on them: {command} --init-from {folder} --out {folder}-2\n" in outcome.err
    again = attendo("label", folder, texts, "--out", out, "--port", 0)
    assert f"{out}: 20 labels; 10 texts to label" in again.err


def test_label_serves_its_page_until_it_is_stopped(folder, tmp_path, monkeypatch):
    texts = tmp_path / "texts.txt"
    texts.write_text("sun\n")
    run = LabelServer.run

    def visited(server):
        def visit():
            with urllib.request.urlopen(server.address, timeout=20) as answer:
                pages.append(answer.read().decode())
            server.stop()

        threading.Thread(target=visit).start()
        run(server)

    pages = []
    monkeypatch.setattr(LabelServer, "run", visited)
    outcome = attendo("label", folder, texts, "--out", tmp_path / "a.jsonl", "--port", 0, "--language", "ja")
    assert outcome.code == 0 and outcome.out.startswith("http://127.0.0.1:"), outcome.err
    assert ">sun<" in pages[0] and 'lang="ja"' in pages[0]
    assert "0 labels. Training requires at least 20 texts" in outcome.err
