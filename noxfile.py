"""A release: `nox` builds it, tries it in empty environments, audits the locks and writes a bill of materials.

`nox -s build` runs one session, `nox -s "extra(serve)"` one of its kinds, and `nox -l` lists them all.
"""

import hashlib
import json
import shlex
import shutil
import tomllib
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
DIST = ROOT / "dist"
LOCKS = ("requirements.lock", "requirements-dev.lock")
GOLDEN = max((ROOT / "tests" / "golden").glob("format-*"), key=lambda folder: int(folder.name[7:]))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEXTS = ("It will snow in Sapporo tomorrow.", "Rain.")
SMALL = " ".join(f"--set={size}" for size in ("model.d_model=16", "model.d_ff=16", "training.steps=2"))
TRAINING = f"attendo train classification --train labels.tsv --valid labels.tsv --out labels {SMALL}"
COMMANDS = (
    "attendo --version",
    "attendo classify classification Rain.",
    "attendo generate language-model Rain. --temperature 0",
    "attendo embed masked-language-model Rain.",
    "attendo look translation Rain. --out look.html",
    "attendo claims C01",
    TRAINING,
    f"attendo demo --out demo --test 2 {SMALL}",
)
"""What the wheel and requirements.lock alone have to be enough for."""
SERVE = """
import signal, subprocess, urllib.request
command = ["attendo", "serve", "translation", "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    address = server.stdout.readline().strip()
    for path in ("", "livez", "openapi.json"):
        assert urllib.request.urlopen(address + path, timeout=60).status == 200, path
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0
"""
WIDGET = "import attendo; attendo.look(attendo.load('translation'), 'Rain.').widget()"
EXTRAS = {
    "plots": "attendo look translation Rain. --out look.png",
    "data": "attendo score translation pairs.parquet",
    "interop": "attendo export translation exported --to onnx",
    "notebook": f'python -c "{WIDGET}"',
    "tensorboard": f"{TRAINING} --set=training.tensorboard=true",
    "ray": "attendo translate translation --input lines.txt --output out.txt --ray",
    "jax": "attendo errata 21",
    "serve": "attendo serve translation --port 0",
}
"""A command that needs each extra."""
PARQUET = """
import pyarrow, pyarrow.parquet
rows = {"source": ["Rain."], "target": ["Snow."]}
pyarrow.parquet.write_table(pyarrow.table(rows), "pairs.parquet")
"""
nox.options.default_venv_backend = "uv|virtualenv"


def version() -> str:
    """The version of the wheel in dist/."""
    return next(DIST.glob("*.whl")).name.split("-")[1]


def install_core(session: nox.Session) -> None:
    """Installs requirements.lock and the wheel, by its version: a path would stand in the bill of materials."""
    session.install("-r", LOCKS[0])
    session.install("--no-deps", "--no-index", "--force-reinstall", "--find-links", DIST, f"attendo=={version()}")


def enter_files(session: nox.Session) -> None:
    """Changes to an empty folder where no source is near, with the golden runs and small data in it."""
    folder = Path(session.create_tmp()) / "files"
    shutil.rmtree(folder, ignore_errors=True)
    for family in GOLDEN.iterdir():
        shutil.copytree(family / "run", folder / family.name)
    shutil.copy(GOLDEN / "classification" / "data.tsv", folder / "labels.tsv")
    (folder / "lines.txt").write_text("Rain.\nSnow.\n", encoding="utf-8")
    (folder / "pairs.parquet").write_bytes(b"PAR1")
    for name in ("train.tsv", "test.tsv"):
        rows = (f"pos\ta good film, number {n} in {name}\nneg\ta bad film, number {n} in {name}\n" for n in range(300))
        (folder / name).write_text("".join(rows), encoding="utf-8")
    session.chdir(folder)


@nox.session
def build(session: nox.Session) -> None:
    """The wheel and the sdist, in dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    session.install("build==1.6.1", "twine==7.0.0")
    session.run("python", "-m", "build", "--outdir", "dist")
    session.run("twine", "check", "--strict", *DIST.iterdir())
    if f"## [{version()}]" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        session.error(f"CHANGELOG.md has no section [{version()}]")
    if differing := EXTRAS.keys() ^ PROJECT["optional-dependencies"].keys() - {"dev"}:
        session.error(f"declared or tried, but not both: {sorted(differing)}")


@nox.session(python=["3.11", "3.12", "3.13"])
def install(session: nox.Session) -> None:
    """The wheel with requirements.lock alone: golden runs, a page, a claim, a training and the demo."""
    install_core(session)
    enter_files(session)
    wanted = json.loads((GOLDEN / "translation" / "expected.json").read_text(encoding="utf-8"))["answers"]
    said = session.run("attendo", "translate", "translation", *TEXTS, silent=True)
    if "\n".join(wanted[: len(TEXTS)]) not in said:
        session.error(f"attendo translate says {said!r}")
    for command in COMMANDS:
        session.run(*shlex.split(command))


@nox.session
@nox.parametrize("extra", list(EXTRAS), ids=list(EXTRAS))
def extra(session: nox.Session, extra: str) -> None:
    """Without an extra its command names it; with the extra the command works."""
    remedy = f'pip install "attendo[{extra}]"'
    install_core(session)
    enter_files(session)
    if remedy not in session.run(*shlex.split(EXTRAS[extra]), silent=True, success_codes=[1, 2]):
        session.error(f"without the extra {extra} its command does not say: {remedy}")
    session.install("--constraint", ROOT / LOCKS[1], "--find-links", DIST, f"attendo[{extra}]=={version()}")
    if extra == "data":
        session.run("python", "-c", PARQUET)
    command = ("python", "-c", SERVE) if extra == "serve" else shlex.split(EXTRAS[extra])
    # Ray rejects a folder for temporary files inside a virtual environment, which create_tmp sets
    if remedy in session.run(*command, silent=True, env={"TMPDIR": "/tmp"}):
        session.error(f"with the extra {extra} its command still asks for it")


@nox.session
def audit(session: nox.Session) -> None:
    """Known vulnerabilities of what the locks name."""
    session.install("pip-audit==2.10.1")
    for lock in LOCKS:
        session.run("pip-audit", "--strict", "--no-deps", "--disable-pip", "--requirement", lock)


@nox.session
def bill(session: nox.Session) -> None:
    """A bill of materials (CycloneDX) of the first environment that `install` made, and SHA256SUMS."""
    session.install("cyclonedx-bom==7.5.0")
    described = Path(session.create_tmp()) / "pyproject.toml"  # with the version, which is dynamic in the project's own
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    described.write_text(text.replace('dynamic = ["version"]', f'version = "{version()}"'), encoding="utf-8")
    python = next(ROOT.glob(".nox/install-3-*/bin/python"))
    out = DIST / f"attendo-{version()}.cdx.json"
    options = ("--pyproject", described, "--mc-type", "library", "--validate", "--output-file", out)
    session.run("cyclonedx-py", "environment", *options, python)
    if "file://" in (found := out.read_text(encoding="utf-8")) or str(ROOT) in found:
        session.error("the bill of materials names a folder of this machine")
    (DIST / "SHA256SUMS").write_text(sums(DIST), encoding="utf-8")


def sums(folder: Path) -> str:
    """The SHA-256 of a folder's files, as `sha256sum --check` reads them."""
    files = sorted(file for file in folder.iterdir() if file.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
