"""The tool that makes a release: what it finds wrong, and that it says so. `make release` itself takes half an hour."""

import hashlib
import json
import subprocess
import sys

import release
import release_environments
from release_environments import interpreters

from attendo import __version__


class Told:
    """An environment whose commands print what they are told to."""

    def __init__(self, *answers, code=0):
        self.answers, self.code = list(answers), code

    def run(self, *arguments):
        return subprocess.CompletedProcess(arguments, self.code, self.answers.pop(0), "no network\n")


def audited(*parts):
    return json.dumps({"dependencies": list(parts), "fixes": []})


def test_an_audit_names_holes_and_what_nobody_could_be_asked_about():
    hole = {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
    sound = {"name": "b", "version": "1", "vulns": []}
    unknown = {"name": "c", "skip_reason": "not found"}
    assert list(release.audit_faults(Told(audited(sound), audited(sound)))) == []
    assert list(release.audit_faults(Told(audited(hole, sound), audited(sound, unknown)))) == [
        "requirements.lock: a 1: PYSEC-1, mended in 2",
        "requirements-dev.lock: the index told nothing about 1 of 2 packages (c …)",
    ]
    assert list(release.audit_faults(Told("", audited(sound)))) == ["requirements.lock: no network"]


def test_a_part_that_fails_is_said_and_the_others_go_on(capsys):
    parts = release.Parts(without=["audit"])

    def broken():
        raise subprocess.CalledProcessError(1, "pip", stderr="no such package")

    parts.do("good", list)
    parts.do("bad", lambda: ["it lacks a file"])
    parts.do("broken", broken)
    parts.do("audit", broken)
    assert parts.failed
    assert [line.partition(" (")[0].split() for line in parts.lines] == [
        ["ok", "good"],
        ["FAILED", "bad"],
        ["it", "lacks", "a", "file"],
        ["FAILED", "broken"],
        ["Command", "'pip'", "returned", "non-zero", "exit", "status", "1.:", "no", "such", "package"],
        ["left", "out", "audit"],
    ]


def test_checksums_are_as_sha256sum_reads_them(tmp_path):
    for name in ("b.whl", "a.tar.gz"):
        (tmp_path / name).write_text(name)
    lines = release.sums(tmp_path.iterdir()).splitlines()
    assert [line.split("  ")[1] for line in lines] == ["a.tar.gz", "b.whl"]
    assert lines[1].startswith(hashlib.sha256(b"b.whl").hexdigest() + "  ")


def test_this_version_has_its_changes_and_every_extra_is_tried(tmp_path):
    assert list(release.metadata_faults(tmp_path / f"attendo-{__version__}-py3-none-any.whl")) == []
    (fault,) = release.metadata_faults(tmp_path / "attendo-9.9.9-py3-none-any.whl")
    assert fault == "CHANGELOG.md has no section [9.9.9]"


def test_only_interpreters_that_run_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(release_environments.Path, "home", lambda: tmp_path)
    version = "{}.{}".format(*sys.version_info)
    others = [name for name in release_environments.VERSIONS if name != version]
    for name, words in ((version, f'exec {sys.executable} "$@"'), (others[0], "exit 127")):
        (tmp_path / f"python{name}").write_text(f"#!/bin/sh\n{words}\n")
        (tmp_path / f"python{name}").chmod(0o755)
    assert interpreters() == {version: tmp_path / f"python{version}"}
