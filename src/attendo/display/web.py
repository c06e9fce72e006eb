"""The web pages: their assets as files of a server or joined in one document, with content security policies.

The modules of a page are ES modules in `assets/`. A live page loads each module from its server, under an address with
the version of all assets, so a browser can cache the modules forever. A saved page contains the joined modules.
"""

import base64
import gzip
import hashlib
import html
import json
import os
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from attendo.display.i18n import Language, Localized

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.environment import TemplateModule

FOLDER = "ATTENDO_ASSETS"
"""The environment variable with the folder whose assets are read again for each request, for development."""
STYLES = ("shared/tokens.css", "shared/base.css")
"""The style sheets of all pages."""
ASSET_FOLDERS = ("chat", "label", "look", "serve", "shared")
"""The folders of the scripts and styles that browsers may load."""
FORM_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'"
)
"""The content security policy of a page with HTML forms."""
TYPES = {".js": "text/javascript", ".css": "text/css"}
P = ParamSpec("P")
T = TypeVar("T")
_IMPORT = re.compile(r'^import (?:\{[^}]*\} from )?"([^"]+)";\n', re.M)


@dataclass(frozen=True)
class Served:
    """A response body and its headers. Its ETag and its gzip form are computed once."""

    data: bytes
    headers: Mapping[str, str]

    def response(self, asked: Mapping[str, str]) -> tuple[bytes, int, dict[str, str]]:
        """Return the body, the status and the headers of a response to a request with the headers `asked`."""
        headers = {**self.headers, "etag": self.tag, "vary": "accept-encoding"}
        if self.tag in asked.get("if-none-match", ""):
            return b"", 304, headers
        if "gzip" in asked.get("accept-encoding", ""):
            return self.compressed, 200, headers | {"content-encoding": "gzip"}
        return self.data, 200, headers

    @cached_property
    def tag(self) -> str:
        """The ETag of the body."""
        return f'"{hashlib.sha256(self.data).hexdigest()[:32]}"'

    @cached_property
    def compressed(self) -> bytes:
        """The body in the gzip format."""
        return gzip.compress(self.data, 6, mtime=0)


def _kept(make: Callable[P, T]) -> Callable[P, T]:
    """Return the function with a cache, which is not used during development."""
    cached = lru_cache(maxsize=256)(make)

    @wraps(make)
    def get(*given: P.args, **named: P.kwargs) -> T:
        return (make if os.environ.get(FOLDER) else cached)(*given, **named)

    return get


@_kept
def asset(path: str) -> str:
    """Return an asset as text. `path` is relative to the folder of assets, with slashes."""
    own = os.environ.get(FOLDER)
    return (Path(own) / path if own else files("attendo") / "assets" / path).read_text(encoding="utf-8")


def modules_of(entry: str) -> list[str]:
    """Return the paths of a module and of all modules that it imports, each after the modules that it imports.

    >>> modules_of("serve/main.js")[-1]
    'serve/main.js'
    """
    found: dict[str, None] = {}
    open_: set[str] = set()

    def visit(path: str) -> None:
        if path in found or path in open_:
            return
        open_.add(path)
        for other in _IMPORT.findall(asset(path)):
            visit(posixpath.normpath(posixpath.join(posixpath.dirname(path), other)))
        found[path] = None

    visit(entry)
    return list(found)


def joined(entry: str) -> str:
    """Return a module and all modules that it imports as one script, without imports and exports."""
    modules = (_IMPORT.sub("", asset(path)) for path in modules_of(entry))
    return "".join(re.sub(r"^export ", "", module, flags=re.M) for module in modules)


@_kept
def version() -> str:
    """Return the version of all assets, which is part of their addresses. During development, it is constant."""
    if os.environ.get(FOLDER):
        return "dev"
    digest = hashlib.sha256()
    for folder in ASSET_FOLDERS:
        for entry in sorted((files("attendo") / "assets" / folder).iterdir(), key=lambda file: file.name):
            digest.update(entry.read_bytes())
    return digest.hexdigest()[:16]


@_kept
def served_asset(path: str) -> Served | None:
    """Return an asset for a browser, or None if there is none. `path` is VERSION/FOLDER/NAME.

    >>> served_asset(f"{version()}/look/main.js") is None, served_asset(f"{version()}/../files.py")
    (False, None)
    """
    number, _, name = path.partition("/")
    kind = TYPES.get(Path(name).suffix)
    is_asset = re.fullmatch(rf"({'|'.join(ASSET_FOLDERS)})/[a-z-]+\.\w+", name)
    if number != version() or kind is None or not is_asset:
        return None
    try:
        text = asset(name)
    except FileNotFoundError:
        return None
    keep = "no-store" if os.environ.get(FOLDER) else "public, max-age=31536000, immutable"
    return Served(text.encode(), {"content-type": f"{kind}; charset=utf-8", "cache-control": keep})


def page_of(path: str, language: Language, **values: Any) -> "TemplateModule":
    """Return an HTML page from a template. Values are escaped. Macros of the template are methods that return HTML.

    In a template, `say(english, japanese)` is a text in the language of the page.
    """
    values |= {"language": language, "base": f"assets/{version()}/", "styles": STYLES}
    values["say"] = lambda en, ja: Localized(en, ja).text(language)
    return _templates().get_template(path).make_module(values)


@_kept
def _templates() -> "Environment":
    """Return the reader of templates. An indented line of a template continues the line before it."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    def source(path: str) -> str:
        return re.sub(r"\n +", "", asset(path))

    def escaped(value: Any) -> Markup:
        return value if isinstance(value, Markup) else Markup(html.escape(str(value)))

    loader = FunctionLoader(source)
    return Environment(trim_blocks=True, undefined=StrictUndefined, finalize=escaped, autoescape=True, loader=loader)


def words() -> str:
    """Return the texts of all pages in all languages as JSON."""
    return _json({language: json.loads(asset(f"words/{language}.json")) for language in ("en", "ja")})


@_kept
def live_document(entries: tuple[str, ...], style: str, data: str, language: Language, root: str = "") -> Served:
    """Return a page whose assets are loaded from the server, with its content security policy as header.

    Each script of `entries` runs when all modules that it imports are loaded. `style` is the page's own style sheet,
    and `data` contains the elements with its data. `language` is the language before the page reads the reader's
    choice. `root` is the relative address of the server's root, such as "" or "../../".
    """
    base = f"{root}assets/{version()}/"
    modules = [path for entry in entries for path in modules_of(entry)]
    head = [f'<link rel="stylesheet" href="{base}{path}">' for path in (*STYLES, style)]
    head += [f'<link rel="modulepreload" href="{base}{path}">' for path in dict.fromkeys(modules)]
    script = "".join(f'<script type="module" src="{base}{entry}"></script>' for entry in entries)
    policy = (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src data: blob:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    text = _document("\n".join(head), data + script, language)
    headers = {"content-security-policy": policy, "cache-control": "no-cache"}
    return Served(text.encode(), {**headers, "content-type": "text/html; charset=utf-8"})


def saved_document(entry: str, style: str, data: str, language: Language) -> str:
    """Return a page in one file, which loads nothing. `entry` and `style` are its module and its own style sheet."""
    styles, script = "\n".join(asset(path) for path in (*STYLES, style)), joined(entry)
    policy = (
        f"default-src 'none'; style-src '{hash_of(styles)}'; script-src '{hash_of(script)}'; img-src data: blob:;"
        " connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{styles}</style>'
    return _document(head, f'{data}<script type="module">{script}</script>', language)


def _document(head: str, body: str, language: Language) -> str:
    start, end = asset("page.html").replace("LANGUAGE", language, 1).split("HEAD", 1)
    end, last = end.split("BODY", 1)
    return f"{start}{head}{end}{data_elements({'words': words()})}{body}{last}"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def data_elements(data: Mapping[str, Any]) -> str:
    """Return script elements with JSON, in which "<" is escaped. A text is already JSON.

    >>> data_elements({"facts": {"a": "</script>"}})
    '<script type="application/json" id="facts">{"a":"\\\\u003c/script>"}</script>\\n'
    """
    return "".join(
        f'<script type="application/json" id="{html.escape(name)}">'
        f"{(value if isinstance(value, str) else _json(value)).replace('<', chr(92) + 'u003c')}</script>\n"
        for name, value in data.items()
    )


def hash_of(text: str) -> str:
    """Return the hash with which a content security policy allows a script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
