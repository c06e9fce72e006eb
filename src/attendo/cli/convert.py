"""The commands `attendo import`, `export`, `quantize` and `eject`, which convert models from one format to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

from attendo.cli.options import Folder, Threads, argument, option, refuse_if, use_threads
from attendo.cli.reporting import say
from attendo.display.width import shown


def import_(
    source: Path = argument("SRC", "Folder with config.json, *.safetensors and tokenizer files, or a GGUF file."),
    out: Path = argument("DIR", "New or empty run folder."),
    source_language: str | None = option("L", "Source language of a translator, stored in the run.", "--from"),
    target_language: str | None = option("L", "Target language of a translator, stored in the run.", "--to"),
) -> int:
    """Convert a local Hugging Face model or GGUF file to a run folder, which all other commands accept.

    Supported models: BERT, RoBERTa, DistilBERT and sentence embeddings based on them; GPT-2, Llama, Mistral, Qwen2,
    Qwen3, SmolLM3 and Phi-3; MarianMT (OPUS-MT), Pegasus, BART, mBART and T5. The command downloads nothing. First
    download the model, for example with: hf download Helsinki-NLP/opus-mt-en-de --local-dir opus-mt-en-de. Pickle files
    are not read. For a multilingual model, --to selects the output language. GGUF files can contain Llama, Mistral,
    Qwen2 or Qwen3 models.

    Example: attendo import opus-mt-en-de runs/opus --from en --to de
    """
    from attendo.interop import import_model

    import_model(source, out, say, source_language=source_language, target_language=target_language)
    return 0


def export(
    folder: Folder,
    out: Path = argument("OUT", "New or empty folder for the exported model, or new GGUF file."),
    target: str = option("T", "Export format: huggingface, ctranslate2, argos, onnx or gguf.", "--to", default=...),
    quantization: str = option("Q", "Number format of weights: float32, int8, q8_0 …", default="float32"),
    languages: str | None = option("en,de", "Source and target language for argos (default: as in the run)."),
    valid: list[Path] | None = option("F", "Data for the comparison (default: the run's validation set)."),
    rows: int = option("N", "Maximum number of rows for the comparison.", min=1, default=500),
    threads: Threads = None,
) -> int:
    """Export a model for another program, and compare the results of that program with those of attendo.

    After the export, the other program loads the model. Both programs process the validation set of the run, the data
    of --valid, or built-in texts. The file attendo-parity.json in the output folder contains the comparison. If the
    other program does not support the model, nothing is written. The format gguf is one file, which llama.cpp loads.

    Example: attendo export runs/mine mine.ct2 --to ctranslate2 --quantization int8
    """
    from typing import get_args

    from attendo.interop import TARGETS, ExportOptions, parity_lines
    from attendo.interop import export as exported
    from attendo.interop.to_ctranslate2 import Quantization
    from attendo.interop.to_gguf import GgufQuantization

    formats = get_args(GgufQuantization if target == "gguf" else Quantization)
    for name, value, known in (("--to", target, TARGETS), ("--quantization", quantization, formats)):
        refuse_if(value not in known, f"{name} {value} is unknown (expected {', '.join(known)})")
    source, comma, into = (languages or "").partition(",")
    is_wrong = languages is not None and not (source and comma and into)
    refuse_if(is_wrong, f"--languages {languages} must be two codes, source,target, for example en,de")
    use_threads(threads)
    options = ExportOptions(quantization=cast("Any", quantization), languages=(source, into) if comma else None)
    report = exported(folder, out, cast("Any", target), options, valid=valid or (), most=rows, say=say)
    print(shown("\n".join(parity_lines(report))))
    say(f"{out}: {target}{', with attendo-parity.json' if out.is_dir() else ''}")
    return 0


def quantize(
    folder: Folder,
    bits: Literal[16, 8, 4] = option("N", "Bits of each weight: 16, 8 or 4.", default=8),
    out: Path = option("DIR", "New or empty folder for the quantized run.", default=...),
    threads: Threads = None,
) -> int:
    """Write a copy of a run with weights of 16, 8 or 4 bits, which is smaller and loads faster.

    16 bits are bfloat16. 8 bits are integers with a scale per output, and 4 bits are integers with a scale per 32
    inputs. Embeddings have 16 bits. If the weights of the run are bfloat16 numbers, as in most imported models, the
    copy computes the same as the run with --bits. On a CPU, generate, chat, serve, translate, score, evaluate and
    compare use the stored integers. All other commands, and a GPU, convert the weights to floating-point numbers
    first. To train further or to export, use the original run, which is more exact.

    Example: attendo quantize runs/smollm2 --bits 8 --out runs/smollm2-8
    """
    from attendo.interop.quantizing import quantize as quantized

    use_threads(threads)
    quantized(folder, out, bits)
    sizes = [(run / "model.safetensors").stat().st_size for run in (folder, out)]
    say(f"{out}: {bits} bits, {sizes[1] / 2**20:,.1f} MiB instead of {sizes[0] / 2**20:,.1f} MiB")
    return 0


def eject(folder: Folder, out: Path = argument("FILE", "The Python file to write.")) -> int:
    """Write a model as one readable file of plain PyTorch.

    The file requires torch and safetensors, but not attendo. The file contains only the code that this model uses, so
    you can read and change the whole model. `python FILE DIR` loads the weights of the run folder and compares the
    logits with those of attendo.

    Example: attendo eject runs/mine model.py
    """
    from attendo.interop import eject as ejected

    source = ejected(folder, out)
    say(f"{out}: {len(source.splitlines())} lines; check it with: python {out} {folder}")
    return 0
