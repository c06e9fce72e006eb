"""The export of a model as one readable file of plain PyTorch, which contains only the code that the model uses."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import cast

import jinja2
import torch
from torch import Tensor

from attendo.bundle import load_bundle, load_model
from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.interop.requirements import unknown_option
from attendo.models import DecoderLM, EncoderDecoder, Model, ModelConfig

TEMPLATE = "eject.template"


def eject(run: Path, out: Path) -> str:
    """Write the model of a run as one file of plain PyTorch, and return the text of the file.

    The file requires torch and safetensors, but not attendo. `python FILE RUN` loads the weights of the run folder and
    compares the logits with those of attendo.

    Args:
        run: The run folder.
        out: The Python file to create.

    Raises:
        AttendoError: The run cannot be read, has custom modules or is quantized, or `out` already exists.

    >>> eject(Path("none"), Path("model.py"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: none: no such run folder; give the folder that `attendo train … --out` wrote
    """
    if out.exists():
        raise AttendoError(f"{out} already exists. Choose another name, or remove the file")
    if not out.absolute().parent.is_dir():
        raise AttendoError(f"{out}: there is no folder {out.parent}. Create the folder first")
    bundle = load_bundle(run)
    if (name := bundle.card.get("own_parts")) is not None:
        raise AttendoError(
            f"{run} has custom modules ({name}), which `attendo eject` cannot write. Eject a run without them,"
            " and add their code to that file"
        )
    if (bits := bundle.card.get("bits", 32)) != 32:
        raise AttendoError(f"{run} is quantized to {bits} bits. Eject the original run")
    if (unknown := unknown_option(bundle.model_config)) is not None:
        raise AttendoError(f"{run}: `attendo eject` does not support {unknown}")
    source = model_source(bundle.model_config, load_model(run, bundle), out.name)
    write_atomic(out, source)
    return source


def model_source(config: ModelConfig, model: Model, file: str) -> str:
    """Return the source code of a model in plain PyTorch.

    Args:
        config: The configuration of the model.
        model: The model in evaluation mode. The source code contains the logits of the model for a few token ids, for a
            check.
        file: The name of the new file, for its module docstring.


    >>> from attendo.models import build_model
    >>> config = ModelConfig(vocab_size=11, d_model=8, n_heads=2, d_ff=16)
    >>> lines = model_source(config, build_model(config).eval(), "model.py").splitlines()
    >>> lines[0]
    '\"\"\"An encoder-decoder Transformer in plain PyTorch, written by `attendo eject`.'
    """
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(Path(__file__).with_name(TEMPLATE).read_text(encoding="utf-8"))
    text = template.render(c=config, file=file, expected=_expected(model))
    return re.sub(r"\n{4,}", "\n\n\n", text) + "\n"


@torch.no_grad()
def _expected(model: Model) -> list[list[float]]:
    """Return the logits with which the function `check` of the written file compares its results."""
    ids = torch.arange(6).view(2, 3) % model.config.vocab_size
    lengths = torch.tensor([3, 2])
    model = cast("Model", copy.deepcopy(model).float())
    if isinstance(model, EncoderDecoder):
        found = model(ids, torch.arange(4).view(2, 2) % model.config.vocab_size, lengths)[:, -1]
    elif isinstance(model, DecoderLM):
        found = model(ids)[:, -1]
    else:
        found = model(ids, lengths)
        found = found[:, 0] if found.ndim == 3 else found
    rows: Tensor = found[:, :3].double()
    return [[round(value, 6) for value in row] for row in rows.tolist()]
