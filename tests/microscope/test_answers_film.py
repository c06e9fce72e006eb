"""A head over the checkpoints of a run: each frame is what a model with those weights computes."""

import base64
import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_looks import tiny_look, tiny_user
from tiny_translator import save_run

from attendo.errors import AttendoError
from attendo.files import write_manifest
from attendo.inspecting.measures import head_measures
from attendo.inspecting.recording import recording
from attendo.microscope import answers
from attendo.microscope.answers import film_answer
from attendo.microscope.protocol import EditRequest
from attendo.training.checkpoints import CheckpointConfig, weights_of

PATH = "decoder.blocks.1.cross_attention"


def _checkpoint(folder, step, user):
    path = folder / "checkpoints" / f"step-{step}"
    path.mkdir(parents=True)
    save_file({name: tensor.clone() for name, tensor in weights_of(user.model).items()}, path / "model.safetensors")
    write_manifest(path, {"format": 1, "step": step})


def _weights(user, seen, head):
    with torch.inference_mode(), recording(user.model, keep=f"{PATH}.weights", edits=seen.edits) as record:
        record.model(**seen.inputs)
    return record[PATH].weights[0, head]


def _shown(frame, answer):
    data = np.frombuffer(base64.b64decode(frame["weights"]), "<f4").copy()
    return torch.from_numpy(data).reshape(answer["q_len"], answer["k_len"])


def test_each_frame_is_the_checkpoints_own_model_and_the_trained_one_comes_last(tmp_path):
    users = {step: tiny_user(seed=step) for step in (5, 20, 100)}
    trained = tiny_user(seed=7)
    folder = save_run(tmp_path / "run", trained)
    for step, user in users.items():
        _checkpoint(folder, step, user)
    before = {name: tensor.clone() for name, tensor in weights_of(trained.model).items()}
    edits = (EditRequest(kind="beta", path="*", beta=2.0),)
    seen = tiny_look(user=trained, folder=folder, edits=edits)
    answer = film_answer(seen, PATH, 1)
    assert [(frame["step"], frame["final"]) for frame in answer["frames"]] == [
        (5, False), (20, False), (100, False), (0, True),
    ]  # fmt: skip
    assert (answer["q_len"], answer["k_len"], answer["note"]) == (len(seen.target), len(seen.source), "")
    for frame, user in zip(answer["frames"], [*users.values(), trained], strict=True):
        weights = _weights(user, seen, 1)
        torch.testing.assert_close(_shown(frame, answer), weights, atol=1e-6, rtol=0)
        measures = head_measures(weights[None], seen.target, seen.source, cross=True)
        assert frame["measures"]["entropy"] == pytest.approx(measures["entropy"][0], abs=1e-5)
        assert frame["measures"].keys() == measures.keys()
    assert len({frame["weights"] for frame in answer["frames"]}) == 4
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(trained.model).items())
    json.dumps(answer)


def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path):
    folder = save_run(tmp_path / "run", tiny_user())
    for step in (1, 2):
        _checkpoint(folder, step, tiny_user(seed=step))
    path = folder / "checkpoints" / "step-2" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    answer = film_answer(tiny_look(user=tiny_user(), folder=folder), PATH, 0)
    assert [frame["step"] for frame in answer["frames"]] == [1, 0]
    assert answer["note"].startswith("skipped damaged checkpoint step-2")


def test_a_run_without_checkpoints_has_one_frame_and_is_told_how_to_keep_more(tmp_path):
    user = tiny_user()
    seen = tiny_look(user=user, folder=save_run(tmp_path / "run", user))
    answer = film_answer(seen, PATH, 0)
    assert [frame["final"] for frame in answer["frames"]] == [True]
    names = {field.name for field in dataclasses.fields(CheckpointConfig)}
    asked = {word.partition("=")[0].removeprefix("checkpoint.") for word in answer["note"].split() if "=" in word}
    assert asked == {"keep_last", "every_steps"} <= names


def test_a_long_run_is_shown_in_a_few_frames_evenly(tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "MOST_FRAMES", 3)
    folder = save_run(tmp_path / "run", tiny_user())
    for step in (1, 2, 3):
        _checkpoint(folder, step, tiny_user(seed=step))
    answer = film_answer(tiny_look(user=tiny_user(), folder=folder), PATH, 0)
    assert [frame["step"] for frame in answer["frames"]] == [1, 3, 0]
    assert answer["note"] == "2 of 3 checkpoints are shown"


def test_what_has_no_film_says_so(tmp_path):
    with pytest.raises(AttendoError, match="only in memory"):
        film_answer(tiny_look(), PATH, 0)
    seen = tiny_look(user=tiny_user(), folder=save_run(tmp_path / "run", tiny_user()))
    with pytest.raises(AttendoError, match="not an attention head"):
        film_answer(seen, PATH, 2)
