"""The web pages: addresses and caching of their assets, live and saved documents, and data that never become HTML."""

import gzip
import json
import re

import pytest

from attendo.display import web

SOME = "shared/dom.js"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of assets with one page, which is read again for each request."""
    folder = tmp_path / "assets"
    for name in ("words", *web.ASSET_FOLDERS):
        (folder / name).mkdir(parents=True)
    for name, text in {
        "page.html": web.asset("page.html"),
        "words/en.json": '{"a":"b"}',
        "words/ja.json": '{"a":"</script><!--"}',
        "shared/tokens.css": ":root{}",
        "shared/base.css": "",
        "shared/dom.js": "export const one = 1;\n",
        "look/look.css": "",
        "look/main.js": 'import { one } from "../shared/dom.js";\nconsole.log(one);\n',
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv(web.FOLDER, str(folder))
    return folder


def served(path):
    found = web.served_asset(f"{web.version()}/{path}")
    assert found is not None
    return found


# ---- assets


@pytest.mark.parametrize(
    ("path", "kind"),
    [(SOME, "text/javascript"), ("shared/base.css", "text/css"), ("look/main.js", "text/javascript")],
)
def test_an_asset_is_compressed_and_cached_forever(path, kind):
    body, status, headers = served(path).response({})
    assert (body.decode(), status) == (web.asset(path), 200)
    assert headers["content-type"] == f"{kind}; charset=utf-8"
    assert headers["cache-control"] == "public, max-age=31536000, immutable"
    assert headers["vary"] == "accept-encoding"
    assert "content-encoding" not in headers
    smaller, status, compressed = served(path).response({"accept-encoding": "br, gzip"})
    assert (gzip.decompress(smaller), status) == (body, 200)
    assert compressed == headers | {"content-encoding": "gzip"}
    assert len(smaller) < len(body)


def test_an_unchanged_response_has_no_body():
    tag = served(SOME).response({})[2]["etag"]
    assert re.fullmatch(r'"[0-9a-f]{32}"', tag)
    assert tag != served("look/main.js").response({})[2]["etag"]
    for asked in (tag, f'"other", W/{tag}'):
        body, status, headers = served(SOME).response({"if-none-match": asked, "accept-encoding": "gzip"})
        assert (body, status, headers["etag"]) == (b"", 304, tag)
        assert "content-encoding" not in headers
    assert served(SOME).response({"if-none-match": '"other"'})[1] == 200


@pytest.mark.parametrize(
    "path",
    [
        "", "0", "0/", "0/shared", "0/shared/", "0/shared/none.js", "0/shared/dom.py", "0/shared/dom.js/",
        "0/shared/dom.js\n", "0/shared/../shared/dom.js", "0/../display/web.py", "0/../assets/shared/dom.js",
        "0/shared/../../bundle.py", "0/shared/..\\dom.js", "0//etc/passwd", "0/shared/DOM.js",
        "0/words/en.json", "0/types/protocol.d.ts", "0/page.html", "shared/dom.js",
    ],
)  # fmt: skip
def test_other_paths_are_no_assets(path):
    assert web.served_asset(path) is None


@pytest.mark.parametrize("name", ["shared/dom.js", "shared/base.css", "look/main.js", "serve/new.js"])
def test_the_version_changes_with_each_asset(folder, monkeypatch, name):
    monkeypatch.delenv(web.FOLDER)
    monkeypatch.setattr(web, "files", lambda package: folder.parent)
    versions = []
    for text in ("", "a", "b"):
        (folder / name).write_text(text, encoding="utf-8")
        versions.append(web.version.__wrapped__())
    assert len(set(versions)) == 3
    assert all(re.fullmatch("[0-9a-f]{16}", version) for version in versions)


def test_a_folder_for_development_is_read_again(folder):
    assert web.version() == "dev"
    assert served(SOME).data == b"export const one = 1;\n"
    assert served(SOME).headers["cache-control"] == "no-store"
    (folder / SOME).write_text("export const one = 2;\n", encoding="utf-8")
    assert served(SOME).data == b"export const one = 2;\n"
    assert "const one = 2;" in web.joined("look/main.js")
    (folder / SOME).unlink()
    assert web.served_asset(f"dev/{SOME}") is None


# ---- modules


def test_modules_are_joined_after_the_modules_that_they_import(folder):
    (folder / "look" / "a.js").write_text('import { b } from "./b.js";\nexport const a = () => b;\n')
    (folder / "look" / "b.js").write_text(
        'import {\n  a,\n} from "./a.js";\nimport "../shared/dom.js";\nexport async function b() {\n  return a;\n}\n'
    )
    (folder / "look" / "main.js").write_text('import { a } from "./a.js";\na();\n')
    assert web.modules_of("look/main.js") == ["shared/dom.js", "look/b.js", "look/a.js", "look/main.js"]
    assert web.joined("look/main.js") == (
        "const one = 1;\nasync function b() {\n  return a;\n}\nconst a = () => b;\na();\n"
    )


# ---- documents


def test_a_live_page_loads_its_assets_from_its_server(folder):
    page = web.live_document(("look/main.js",), "look/look.css", web.data_elements({"facts": {"a": 1}}), "ja", "../")
    text = page.data.decode()
    assert re.findall(r'<link rel="(\w+)" href="([^"]+)">', text) == [
        ("icon", "data:,"),
        ("stylesheet", "../assets/dev/shared/tokens.css"),
        ("stylesheet", "../assets/dev/shared/base.css"),
        ("stylesheet", "../assets/dev/look/look.css"),
        ("modulepreload", "../assets/dev/shared/dom.js"),
        ("modulepreload", "../assets/dev/look/main.js"),
    ]
    assert '<html lang="ja">' in text
    assert '<script type="module" src="../assets/dev/look/main.js"></script>' in text
    policy = page.headers["content-security-policy"]
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= set(
        policy.split("; ")
    )
    assert page.headers["cache-control"] == "no-cache"
    assert page.response({"if-none-match": page.response({})[2]["etag"]})[1] == 304


def test_a_saved_page_allows_only_its_own_script_and_style(folder):
    text = web.saved_document("look/main.js", "look/look.css", "", "en")
    policy = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">', text)[0]
    style, script = re.findall(r'<style>(.*?)</style>.*<script type="module">(.*?)</script>', text, re.S)[0]
    assert script == "const one = 1;\nconsole.log(one);\n"
    for part in (
        f"script-src '{web.hash_of(script)}'",
        f"style-src '{web.hash_of(style)}'",
        "connect-src 'none'",
    ):
        assert part in policy.split("; ")
    assert "http:" not in text
    assert "src=" not in text


@pytest.mark.parametrize("value", ["</script><script>harm()</script>", "<!--<script>", "HEAD", "BODY", "LANGUAGE"])
def test_data_never_become_html(folder, value):
    (folder / "words" / "en.json").write_text(json.dumps({"a": value}), encoding="utf-8")
    data = {"answers": {value: [value]}}
    for text in (
        web.live_document(("look/main.js",), "look/look.css", web.data_elements(data), "en").data.decode(),
        web.saved_document("look/main.js", "look/look.css", web.data_elements(data), "en"),
    ):
        found = dict(re.findall(r'<script type="application/json" id="(\w+)">(.*?)</script>', text))
        assert json.loads(found["answers"]) == data["answers"]
        assert json.loads(found["words"])["en"] == {"a": value}
        assert "<" not in found["answers"] + found["words"]
        assert len(re.findall("<script", text)) == len(re.findall("</script", text)) == 3
        assert "<!--" not in text


def test_the_id_of_data_is_escaped_and_non_finite_numbers_are_rejected():
    assert web.data_elements({'a"><b': "1"}).startswith('<script type="application/json" id="a&quot;&gt;&lt;b">1<')
    with pytest.raises(ValueError, match="JSON"):
        web.data_elements({"a": float("nan")})
