"""The pictures of docs/design.md are what the code draws, and its table names files that are there."""

import re

import design_pictures
from design_pictures import IMAGES, ROOT, SOURCE, floors, floors_picture, sentence_picture


def test_both_pictures_are_what_the_code_draws():
    assert (IMAGES / "floors.svg").read_text(encoding="utf-8") == floors_picture(), "run make docs"
    assert (IMAGES / "sentence.svg").read_text(encoding="utf-8") == sentence_picture(), "run make docs"


def test_a_room_imports_only_rooms_of_floors_below_its_own():
    below: set[str] = set()
    for rooms in reversed(floors()):
        for room in rooms:
            assert set(room.imports) <= below, room.name
        below |= {room.name for room in rooms}
    assert {"nn", "cli", "errors"} <= below


def test_the_way_shows_the_shapes_that_the_model_returned():
    calls = {call.name: call for call in design_pictures.sentence()}
    assert calls["Attend"].file == "nn/attention.py"
    n = calls["SpecialTokens.source"].returned.split()[0]
    assert calls["Attend"].returned == f"[batch heads q_len value_dim] 1 × 4 × {n} × 64"
    assert calls["EncoderDecoder.step"].returned.startswith("[rows n vocab] 4 × 1 × ")


def test_the_page_names_files_that_are_there():
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = page.split("| you look for |")[1].split("\n## ")[0]
    for cell in re.findall(r"\| ([^|]*`[^|]*) \|$", table, re.MULTILINE):
        folder = SOURCE
        for path in re.findall(r"`([\w/.]+)`", cell):
            found = SOURCE / path if (SOURCE / path).exists() else folder / path
            assert found.exists(), path
            folder = found.parent if found.is_file() else found
    assert "`nn/attention.py`" in table
