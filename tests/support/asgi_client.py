"""Asks an ASGI application in this process, message by message, as no HTTP client can."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path

KEY = "a-key-of-the-tests"


@dataclass
class Answer:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    scope: dict = field(repr=False)

    def __getitem__(self, name: str) -> str | None:
        """A header."""
        found = [value.decode() for key, value in self.headers if key.decode() == name]
        assert len(found) <= 1, name
        return found[0] if found else None

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The one line of an error, in either shape."""
        said = self.json["error"]
        line = said if isinstance(said, str) else said["message"]
        assert line.strip()
        assert "\n" not in line
        return line


async def asked(
    app, method, path, headers=None, body=b"", *, parts=None, query=b"", receive=None, sends=None
) -> Answer:
    """parts: the body piece by piece, without a Content-Length; receive: instead of both; sends: takes the answer."""
    given = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    if isinstance(body, dict | list):
        body = json.dumps(body).encode()
        given.append((b"content-type", b"application/json"))
    names = {name for name, _ in given}
    if parts is not None and b"transfer-encoding" not in names:
        given.append((b"transfer-encoding", b"chunked"))
    elif body and b"content-length" not in names:
        given.append((b"content-length", str(len(body)).encode()))
    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"}
    scope |= {
        "method": method,
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": query,
    }
    scope |= {"root_path": "", "scheme": "http", "server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 1)}
    scope |= {"headers": given, "state": {}}
    pieces = list(parts) if parts is not None else [body]
    sent: list[dict] = []

    async def pieces_of_body():
        if not pieces:
            await asyncio.sleep(30)
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message):
        sent.append(message)

    await app(scope, receive or pieces_of_body, sends or send)
    if not sent:
        return Answer(0, [], b"", scope)
    assert sent[0]["type"] == "http.response.start"
    assert not sent[-1].get("more_body")
    joined = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(sent[0]["status"], list(sent[0]["headers"]), joined, scope)


def ask(app, method, path, headers=None, body=b"", **options) -> Answer:
    """The same, in a loop of its own."""
    return asyncio.run(asked(app, method, path, headers, body, **options))


class NoModels:
    """What stands for models where none is asked."""

    def __init__(self, ready=True):
        self.folders, self.ready = {"tiny": Path("tiny")}, ready
        self.swapped: list[str] = []

    def __iter__(self):
        return iter(())

    def named(self, name):
        raise KeyError(name)

    def of_family(self, family):
        return []

    def load(self):
        self.ready = True

    def swap(self, name):
        self.swapped.append(name)

    def stop(self):
        self.ready = False
