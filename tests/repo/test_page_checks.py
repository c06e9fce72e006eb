"""The checks of the pages' JavaScript: they run with Node.js, and otherwise one line says how to get them."""

import doctest
import os
import shutil
import subprocess
from pathlib import Path

import page_types
import pytest

WEB = Path(__file__).resolve().parents[2] / "tools" / "web"
INSTALLED = """#!/bin/sh
echo "npm $@" >> "{log}"
mkdir -p tools/web/node_modules/.bin
for tool in eslint tsc; do
    printf '#!/bin/sh\\necho "%s $@" >> "{log}"\\n' $tool > tools/web/node_modules/.bin/$tool
    chmod +x tools/web/node_modules/.bin/$tool
done
"""
"""An npm that installs tools which write down their arguments."""
OFFLINE = "#!/bin/sh\necho 'npm error code ENOTFOUND\nnpm error syscall getaddrinfo' >&2\nexit 1\n"
OTHER_LOCK = "#!/bin/sh\necho 'npm error code EUSAGE' >&2\nexit 1\n"
RUN = "run: make lint"


@pytest.fixture
def checked(tmp_path):
    """Run check.sh of a copy of tools/web, with other programs in place of node and npm: (status, output, error)."""
    copy, programs = tmp_path / "tools" / "web", tmp_path / "programs"
    shutil.copytree(WEB, copy, ignore=shutil.ignore_patterns("node_modules"))
    programs.mkdir()
    for name in ("sh", "cat", "cksum", "sed", "head", "mkdir", "chmod"):
        (programs / name).symlink_to(shutil.which(name) or "")

    def run(npm: str | None, node: str = "exit 0", **variables: str) -> tuple[int, str, str]:
        for name, text in (("npm", npm), ("node", f"#!/bin/sh\n{node}\n")):
            if text is not None:
                (programs / name).write_text(text.replace("{log}", str(tmp_path / "log")))
                (programs / name).chmod(0o755)
        others = {name: value for name, value in os.environ.items() if name != "CI"}
        environment = others | {"PATH": str(programs)} | variables
        command = ["sh", str(copy / "check.sh")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    return run


def test_the_tools_are_installed_once_and_run(checked, tmp_path):
    assert checked(INSTALLED)[::2] == (0, "")
    assert checked(INSTALLED) == (0, "", "")
    install, *checks = (tmp_path / "log").read_text().splitlines()
    assert install.startswith("npm ci --prefix tools/web ")
    assert checks == ["eslint --config tools/web/eslint.config.js src/attendo/assets", "tsc --project tools/web"] * 2
    (tmp_path / "tools" / "web" / "package-lock.json").write_text("{}")
    checked(INSTALLED)
    assert (tmp_path / "log").read_text().count("npm ci") == 2


@pytest.mark.parametrize("failing", ["eslint", "tsc"])
def test_a_finding_is_a_failure(checked, tmp_path, failing):
    checked(INSTALLED)
    (tmp_path / "tools" / "web" / "node_modules" / ".bin" / failing).write_text("#!/bin/sh\nexit 2\n")
    assert checked(INSTALLED)[0] == 2


@pytest.mark.parametrize("ci", ["", "true"])
@pytest.mark.parametrize(("npm", "node"), [(None, "exit 0"), (INSTALLED, "exit 1")])
def test_without_a_suitable_node_the_checks_are_skipped(checked, npm, node, ci):
    status, said, problem = checked(npm, node, CI=ci)
    assert (status, problem) == (0, "")
    assert said.startswith("pages: not checked. Install Node.js")
    assert said.endswith(f"{RUN}\n")
    assert said.count("\n") == 1


def test_without_the_registry_the_checks_are_skipped_but_fail_in_ci(checked):
    status, said, problem = checked(OFFLINE)
    assert (status, problem) == (0, "")
    assert "npm could not install eslint and tsc (ENOTFOUND)" in said.splitlines()[-1]
    assert said.endswith(f"{RUN}\n")
    status, said, problem = checked(OFFLINE, CI="true")
    assert status == 1
    assert problem.startswith("error: npm could not install eslint and tsc (ENOTFOUND)")
    assert problem.count("\n") == 1


def test_another_lock_file_is_an_error(checked):
    status, _, problem = checked(OTHER_LOCK)
    assert (status, problem.startswith("error: tools/web/package-lock.json does not match")) == (1, True)


# ---- types of the answers


def test_the_types_of_the_pages_are_those_of_the_protocol(capsys):
    assert page_types.main(["--check"]) == 0, capsys.readouterr().out


def test_types_that_differ_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page_types, "OUT", tmp_path / "types" / "protocol.d.ts")
    assert page_types.main(["--check"]) == 1
    assert page_types.main([]) == page_types.main(["--check"]) == 0
    page_types.OUT.write_text("", encoding="utf-8")
    assert page_types.main(["--check"]) == 1
    assert capsys.readouterr().out.count("run: make docs\n") == 2


def test_examples_run():
    assert doctest.testmod(page_types).failed == 0
