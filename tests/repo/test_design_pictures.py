"""The pictures of docs/design.md are what the code draws, and its table names files that are there."""

import re

import design_pictures
from design_pictures import IMAGES, ROOT, SOURCE, layers, layers_picture, sentence_picture


def test_both_pictures_are_what_the_code_draws():
    assert (IMAGES / "layers.svg").read_text(encoding="utf-8") == layers_picture(), "run make docs"
    assert (IMAGES / "sentence.svg").read_text(encoding="utf-8") == sentence_picture(), "run make docs"


def test_a_package_imports_only_packages_of_lower_layers():
    below: set[str] = set()
    for packages in reversed(layers()):
        for package in packages:
            assert set(package.imports) <= below, package.name
        below |= {package.name for package in packages}
    assert {"nn", "cli", "errors"} <= below


def test_the_way_shows_the_shapes_that_the_model_returned():
    calls = {call.name: call for call in design_pictures.sentence()}
    assert calls["Attend"].file == "nn/attention.py"
    n = calls["SpecialTokens.source"].returned.split()[0]
    assert calls["Attend"].returned == f"[batch heads q_len value_dim] 1 × 4 × {n} × 64"
    assert calls["EncoderDecoder.step"].returned.startswith("[rows n vocab] 4 × 1 × ")


def test_the_page_names_files_that_are_there():
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = page.split("| topic |")[1].split("\n## ")[0]
    for cell in re.findall(r"\| ([^|]*`[^|]*) \|$", table, re.MULTILINE):
        folder = SOURCE
        for path in re.findall(r"`([\w/.]+)`", cell):
            found = SOURCE / path if (SOURCE / path).exists() else folder / path
            assert found.exists(), path
            folder = found.parent if found.is_file() else found
    assert "`nn/attention.py`" in table
