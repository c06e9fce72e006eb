"""Make a release in dist/: wheel, sdist, software bill of materials, checksums; and try it in empty environments.

Each interpreter that is here (3.11 to 3.13) gets an environment with requirements.lock and the wheel alone, and each
extra one of its own. Ends with a line for each part, and with 1 where one of them has failed. A part that cannot be
had here is said, and fails unless it is named by --without. Environments are kept in build/release/; torch makes
them large (for Python 3.12 and 3.13 some 5 GB each where only its CUDA build is to be had).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from release_contents import ROOT, build, sdist_faults, wheel_faults
from release_environments import (
    EXTRAS,
    VERSIONS,
    Environment,
    core_faults,
    extra_faults,
    install_core,
    interpreters,
)

from attendo import __version__
from attendo.bundle import FORMAT

DIST, WORK = ROOT / "dist", ROOT / "build" / "release"
GOLDEN = ROOT / "tests" / "golden" / f"format-{FORMAT}"
LOCKS = (ROOT / "requirements.lock", ROOT / "requirements-dev.lock")
TOOLS = ("pip-audit==2.10.1", "cyclonedx-bom==7.5.0")


class Parts:
    """The parts of a release, as they are done: a line for each, and whether one has failed."""

    def __init__(self, without: Iterable[str]) -> None:
        self.without, self.lines, self.failed = set(without), [], False

    def do(self, name: str, faults: Callable[[], Iterable[str]]) -> None:
        """Does a part and says what is wrong with it; what it raises is a fault too."""
        if name in self.without:
            self.lines.append(f"left out  {name}")
            return
        print(f"{name} …", flush=True)
        start = time.monotonic()
        try:
            found = list(faults())
        except subprocess.CalledProcessError as error:
            found = [f"{error}: {(error.stderr or '').strip()[-500:]}"]
        except (OSError, subprocess.TimeoutExpired) as error:
            found = [str(error)]
        self.failed |= bool(found)
        self.lines.append(f"{'FAILED' if found else 'ok':8}  {name} ({time.monotonic() - start:.0f} s)")
        self.lines += [f"          {fault}" for fault in found]


def metadata_faults(wheel: Path) -> Iterator[str]:
    """What is wrong with version, changes and license of what is to be released."""
    version = wheel.name.split("-")[1]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"## [{version}]" not in changes:
        yield f"CHANGELOG.md has no section [{version}]"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].keys() - {"dev"}
    if extras != EXTRAS.keys():
        yield f"extras that are declared and not tried, or the other way round: {sorted(extras ^ EXTRAS.keys())}"


def audit_faults(tools: Environment) -> Iterator[str]:
    """The known vulnerabilities of what the locks name, and what nobody could be asked about."""
    for lock in LOCKS:
        run = tools.run(
            *("-m", "pip_audit", "--requirement", lock, "--no-deps", "--disable-pip", "--format", "json"),
            *("--progress-spinner", "off"),
        )
        if not run.stdout.strip():
            yield f"{lock.name}: {run.stderr.strip()[-300:]}"
            continue
        found = json.loads(run.stdout)["dependencies"]
        for part in found:
            for hole in part.get("vulns", []):
                fixed = ", ".join(hole["fix_versions"]) or "no version"
                yield f"{lock.name}: {part['name']} {part['version']}: {hole['id']}, mended in {fixed}"
        if skipped := [part["name"] for part in found if "skip_reason" in part]:
            yield f"{lock.name}: the index told nothing about {len(skipped)} of {len(found)} packages ({skipped[0]} …)"


def bill_faults(tools: Environment, core: Environment, bill: Path) -> Iterator[str]:
    """Writes the bill of materials of an environment with the wheel and its lock, as valid CycloneDX JSON.

    It is of this system and interpreter, and lists pip beside what the lock names.
    """
    described = tools.elsewhere / "pyproject.toml"  # with the version, which the project's own does not have
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    described.write_text(
        project.replace('dynamic = ["version"]', f'version = "{__version__}"'), encoding="utf-8"
    )
    run = tools.run(
        *("-m", "cyclonedx_py", "environment", "--pyproject", described),
        *("--mc-type", "library", "--validate", "--output-file", bill, core.python),
    )
    if run.returncode:
        yield run.stderr.strip()[-300:]
        return
    found = json.loads(bill.read_text(encoding="utf-8"))
    if found["metadata"]["component"].get("version") != __version__:
        yield "the bill is of no version"
    listed = {part["name"].lower() for part in found["components"]}
    if lost := {"torch", "numpy", "safetensors", "tokenizers"} - listed:
        yield f"the bill lacks {', '.join(sorted(lost))}"
    if "file://" in (text := bill.read_text(encoding="utf-8")) or str(ROOT) in text:
        yield "the bill names a folder of this machine"


def sums(files: Iterable[Path]) -> str:
    """Their SHA-256 as `sha256sum --check` reads them."""
    return "".join(f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in sorted(files))


def release(parts: Parts) -> None:
    """All parts, in order; later ones need the earlier."""
    shutil.rmtree(DIST, ignore_errors=True)
    sdist, wheel = sorted(build(DIST), key=lambda file: file.suffix)
    parts.do("wheel", lambda: wheel_faults(wheel))
    parts.do("sdist", lambda: sdist_faults(sdist))
    parts.do("metadata", lambda: metadata_faults(wheel))
    found = interpreters()
    environments = {version: Environment(WORK / f"python-{version}") for version in VERSIONS}
    for version in VERSIONS:
        if version not in found:
            parts.lines.append(f"not here  python {version}")
            continue
        environment = environments[version]

        def tried(environment: Environment = environment, python: Path = found[version]) -> Iterator[str]:
            install_core(environment, python, LOCKS[0], wheel)
            return core_faults(environment, GOLDEN)

        parts.do(f"python {version}", tried)
    core = environments[next(version for version in VERSIONS if version in found)]
    for name in EXTRAS:
        own = Environment(WORK / f"extra-{name}")
        parts.do(f"extra {name}", lambda n=name, own=own: extra_faults(n, core, own, wheel, LOCKS[1], GOLDEN))
        shutil.rmtree(own.folder, ignore_errors=True)
    tools = Environment(WORK / "tools")
    tools.make(core.python)
    tools.clear_files()
    tools.install(*TOOLS)
    bill = DIST / f"{wheel.name.rsplit('-', 3)[0]}.cdx.json"
    parts.do("audit", lambda: audit_faults(tools))
    parts.do("bill of materials", lambda: bill_faults(tools, core, bill))
    (DIST / "SHA256SUMS").write_text(sums(DIST.iterdir()), encoding="utf-8")


def main() -> int:
    """Makes a release; the exit code says whether all of it is sound."""
    parser = argparse.ArgumentParser(description="Make a release in dist/ and try it in empty environments.")
    parser.add_argument(
        "--without", action="append", default=[], metavar="PART", help="a part to leave out, as audit"
    )
    parts = Parts(parser.parse_args().without)
    WORK.mkdir(parents=True, exist_ok=True)
    release(parts)
    print("\n".join(["", *parts.lines, "", (DIST / "SHA256SUMS").read_text(encoding="utf-8").strip()]))
    return int(parts.failed)


if __name__ == "__main__":
    sys.exit(main())
