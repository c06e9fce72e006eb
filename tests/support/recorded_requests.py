"""Sends 1,000 requests, good and bad, to a server of untrained models and stores or compares the answers.

    python tests/support/recorded_requests.py record FILE
    python tests/support/recorded_requests.py compare FILE

Record before a change of the server that must not change its answers, and compare after it.
"""

import asyncio
import base64
import json
import re
import sys
from pathlib import Path
from urllib.parse import urlencode

from asgi_client import KEY, asked
from served_models import serving

from attendo.serving.app import create_app

JSON, FORM, PARTS = "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"
HEADERS = (
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
    "access-control-expose-headers",
    "access-control-max-age",
    "allow",
    "cache-control",
    "connection",
    "content-security-policy",
    "content-type",
    "location",
    "retry-after",
    "vary",
    "www-authenticate",
    "x-content-type-options",
    "x-frame-options",
    "x-request-id",
)
BODIES = {
    "/translate": {"q": "It will rain.", "source": "en", "target": "ja", "alternatives": 1, "beam": 2},
    "/detect": {"q": "It will rain."},
    "/v1/completions": {
        "model": "writer",
        "prompt": "It will",
        "max_tokens": 5,
        "temperature": 0.0,
        "seed": 3,
        "logprobs": 2,
    },
    "/v1/embeddings": {"model": "rain", "input": "It will rain."},
    "/classify": {"text": "It will rain.", "model": "rain"},
    "/tokenize": {"text": "It will rain 雪.", "model": "enja"},
    "/detokenize": {"ids": [5, 6, 7], "model": "enja"},
    "/score": {"source": "It will rain.", "target": "雪", "top": 2, "length_penalty": 0.5},
    "/look/enja/api/model": {},
}
MORE = {
    "/translate": [
        {"q": ["Rain.", "Snow. Fog."], "source": "auto", "target": "ja"},
        {"q": "Rain. Snow.", "model": "enja", "details": True, "segment": "paragraph"},
        {"q": ["Rain", "Snow"], "model": "enja", "prefix": ["雪", ""]},
        {"q": "", "model": "enja"},
        {"q": "Rain", "source": "de", "target": "ja"},
        {"q": "Rain", "source": "en", "target": "de"},
        {"q": "Rain", "model": "writer"},
        {"q": "Rain", "model": "enja", "format": "html"},
        {"q": "Rain", "model": "enja", "alternatives": 99},
        {"q": ["x"] * 9, "model": "enja"},
        {"q": "x" * 2001, "model": "enja"},
        {"q": "\ud800 rain", "model": "enja"},
    ],
    "/v1/completions": [
        {"model": "writer", "prompt": ["It", "will"], "n": 2, "seed": 1, "max_tokens": 4, "echo": True},
        {"model": "writer", "prompt": [4, 5], "echo": True, "logprobs": 3, "max_tokens": 0},
        {"model": "writer", "prompt": "It", "stream": True, "max_tokens": 6, "seed": 2, "logprobs": 0},
        {
            "model": "writer",
            "prompt": "It",
            "stream": True,
            "stream_options": {"include_usage": True},
            "seed": 0,
        },
        {"model": "enja", "prompt": "It will rain.", "stream": True},
        {"model": "enja", "prompt": ["It will rain.", "Snow"], "n": 2},
        {"model": "enja", "prompt": "It", "temperature": 1},
        {"model": "enja", "prompt": "It", "stream": True, "n": 2},
        {"model": "writer", "prompt": "It", "suffix": "x"},
        {"model": "writer", "prompt": "It", "best_of": 3},
        {"model": "writer", "prompt": "It", "logit_bias": {"1": 2}},
        {"model": "writer", "prompt": "It", "stop": ["a", "b"], "seed": 5, "max_tokens": 8},
        {"model": "writer", "prompt": "It", "stream": True, "max_tokens": 10**6},
        {"prompt": "It"},
        {},
    ],
    "/v1/embeddings": [
        {"model": "mask", "input": ["Rain", "Snow"], "encoding_format": "base64"},
        {"model": "enja", "input": [[4, 5], [6]]},
        {"model": "enja", "input": "Rain", "dimensions": 3},
    ],
    "/classify": [{"texts": ["Rain", "", "Snow"]}, {"text": "a", "texts": ["b"]}, {}],
    "/score": [
        {"pairs": [{"source": "Rain", "target": "雪"}, {"source": "a", "target": ""}]},
        {"texts": ["Rain", "It will snow"], "top": 1},
        {"text": "Rain", "source": "x"},
        {"text": ""},
    ],
}
ROUTES = (
    "/",
    "/livez",
    "/readyz",
    "/health",
    "/metrics",
    "/openapi.json",
    "/languages",
    "/frontend/settings",
)
ROUTES += ("/v1/models", "/v1/models/enja", "/v1/models/none", "/look/enja", "/look/enja/", "/look/none/")
ROUTES += ("/nothing", "/v1/nothing", "/livez/", "/look/none/api/model", *BODIES)
WRONG = (None, "x", "", -1, 0, 1.5, 3.0, 10**12, True, [], ["x", 1], {}, "\ud83d\ude00")


def multipart(fields, boundary="x"):
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    return ("".join(parts) + f"--{boundary}--\r\n").encode()


def bodies():
    """(path, headers, body) of requests that are let in."""
    for path, good in BODIES.items():
        yield path, {}, good
        yield from ((path, {}, body) for body in MORE.get(path, ()))
        for name in good:
            yield path, {}, {key: value for key, value in good.items() if key != name}
            yield from ((path, {}, good | {name: value}) for value in WRONG)
        yield path, {}, good | {"modle": "x", "extra": 1}
        for data in (b"", b"{", b"[1]", b"null", b"\xff{}", b"[" * 300, b'{"q": NaN}', b'{"q": "\\ud800"}'):
            yield path, {"Content-Type": JSON}, data
        data = json.dumps(good).encode()
        for kind in (
            "",
            "text/plain",
            "application/json; charset=utf-8",
            "APPLICATION/JSON",
            FORM,
            PARTS,
            "x/y",
        ):
            yield path, {"Content-Type": kind}, data
        for seconds in ("2.5", "0", "-1", "nan", "x", "1e9", ""):
            yield path, {"X-Request-Timeout": seconds}, good
    yield from forms()


def forms():
    """Requests to the routes that also read forms."""
    fields = {"q": "It will rain.", "source": "en", "target": "ja"}
    asked = [fields, fields | {"alternatives": "2"}, fields | {"alternatives": "x"}, fields | {"beam": "1.5"}]
    asked += [fields | {"details": "true"}, fields | {"details": "yes"}, {"q": "雪 & rain"}, {"source": "en"}]
    asked += [fields | {"api_key": "", "unknown": "1"}, fields | {"q": ""}, {}, fields | {"q": "雪\r\nx"}]
    for path in ("/translate", "/detect"):
        for each in asked:
            yield path, {"Content-Type": FORM}, urlencode(each).encode()
            yield path, {"Content-Type": PARTS}, multipart(each)
    good = multipart(fields)
    for kind in (
        "multipart/form-data",
        'multipart/form-data; boundary="x"',
        f"{PARTS}y",
        PARTS.replace("x", "x" * 99),
    ):
        yield "/translate", {"Content-Type": kind}, good
    for data in (
        b"",
        b"--x--",
        good[:40],
        good.replace(b"rain", b"\xff"),
        b"--x\r\nA: form-data; q\r\n--x--",
    ):
        yield "/translate", {"Content-Type": PARTS}, data
    many = {f"f{number}": "x" for number in range(1100)}
    for each in (b"\xff=1", b"q=%ff&source=en&target=ja", b"q=a&q=b&source=en&target=ja", b"&&&", b"q"):
        yield "/translate", {"Content-Type": FORM}, each
    yield "/translate", {"Content-Type": FORM}, urlencode(many | fields).encode()
    yield "/translate", {"Content-Type": FORM}, urlencode(fields | {"q": "rain. " * 300}).encode()
    file = good.replace(b'name="q"', b'name="q"; filename="a.txt"')
    yield "/translate", {"Content-Type": PARTS}, file


def senders():
    """(app, method, path, headers, body) of requests whose sender matters."""
    bearer = {"Authorization": f"Bearer {KEY}"}
    for path in ROUTES:
        for method in ("GET", "POST", "HEAD", "PUT", "OPTIONS"):
            yield "open", method, path, {}, b""
        for headers in ({}, bearer, {"X-Api-Key": "wrong"}):
            yield "keyed", "GET", path, headers, b""
    for path in ("/translate", "/detect", "/classify"):
        for key in (KEY, "wrong"):
            fields = {"q": "Rain", "source": "en", "target": "ja", "api_key": key}
            yield "keyed", "POST", path, {}, fields
            yield "keyed", "POST", path, {"Content-Type": FORM}, urlencode(fields).encode()
            yield "keyed", "POST", path, {"Content-Type": PARTS}, multipart(fields)
    text = {"text": "rain"}
    for origin in ("https://a.org", "https://b.org", "null", "http://127.0.0.1:8000"):
        for site in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-origin"}):
            headers = {"Origin": origin, "Host": "127.0.0.1:8000"} | site
            preflight = headers | {"Access-Control-Request-Method": "POST"}
            preflight |= {"Access-Control-Request-Headers": "content-type, authorization"}
            for app in ("open", "keyed", "any"):
                yield app, "GET", "/livez", headers, b""
                yield app, "POST", "/tokenize", headers, text | {"model": "enja"}
                yield app, "OPTIONS", "/tokenize", preflight, b""
                yield app, "OPTIONS", "/tokenize", headers, b""
    for host in (
        "localhost:8000",
        "LOCALHOST",
        "[::1]:9",
        "evil.org",
        "",
        "127.0.0.1.evil.org",
        "localhost:x",
    ):
        yield "local", "GET", "/livez", {"Host": host}, b""
        yield "local", "POST", "/translate", {"Host": host, "Origin": f"http://{host}"}, BODIES["/translate"]
    yield "local", "GET", "/livez", {}, b""
    yield "open", "POST", "/tokenize", {"Content-Length": "9" * 30}, b"x"
    yield "open", "POST", "/tokenize", {"Content-Type": JSON}, b'"' + b"x" * 20_000 + b'"'


def applications():
    """Servers by name, each with its own senders."""
    made = {}
    options = {
        "open": {"page": True},
        "keyed": {"cors": ("https://a.org",)},
        "any": {"cors": ("*",)},
        "local": {"hosts": frozenset({"127.0.0.1", "localhost", "[::1]"})},
    }
    for name, changes in options.items():
        keys = [KEY] if name == "keyed" else ()
        state, _ = serving(
            keys=keys,
            look=True,
            max_tokens=30,
            max_characters=2000,
            max_texts=8,
            max_body=20_000,
            timeout=20.0,
        )
        for field, value in changes.items():
            setattr(state, field, value)
        made[name] = create_app(state)
    return made


def plain(path, body):
    """A body without times and ids that differ in each run."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return base64.b64encode(body).decode()
    text = re.sub(r'"created": ?\d+', '"created": 0', re.sub("cmpl-[0-9a-f]{24}", "cmpl-0", text))
    if path == "/metrics":
        return sorted(
            {line.split()[0] for line in text.splitlines() if "attendo_" in line and line[0] != "#"}
        )
    return json.loads(text) if path == "/openapi.json" and text.startswith("{") else text


async def answers():
    apps = applications()
    cases = [("open", "POST", *case) for case in bodies()] + list(senders())
    found = []
    for number, (name, method, path, headers, body) in enumerate(cases):
        answer = await asked(apps[name], method, path, {"X-Request-Id": f"id-{number}"} | headers, body)
        headers_of = {key.decode(): value.decode() for key, value in answer.headers}
        kept = {key: sorted(value.split(", ")) for key, value in headers_of.items() if key in HEADERS}
        case = [name, method, path, headers, repr(body)[:300]]
        found.append(
            {"case": case, "status": answer.status, "headers": kept, "body": plain(path, answer.body)}
        )
    return found


def main():
    found = asyncio.run(answers())
    file = Path(sys.argv[2])
    if sys.argv[1] == "record":
        file.write_text(json.dumps(found, indent=1))
        sys.stdout.write(f"{len(found)} answers stored\n")
        return 0
    before = json.loads(file.read_text())
    assert [one["case"] for one in before] == [one["case"] for one in found]
    different = 0
    for old, new in zip(before, found, strict=True):
        for part in ("status", "headers", "body"):
            if old[part] != new[part]:
                different += 1
                texts = (*old["case"], f"{part}:", str(old[part])[:2000], "->", str(new[part])[:2000])
                sys.stdout.write("\n    ".join(map(str, texts)) + "\n")
    sys.stdout.write(f"{len(found)} answers, {different} differences\n")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
