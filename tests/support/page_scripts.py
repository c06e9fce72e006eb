"""The JavaScript modules and the texts of the pages, read without a browser."""

import json
import re
from importlib.resources import files

from attendo.display.web import ASSET_FOLDERS

ASSETS = files("attendo") / "assets"
DECLARED = re.compile(
    r"^(export )?(?:async )?(?:(?:function\*?|const|let|class) (\w+)|(?:const|let) [\[{]([^\]}]*)[\]}])", re.M
)
IMPORT = re.compile(r'^import (?:\{ *([^}]*?),? *\} from )?"(\.[^"]+)";$', re.M | re.S)


def scripts():
    """The text of each module, by its path in the folder of assets."""
    return {
        f"{folder}/{file.name}": file.read_text(encoding="utf-8")
        for folder in ASSET_FOLDERS
        for file in sorted((ASSETS / folder).iterdir(), key=lambda file: file.name)
        if file.name.endswith(".js")
    }


def declared(text):
    """The names that a module declares at its top level, and whether each name is exported."""
    found = {}
    for export, name, several in DECLARED.findall(text):
        names = [part.split(":")[-1].split("=")[0] for part in several.split(",")]
        found |= {one.strip(): bool(export) for one in ([name] if name else names)}
    return found


def imports_of(path, text):
    """The imports of a module: the path of the imported module, and the imported names."""
    found = []
    for names, source in IMPORT.findall(text):
        parts = path.split("/")[:-1]
        for part in source.split("/"):
            parts = parts[:-1] if part == ".." else parts if part == "." else [*parts, part]
        found.append(("/".join(parts), [name.strip() for name in names.split(",") if name.strip()]))
    return found


def code_of(text):
    """A script without comments and imports."""
    return re.sub(r"(?ms)^import\b.*?;$|/\*.*?\*/|(?<!:)//[^\n]*$", "", text)


def without_texts(code):
    """A script without the texts between double quotes."""
    return re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', code)


def page_texts(language):
    """The texts of the pages in a language. A key that occurs twice raises ValueError."""

    def unique(pairs):
        keys = [key for key, _ in pairs]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise ValueError(f"{language}.json has two texts for {twice}")
        return dict(pairs)

    return json.loads((ASSETS / "words" / f"{language}.json").read_text("utf-8"), object_pairs_hook=unique)
