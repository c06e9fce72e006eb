"""The JavaScript modules of the pages: their imports, their order in a saved page, and their texts."""

import re

import pytest
from page_scripts import code_of, declared, imports_of, page_texts, scripts, without_texts

from attendo.display.web import joined, modules_of

ENTRIES = ("chat/copy.js", "label/keys.js", "look/main.js", "serve/main.js")
LANGUAGES = ("en", "ja")
TERMS = "shared/sheet.js"
"""The module whose function `term(name)` shows the texts "term-NAME" and "about-NAME"."""
SCRIPTS = scripts()
NAMES = {path: declared(text) for path, text in SCRIPTS.items()}
IMPORTS = {path: imports_of(path, text) for path, text in SCRIPTS.items()}
CODE = {path: code_of(text) for path, text in SCRIPTS.items()}


def nothing(found):
    """Fail with all findings if there are any, one per line."""
    lines = sorted(found)
    assert not lines, "\n" + "\n".join(lines)


# ---- modules


def test_no_module_is_long():
    nothing(f"{path} has more than 400 lines" for path, text in SCRIPTS.items() if text.count("\n") > 400)


def test_imported_names_are_exported_and_exported_names_are_imported():
    imported = {(source, name) for found in IMPORTS.values() for source, names in found for name in names}
    exported = {(path, name) for path, names in NAMES.items() for name, is_exported in names.items() if is_exported}
    nothing(f"{path} does not export {name}" for path, name in imported - exported)
    nothing(f"no module imports {name} of {path}" for path, name in exported - imported)


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_module_belongs_to_a_page(entry):
    folder = entry.split("/")[0] + "/"
    nothing({path for path in SCRIPTS if path.startswith(folder)} - set(modules_of(entry)))
    nothing({path for path in SCRIPTS if path.startswith("shared/")} - {p for e in ENTRIES for p in modules_of(e)})


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_saved_page_is_one_script_without_imports(entry):
    for path in modules_of(entry):
        imports = re.findall(r"^import\b", SCRIPTS[path], re.M)
        assert len(imports) == len(IMPORTS[path]), f"{path} has an import that joined() does not remove"
    script = joined(entry)
    code = re.sub(r"/\*\*.*?\*/", "", script)  # types are imported in comments
    nothing(re.findall(r"^[ \t]*(?:import|export)\b.*|\bimport *[({].*", code, re.M))
    nothing(re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|srcdoc", script))
    assert "</script" not in script.lower()
    assert "<!--" not in script
    owners = [(name, path) for path in modules_of(entry) for name in NAMES[path]]
    names = [name for name, _ in owners]
    nothing(f"{name} of {path} is declared twice" for name, path in owners if names.count(name) > 1)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_module_uses_while_it_is_loaded_only_names_before_it(entry):
    """Modules may import each other, but a value at the top level must not use a module that is loaded later."""
    order = modules_of(entry)
    found = []
    for at, path in enumerate(order):
        late = {name for source, names in IMPORTS[path] if source in order[at + 1 :] for name in names}
        for value in re.findall(r"^(?:export )?(?:const|let|class) [^;]*;", without_texts(CODE[path]), re.M):
            used = set(re.findall(r"(?<![\w$.-])[A-Za-z]\w*", value.split("=>")[0]))
            found += [f"{path} uses {name}, which is loaded later" for name in used & late]
    nothing(found)


# ---- texts


@pytest.fixture(scope="module")
def texts():
    return {language: page_texts(language) for language in LANGUAGES}


CALL = r"\b(?:say|sayWith)\(\s*"
"""The beginning of a call with the key of a text."""


def with_terms(names):
    """The keys of the texts of terms."""
    return {f"{kind}-{name}" for name in names for kind in ("term", "about")}


def pattern_of(template):
    """The pattern of the keys of a template such as `view-${name}`."""
    return re.sub(r"\\\$\\\{.*\\\}", ".+", re.escape(template), flags=re.S)


def test_every_text_that_a_module_asks_for_is_in_both_languages(texts):
    found = []
    for path, code in CODE.items():
        keys = set(re.findall(CALL + r'"([^"]+)"', code)) | with_terms(re.findall(r'\bterm\(\s*"([^"]+)"', code))
        for choice in re.findall(CALL + r"([^(),{}`;]*\?[^(),{}`;]*)", code):
            keys |= set(re.findall(r'[?:]\s*"([^"]+)"', choice))
        for language in LANGUAGES:
            found += [f"{path}: {language}.json has no {key}" for key in keys - texts[language].keys()]
        found += [
            f"{path}: en.json has no {template}"
            for template in re.findall(CALL + r"`([^`]*)`", code)
            if not any(re.fullmatch(pattern_of(template), key) for key in texts["en"])
        ]
    nothing(found)


def test_every_text_is_used(texts):
    """The key of a text is in the code as a string, as a name in a table, or as a template such as `view-${name}`."""
    whole = "\n".join(CODE.values())
    names = set(re.findall(r'"([\w-]+)"', whole)) | set(re.findall(r"\b(\w+):", whole))
    patterns = {
        pattern_of(template)
        for path, code in CODE.items()
        for template in re.findall(r"`([\w-]*\$\{[^`]*\}[\w-]*)`", code)
        if path != TERMS and "-" in re.sub(r"\$\{.*\}", "", template)
    }
    rest = texts["en"].keys() - names - with_terms(names)
    nothing(key for key in rest if not any(re.fullmatch(pattern, key) for pattern in patterns))


def test_the_languages_have_the_same_keys_and_values(texts):
    english, japanese = texts["en"], texts["ja"]
    nothing(f"{key} is missing in a language" for key in english.keys() ^ japanese.keys())
    for key in english:
        assert english[key].strip(), key
        assert japanese[key].strip(), key
        values = [set(re.findall(r"\{(\w+)\}", text[key])) for text in (english, japanese)]
        assert values[1] <= values[0], key
