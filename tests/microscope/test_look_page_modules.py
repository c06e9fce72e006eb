"""The page's modules as files: words in both languages, names that fit together, an order to join them in."""

import re
from importlib.resources import files

import pytest
from page_scripts import NOT_OF, code_of, declared

from attendo.microscope.look_page import MODULES, joined

FOLDER = files("attendo.microscope") / "assets" / "look"
TEXTS = {
    entry.name.removesuffix(".js"): entry.read_text(encoding="utf-8")
    for entry in FOLDER.iterdir()
    if entry.name.endswith(".js")
}
IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+)\.js";$', re.M)
WORD = re.compile(r'^ +(?:"([\w-]+)"|(\w+)): \[\s*((?:"(?:[^"\\]|\\.)*"[\s+,]*)+)\],?$', re.M)
ALL = "\n".join(TEXTS.values())


def without_texts(code):
    """Without what stands between quotes."""
    return re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', code)


NAMES = {module: declared(text) for module, text in TEXTS.items()}
WORDS = {quoted or bare: text for quoted, bare, text in WORD.findall(ALL)}


def test_every_file_is_joined_once_and_no_name_of_theirs_stands_twice():
    assert sorted(MODULES) == sorted(TEXTS)
    names = [name for module in MODULES for name in NAMES[module]]
    assert len(names) == len(set(names)), {name for name in names if names.count(name) > 1}


@pytest.mark.parametrize("module", TEXTS)
def test_a_module_imports_what_it_uses_and_exports_what_others_use(module):
    text, code = TEXTS[module], without_texts(code_of(TEXTS[module]))
    imported = {
        name: source for names, source in IMPORT.findall(text) for name in map(str.strip, names.split(","))
    }
    assert len(re.findall(r"^import", text, re.M)) == len(
        IMPORT.findall(text)
    )  # all in the form that is joined
    for name, source in imported.items():
        assert NAMES[source].get(name), f"{source}.js exports no {name}"
        assert re.search(rf"{NOT_OF}{name}\b", code), f"{name} is imported for nothing"
        assert not re.search(rf"\b(?:const|let|function) {name}\b", code), f"{name} is hidden by another"
    foreign = {name: other for other in NAMES if other != module for name in NAMES[other]}
    called = set(re.findall(rf"{NOT_OF}([A-Za-z]\w+)\(", code)) & foreign.keys()
    own = set(re.findall(r"\b(?:const|let|function) (\w+)", code)) | set(
        re.findall(r"(?:^ +(?:async )?|\.{3}|[({,] ?)(\w+)(?=[,)}]|\(.*\) \{$)", code, re.M)
    )
    assert called - imported.keys() - own == set()
    others = "\n".join(other for name, other in TEXTS.items() if name != module)
    for name, exported in NAMES[module].items():
        wanted = re.search(rf"^import \{{[^}}]*\b{name}\b[^}}]*\}} from \"\./{module}\.js\"", others, re.M)
        assert exported == bool(wanted), f"{name}: exported {exported}, wanted elsewhere {bool(wanted)}"
        assert exported or len(re.findall(rf"\b{name}\b", code)) > 1 or name in ("start",), f"{name} is dead"


def test_a_module_uses_while_it_is_loaded_only_names_before_it():
    for at, module in enumerate(MODULES):
        later = {name for other in MODULES[at + 1 :] for name in NAMES[other]}
        code = without_texts(code_of(TEXTS[module]))
        for value in re.findall(r"^(?:export )?(?:const|let) [^;]*;", code, re.M):
            assert not set(re.findall(rf"{NOT_OF}([A-Za-z]\w*)", value)) & later, value
    script = joined()[1]
    assert "import " not in script and "export " not in script


def test_every_word_is_said_in_both_languages_and_with_the_same_values():
    assert len(WORDS) > 300
    for key, text in WORDS.items():
        english, japanese = re.split(r'",\s*"', re.sub(r'"\s*\+\s*"', "", text.strip()), maxsplit=1)
        assert english and japanese, key
        values = [set(re.findall(r"\{(\w+)\}", said)) for said in (english, japanese)]
        assert values[1] <= values[0], key


def test_every_word_asked_for_is_there_and_every_word_there_is_asked_for():
    code = code_of(ALL)
    for key in re.findall(r'\bsay\(\s*"([^"]+)"', code):
        assert key in WORDS, f"say({key!r}) has no words"
    defined = WORD.sub("", code)
    strings = set(re.findall(r'"([\w-]+)"', defined)) | set(
        re.findall(r"\b(\w+):", defined)
    )  # a key of a table of keys
    patterns = [
        re.compile(re.sub(r"\\\$\\\{.*\\\}", ".+", re.escape(pattern)))
        for pattern in re.findall(r"`([\w-]*\$\{[^`]*\}[\w-]*)`", defined)
        if "-" in pattern
    ]
    unused = {
        key for key in WORDS if key not in strings and not any(pattern.fullmatch(key) for pattern in patterns)
    }
    assert unused == set()


def test_no_module_is_long():
    assert {module: len(text.splitlines()) for module, text in TEXTS.items() if text.count("\n") > 400} == {}
