"""attendo serve: what it refuses before it listens, and one that runs."""

import http.client
import importlib.util
import os
import shutil
import signal
import socket
import time

import pytest
from asgi_client import KEY
from command_line import attendo, refused
from forked import begun_child
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

from attendo.cli import main
from attendo.errors import install_command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("run"), tiny_translator(tiny_tokenizer(), max_len=24))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "--api-key-file"),
        (["--host", "::"], "--no-key"),
        (["--cors", "example.org"], "https://example.org"),
        (["--cors", "https://example.org/page"], "is not an origin"),
        (["--drain", "0"], "--drain 0"),
        (["--timeout", "inf"], "--timeout inf"),
        (["--watch", "-1"], "--watch -1"),
        (["--max-cost", "0"], "--max-cost"),
        (["--port", "65536"], "--port"),
        (["--host", ""], "--host is empty"),
        (["--bits", "8", "--device", "cuda"], "--bits"),
        (["--log-format", "xml"], "--log-format"),
        (["--host", "no.such.host.invalid", "--no-key"], "--host"),
    ],
)
def test_bad_options_are_refused(folder, options, said):
    assert said in refused("serve", folder, *options)


def test_bad_folders_and_key_files_are_refused(folder, tmp_path):
    assert "DIR" in refused("serve")
    twin = tmp_path / folder.name
    twin.mkdir()
    assert "have the same name" in refused("serve", folder, twin)
    assert "is given twice" in refused("serve", folder, folder)
    (tmp_path / "keys").write_text("# none yet\n", encoding="utf-8")
    assert "no key" in refused("serve", folder, "--api-key-file", tmp_path / "keys")
    assert "cannot read the keys" in refused("serve", folder, "--api-key-file", tmp_path / "missing")
    missing = attendo("serve", tmp_path / "none")
    assert (missing.code, missing.out) == (2, "")
    assert str(tmp_path / "none") in missing.error


def test_without_its_packages_it_says_how_to_get_them(folder, monkeypatch):
    found = importlib.util.find_spec
    missing = lambda name, *more: None if name == "uvicorn" else found(name, *more)  # noqa: E731
    monkeypatch.setattr("attendo.cli.serve.find_spec", missing)
    assert install_command("serve") in refused("serve", folder)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], True),
        (["--host", "127.0.0.1"], True),
        (["--host", "localhost"], True),
        (["--host", "::1"], True),
        (["--host", "0.0.0.0", "--no-key"], False),
        (["--host", "192.168.0.7", "--no-key"], False),
        (["--host", "0.0.0.0", "--no-key", "--examples"], True),
        (["--no-examples"], False),
    ],
)
def test_examples_are_shown_to_this_machine_alone_unless_asked(folder, tmp_path, monkeypatch, options, shown):
    own = shutil.copytree(folder, tmp_path / "own")
    (own / "examples.json").write_text('["It will rain."]', encoding="utf-8")
    served = []
    monkeypatch.setattr("attendo.serving.run.serve", lambda state, *given, **more: served.append(state) or 0)
    monkeypatch.setattr("attendo.cli.serve._left", lambda code: code)  # would end the process of the tests
    assert attendo("serve", own, *options).code == 0
    (state,) = served
    state.models.load()
    assert [model.examples for model in state.models] == [["It will rain."] if shown else []]
    state.models.stop()


def test_it_serves_until_it_is_told_to_stop(folder, tmp_path):
    (tmp_path / "keys").write_text(f"{KEY}\n", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--port", str(port), "--api-key-file", str(tmp_path / "keys"), "--from", "en", "--to", "ja"]
    pid = begun_child(lambda: main(["serve", str(folder), *options]))

    def get(path, headers):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        except ConnectionError:
            return 0, b""
        finally:
            connection.close()

    while get("/readyz", {})[0] != 200:
        time.sleep(0.02)
    assert get("/languages", {})[0] == 401
    status, body = get("/languages", {"Authorization": f"Bearer {KEY}"})
    assert (status, b'"ja"' in body) == (200, True)
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
