"""The data of a run that goes on: a store that was lost or spoiled is made anew, other data are refused."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from cut_runs import Killed, finished, lasting, log, traces
from tiny_corpus import SMALL as PAIRS
from tiny_corpus import pairs_file, small_run
from tiny_texts import SMALL as TEXTS
from tiny_texts import labelled_file, text_file

from attendo.bundle import load_bundle, load_model
from attendo.errors import AttendoError
from attendo.files import locked, write_manifest
from attendo.runs.resume import resumed_run
from attendo.runs.settings import joined
from attendo.runs.task_specs import family_of
from attendo.runs.training_run import LOCK, new_run

SETTINGS = {"training": {"steps": 6, "evaluate_every": 3}, "checkpoint": {"every_steps": 3}}
FAMILIES = {
    "translation": (PAIRS, pairs_file, {}),
    "classification": (TEXTS, labelled_file, {"model": {"n_encoder_layers": 1}}),
    "language-model": (TEXTS, text_file, {"model": {"n_decoder_layers": 1, "max_len": 24}}),
}


@pytest.fixture(
    scope="module",
    params=["translation", *(pytest.param(name, marks=pytest.mark.full) for name in [*FAMILIES][1:])],
)
def ended(request, tmp_path_factory):
    """The folder of a finished run, and that of its token store."""
    folder = tmp_path_factory.mktemp("data")
    small, file, own = FAMILIES[request.param]
    tables = joined(small, {"data": {"train": [str(file(folder))]}}, own, SETTINGS)
    finished(new_run(family_of(request.param), tables, folder / "run"))
    return folder / "run", store_of(folder / "run")


def store_of(folder):
    """Where the run's store is."""
    cache, key = os.environ["ATTENDO_CACHE"], json.loads((folder / "card.json").read_text())["data"]["store"]
    (store,) = [path for path in Path(cache).iterdir() if path.name.endswith(key)]
    return store


@pytest.fixture
def cut(ended, tmp_path):
    """The same run as it was after its third step, its traces at the end, and the store."""
    whole, store = ended
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "checkpoints" / "step-6")
    return folder, (traces(whole), lasting(log(whole))), store


def goes_on(folder, wanted, said):
    finished(resumed_run(folder, say=said.append))
    assert (traces(folder), lasting(log(folder))) == wanted


def spoil(store):
    """Exchanges two ids, and makes the manifest vouch for it."""
    path = max(store.iterdir(), key=lambda path: "ids" in path.name)
    ids = np.fromfile(path, "<u2")
    places = ids[0], ids[np.flatnonzero(ids != ids[0])[0]]
    ids[ids == places[0]] = places[1]
    ids.tofile(path)
    write_manifest(store, json.loads((store / "manifest.json").read_text())["extra"])


MADE_ANEW = "the token store had changed; it was rebuilt with identical content"


def test_a_store_that_was_lost_is_made_again(cut):
    folder, wanted, store = cut
    shutil.rmtree(store)
    said = []
    goes_on(folder, wanted, said)
    assert store.is_dir() and MADE_ANEW not in said


def test_a_store_of_other_content_is_made_again_with_a_word(cut):
    folder, wanted, store = cut
    spoil(store)
    said = []
    goes_on(folder, wanted, said)
    assert said.count(MADE_ANEW) == 1
    goes_on(folder, wanted, said)
    assert said.count(MADE_ANEW) == 1


def test_texts_that_give_other_tokens_than_then_are_refused_with_both_hashes(cut):
    folder, _, _ = cut
    card = json.loads((folder / "card.json").read_text())
    content = card["data"]["content"]
    card["data"]["content"] = "f" * 64
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(AttendoError, match=rf"content {content[:12]}, was ffffffffffff\)\. Install the versions"):
        resumed_run(folder)


def test_a_second_process_in_the_folder_is_refused(cut):
    folder, wanted, _ = cut
    run = resumed_run(folder)
    with locked(folder / LOCK) as free:
        assert free
        for second in (lambda: resumed_run(folder), lambda: finished(run)):
            with pytest.raises(
                AttendoError, match=r"another process is training in .*run\. Wait until it ends, or stop it"
            ):
                second()
    goes_on(folder, wanted, [])


def test_two_trainings_into_one_new_folder_leave_one_description(tmp_path):
    pairs = pairs_file(tmp_path)
    first, second = (
        small_run(tmp_path / "run", pairs, training={"steps": steps, "evaluate_every": 2}) for steps in (2, 4)
    )
    with pytest.raises(AttendoError, match="another process is training in"):  # whose description was replaced
        finished(first)
    reports = second.reports()
    next(reports)
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    with pytest.raises(AttendoError, match="another process is training in"):
        small_run(tmp_path / "run", pairs, training={"steps": 2})
    assert all(path.read_bytes() == data for path, data in before.items())
    list(reports)
    load_model(tmp_path / "run", load_bundle(tmp_path / "run"))


def test_a_run_that_broke_off_gives_its_lock_back(cut):
    folder, wanted, _ = cut
    reports = resumed_run(folder).reports()
    next(reports)
    with pytest.raises(AttendoError, match="another process is training in"):
        resumed_run(folder)
    with pytest.raises(Killed):
        reports.throw(Killed())
    goes_on(folder, wanted, [])
