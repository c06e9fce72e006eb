"""A server around untrained models in memory: an application to ask, of random weights that are always the same."""

import contextlib
import io
import threading
import time
from pathlib import Path

import httpx
import uvicorn
from looked_models import looked_model
from tiny_translator import tiny_tokenizer, tiny_translator

from attendo.inference import Generator, Translator
from attendo.serving.app import create_app
from attendo.serving.engine import Engine
from attendo.serving.monitoring import Log
from attendo.serving.registry import ModelRegistry, ServedModel
from attendo.serving.state import Keys, ServingConfig, State

TOKENIZER = tiny_tokenizer()


class InMemory(ModelRegistry):
    """Models that are there already: (name, user, source, target)."""

    def __init__(self, *given, rows=16):
        super().__init__([])
        for name, user, source, target in given:
            self.put(name, user, source, target, rows)

    def put(self, name, user, source=None, target=None, rows=16):
        """Has it served from now on, as a swap does."""
        old = self._served.get(name)
        if isinstance(user, Translator | Generator):
            user.prepare()
        self.folders[name] = Path(name)
        self._served[name] = ServedModel(
            name, Path(name), user, Engine(user, rows, name), source, target, created=1_700_000_000
        )
        if old is not None:
            old.engine.stop()


def every_family():
    """One model of each family, all of one tokenizer."""
    return (
        ("enja", tiny_translator(TOKENIZER, max_len=60), "en", "ja"),
        ("writer", looked_model("language-model", TOKENIZER.with_chat(), max_len=60), None, None),
        ("rain", looked_model("classification", TOKENIZER, max_len=60), None, None),
        ("mask", looked_model("masked-language-model", TOKENIZER, max_len=60), None, None),
    )


def serving(*models, keys=(), look=False, **limits):
    """A state and its application."""
    state = State(
        InMemory(*(models or every_family())),
        ServingConfig(**limits),
        Keys(keys),
        look=look,
        page=False,
        log=Log(stream=io.StringIO()),
    )
    return state, create_app(state)


def client_of(app, **headers):
    """A client in this process, asynchronous."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000", headers=headers)


@contextlib.contextmanager
def live(app):
    """The application behind a socket of this machine, as clients that know nothing of ASGI ask it; its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not (server.started and server.servers):
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
