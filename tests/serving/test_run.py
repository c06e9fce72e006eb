"""The server as a process: it listens, loads, swaps models, drains and leaves."""

import io
import json
import os
import shutil
import signal
import socket
import time

import pytest
import torch
from asgi_client import NoModels
from served_process import Server
from tiny_generators import generator_of
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

from attendo.errors import AttendoError
from attendo.serving import run
from attendo.serving.app import State
from attendo.serving.monitoring import Log
from attendo.serving.registry import ModelRegistry, Reloading

TOKENIZER = tiny_tokenizer()


# ---- start and end


def worked_on(server):
    """A connection whose request does not come to its end."""
    server.until_ready()
    connection = server.connection()
    connection.request("GET", "/test/slow?seconds=60")
    server.until_working(1)
    return connection


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_drains(tmp_path, number):
    with Server(tmp_path) as server:
        server.until_ready()
        stream, slow, kept = server.connection(), server.connection(), server.connection()
        kept.request("GET", "/livez")
        kept.getresponse().read()
        stream.request("GET", "/test/stream?seconds=1")
        slow.request("GET", "/test/slow?seconds=1")
        streamed = stream.getresponse()
        first = streamed.read(2)
        server.until_working(2)
        server.signal(number)
        server.until_event("draining")
        assert server.get("/readyz")[0] == 503
        assert server.get("/livez")[0] == 200
        kept.request("GET", "/test/slow?seconds=0")
        refused = kept.getresponse()
        heads = (refused.headers["Retry-After"], refused.headers["Connection"])
        assert (refused.status, *heads) == (503, "5", "close")
        assert slow.getresponse().read() == b"done"
        assert first + streamed.read() == b"0 1 2 3 4 5 6 7 8 9 "
        assert server.ended() == 0
    (draining,) = server.events("draining")
    assert draining["working"] == 2
    served = {line["route"] for line in server.events("request") if line["status"] == 200}
    assert served >= {"/test/stream", "/test/slow"}


def test_the_drain_has_an_end(tmp_path):
    with Server(tmp_path, drain=0.2) as server:
        connection = worked_on(server)
        server.signal(signal.SIGTERM)
        assert server.ended() == 1
        cut = connection.getresponse()
        assert (cut.status, cut.headers["Retry-After"]) == (503, "5")
    assert [line["status"] for line in server.events("request") if line["route"] == "/test/slow"] == [503]
    assert [line["cut_off"] for line in server.events("stopped")] == [1]
    assert "Traceback" not in server.log_file.read_text(encoding="utf-8")


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(tmp_path, second):
    with Server(tmp_path) as server:
        worked_on(server)
        server.signal(signal.SIGTERM)
        server.until_event("draining")
        server.signal(second)
        assert server.ended() == -second


def test_it_listens_while_it_loads(tmp_path):
    class Loading(NoModels):
        def load(self):
            time.sleep(0.3)
            super().load()

    with Server(tmp_path, Loading(ready=False)) as server:
        assert server.get("/livez")[0] == 200
        status, body = server.get("/readyz")
        assert (status, "loading" in json.loads(body)["error"]) == (503, True)
        assert server.get("/test/slow?seconds=0")[0] == 503
        assert not server.events("told ready")
        server.until_ready()
        server.until_event("told ready")
        assert server.events("told ready")[0]["address"] == server.address
        assert server.get("/test/slow?seconds=0") == (200, b"done")


def test_a_signal_ends_it_while_it_loads(tmp_path):
    class Loading(NoModels):
        def load(self):
            time.sleep(60)

    with Server(tmp_path, Loading(ready=False)) as server:
        server.get("/livez")
        server.signal(signal.SIGTERM)
        assert server.ended() == 0


def test_a_folder_that_is_no_model_ends_it(tmp_path):
    with Server(tmp_path, ModelRegistry([tmp_path / "none"])) as server:
        assert server.ended() == 2


def test_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rf"^port {port} is in use\. Choose another with `port` \(0: any free port\)$"
        with pytest.raises(AttendoError, match=said):
            run.serve(State(NoModels()), port=port)


def test_a_host_that_cannot_be_had():
    said = r"^cannot listen on 192\.0\.2\.1, port 0 \([^()]+\). Choose others with"
    with pytest.raises(AttendoError, match=said):
        run.serve(State(NoModels()), host="192.0.2.1", port=0)  # an address of no machine (RFC 5737)


def test_the_cache_of_a_served_language_model_has_the_given_bits(tmp_path):
    generator = generator_of("character")
    generator.model.float()
    folder = save_run(tmp_path / "run", generator, "language-model")
    models = ModelRegistry([folder], cache_bits=8)
    models.load()
    reader = models.named("run").user.reader()
    assert reader.start(1, 4).cache.dtype == torch.uint8


# ---- models that change


def test_a_model_is_swapped_when_its_files_have_changed(tmp_path):
    folder = save_run(tmp_path / "run", tiny_translator(TOKENIZER, seed=0, max_len=24))
    other = save_run(tmp_path / "other", tiny_translator(TOKENIZER, seed=1, max_len=24))
    models, log = ModelRegistry([folder]), Log("json", io.StringIO())
    state = State(models, log=log)
    reloading = Reloading(state)
    reloading.load()
    first = models.named("run")
    assert reloading.look_again() == []
    assert models.named("run") is first
    weights = other / "model.safetensors"
    os.replace(shutil.copy(weights, tmp_path / "new"), folder / "model.safetensors")  # noqa: PTH105
    assert reloading.look_again() == ["run"]
    second = models.named("run")
    assert second is not first
    first.engine.join(10)

    (folder / "model.safetensors").write_bytes(b"damaged")
    tries = [reloading.look_again(watching=True), reloading.look_again(watching=True), reloading.look_again()]
    assert tries == [[], [], []]
    assert models.named("run") is second
    kept = [json.loads(line) for line in log.stream.getvalue().splitlines()][2:]
    assert [line["event"] for line in kept] == ["kept"] * 2  # the second look, which watched, left it alone
    assert all("model.safetensors" in line["why"] for line in kept)
    os.replace(weights, folder / "model.safetensors")  # noqa: PTH105
    assert reloading.look_again(watching=True) == ["run"]
    models.stop()
    counts = state.metrics.text().decode().splitlines()
    for line in ('{model="run",outcome="kept"} 2.0', '{model="run",outcome="swapped"} 2.0'):
        assert f"attendo_model_swaps_total{line}" in counts
    assert abs(state.loaded["run"] - time.time()) < 600


def test_sighup_and_watching_look_again(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    weights = folder / "model.safetensors"
    weights.write_bytes(b"1")
    models = NoModels()
    models.folders = {"run": folder}
    with Server(tmp_path, models) as server:
        server.until_event("ready")
        weights.write_bytes(b"22")
        server.signal(signal.SIGHUP)
        server.until_event("swapped")
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
    with Server(tmp_path, models, watch=0.02) as server:
        server.until_event("ready")
        weights.write_bytes(b"333")
        server.until_event("swapped")
        time.sleep(0.1)
        assert len(server.events("swapped")) == 1
