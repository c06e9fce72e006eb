"""The rules of the house that no linter knows, checked on the syntax tree of every source file."""

import ast
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest
from source_trees import SOURCES, nodes, parsed

ROOT = Path(__file__).resolve().parents[2]
CORE = [file for file in SOURCES if file.stem in ("model_config", "models") or file.parent.name == "nn"]
COMMANDS = [file for file in SOURCES if file.parent.name in ("cli", "commands")]
COURSE = ROOT / "src" / "attendo_course"
SHOWN = [
    file
    for file in SOURCES
    if file in CORE
    or file.is_relative_to(ROOT / "src" / "attendo" / "interop")
    or (file.is_relative_to(COURSE) and not {"lessons", "commands"} & {*file.parts})
]
SHOWN_CLASSES = [file for file in SHOWN if file in CORE or file.stem == "lecture"]


def name(file):
    return file.relative_to(ROOT).as_posix()


def imports(nodes):
    """The dotted names that these statements import."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def at_import_time(nodes):
    """The statements that run when a module is imported: not those in functions or under TYPE_CHECKING."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from at_import_time(
            child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.ExceptHandler)
        )


def run_statements(node):
    """The nodes of a file without those under TYPE_CHECKING."""
    yield node
    if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
        for child in ast.iter_child_nodes(node):
            yield from run_statements(child)


def is_dataclass(node):
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def constructors(nodes):
    for node in nodes:
        if isinstance(node, ast.ClassDef) and not is_dataclass(node):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    yield node.name, method.args


def without_example(tree, kind):
    """The public functions or classes of a module whose docstring shows nothing that runs; overloads aside."""
    for node in tree.body:
        if isinstance(node, kind) and not node.name.startswith("_"):
            overload = any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)
            if not overload and ">>>" not in (ast.get_docstring(node) or ""):
                yield node.name


def test_the_checks_look_at_something():
    assert len(SOURCES) > 10
    assert len(CORE) > 5
    assert COMMANDS
    two = "class A:\n  def __init__(self, a, *, b): ...\n@dataclass\nclass B:\n  def __init__(self): ..."
    tree = ast.parse(two)
    assert [(owner, len(args.args + args.kwonlyargs)) for owner, args in constructors(ast.walk(tree))] == [("A", 3)]
    lazy = "if TYPE_CHECKING:\n  import a\ntry:\n  import b\nexcept E:\n  import c\ndef f():\n  import d"
    assert imports(at_import_time(ast.parse(lazy).body)) == {"b", "c"}
    plain = "def f():\n  'says f'\ndef _g(): ...\n@overload\ndef h(): ...\ndef h():\n  '>>> h()'\nclass C: ..."
    assert list(without_example(ast.parse(plain), ast.FunctionDef)) == ["f"]
    assert list(without_example(ast.parse(plain), ast.ClassDef)) == ["C"]
    loads = "import pickle\nimport torch\ntorch.load(f)\nnp.load(f, allow_pickle=True)\nnp.load(f, allow_pickle=False)"
    assert list(pickles(ast.walk(ast.parse(loads)))) == ["pickle", "torch.load", "allow_pickle=True"]
    assert {file.parent.name for file in SHOWN} >= {"nn", "algorithms", "claims", "figures", "interop"}
    assert len(SHOWN_CLASSES) == len(CORE) + 1


# Each rule lists those who break it: as many tests as files would take longer than the rules.


def test_a_file_has_at_most_700_lines():
    files = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]
    lengths = {name(file): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {path: length for path, length in lengths.items() if length > 700} == {}


def length_of(function):
    """The lines of a function without its docstring."""
    first = function.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = first.end_lineno - first.lineno + 1 if is_docstring else 0
    return function.end_lineno - function.lineno + 1 - docstring


def test_a_function_has_at_most_60_lines():
    """Commands are exempt: most of their lines are declarations of options."""
    functions = [
        (name(file), node)
        for file in SOURCES
        if file not in COMMANDS
        for node in nodes(file)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert len(functions) > 3000
    long = {f"{file}: {node.name}": length_of(node) for file, node in functions if length_of(node) > 60}
    assert long == {}


def test_a_file_is_named_for_what_it_holds():
    nameless = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert [name(file) for file in SOURCES if file.stem in nameless] == []


def test_a_public_function_has_an_example_that_runs():
    """pytest runs every `>>>` of a docstring; this asks that there is one."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    assert [(name(file), bare) for file in SHOWN for bare in without_example(parsed(file), functions)] == []


def test_a_public_class_of_the_core_has_an_example_that_runs():
    classes = [(name(file), bare) for file in SHOWN_CLASSES for bare in without_example(parsed(file), ast.ClassDef)]
    assert classes == []


def pickles(nodes):
    """What a module imports, calls or allows that would read or write a pickle."""
    nodes = list(nodes)
    banned = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    yield from {module.split(".")[0] for module in imports(nodes)} & banned
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in ("load", "save"):
            yield from {ast.unparse(node)} & {"torch.load", "torch.save"}
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield ast.unparse(node)


def test_a_file_has_no_pickle():
    assert [(name(file), found) for file in SOURCES for found in pickles(nodes(file))] == []


def test_only_the_command_line_prints():
    for file in SOURCES:
        if file not in COMMANDS and file.stem != "one_page":  # which is also a script
            calls = [node.func for node in nodes(file) if isinstance(node, ast.Call)]
            assert "print" not in [node.id for node in calls if isinstance(node, ast.Name)], name(file)


def test_a_constructor_takes_at_most_10_arguments_each_by_name():
    for file in SOURCES:
        for owner, args in constructors(nodes(file)):
            given = [*args.posonlyargs, *args.args, *args.kwonlyargs][1:]
            assert len(given) <= 10, (name(file), owner)
            assert args.kwarg is None, (name(file), owner)


def test_the_core_imports_only_torch_jaxtyping_and_the_standard_library():
    inside = {"attendo.nn", "attendo.shape_checks", "attendo.model_config", "attendo.models"}
    for file in CORE:
        for module in imports(nodes(file)):
            top = module.split(".")[0]
            known = top in {"torch", "jaxtyping"} or top in sys.stdlib_module_names
            assert known or any(module.startswith(room) for room in inside), (name(file), module)


def test_a_command_module_imports_no_torch_at_its_top():
    for file in COMMANDS:
        tops = {module.split(".")[0] for module in imports(at_import_time(parsed(file).body))}
        assert "torch" not in tops, name(file)


def test_a_base_class_has_more_than_one_child():
    """A class that is only inherited from, by one class, is two names for one thing."""
    every = [node for file in SOURCES for node in nodes(file)]
    classes = [node for node in every if isinstance(node, ast.ClassDef)]
    bases = [ast.unparse(base).split(".")[-1] for node in classes for base in node.bases]
    ours = {node.name for node in classes}
    used = {ast.unparse(node.func) for node in every if isinstance(node, ast.Call)}
    used |= {
        ast.unparse(node.value).split(".")[0] for node in every if isinstance(node, ast.keyword)
    }  # open=LabelledCorpus, user=MultiLabelClassifier.from_bundle
    assert [name for name in ours - used if bases.count(name) == 1] == []


def test_a_claim_imports_little_and_a_server_no_microscope():
    code = """
import sys
def ours():
    return [name for name in sys.modules if name.split(".")[0] == "attendo"]
import attendo_course.claims.generation
print(*ours())
import attendo.serving.app
print(*ours())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    of_claim, of_server = (line.split() for line in run.stdout.splitlines())
    assert len(of_claim) <= 20 and "attendo.serving.app" in of_server
    assert not [name for name in of_server if name.startswith("attendo.microscope")]


def test_importing_attendo_loads_nothing_else_that_is_installed_and_its_command_line_no_torch():
    code = """
import sys
before = set(sys.modules)
import attendo
print(*{name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)
import attendo.cli
assert "torch" not in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["attendo"]


def test_the_public_face_has_what_it_names():
    import attendo

    for public in attendo.__all__:
        assert getattr(attendo, public) is not None
    assert set(attendo.__all__) <= set(dir(attendo))
    with pytest.raises(AttributeError, match="no attribute 'tanslate'"):
        attendo.tanslate  # noqa: B018


def test_each_package_names_its_public_interface():
    """`__all__` of each package of attendo; all of them together are few enough to know, and to keep."""
    packages = sorted(file.parent.name for file in (ROOT / "src" / "attendo").glob("*/__init__.py"))
    modules = [import_module("attendo"), *(import_module(f"attendo.{package}") for package in packages)]
    assert [module.__name__ for module in modules if not hasattr(module, "__all__")] == []
    assert sum(len(module.__all__) for module in modules) <= 180
    for module in modules:
        assert sorted(set(module.__all__)) == sorted(module.__all__), module.__name__
        assert [name for name in module.__all__ if not hasattr(module, name)] == [], module.__name__


def test_no_modules_import_each_other():
    """Imports within functions count, too; those for types alone don't."""
    modules = {name(file)[4:-3].replace("/", ".").removesuffix(".__init__"): file for file in SOURCES}
    graph = {}
    for module, file in modules.items():
        used = {imported for imported in imports(run_statements(parsed(file))) if imported.startswith("attendo")}
        found = {imported if imported in modules else imported.rpartition(".")[0] for imported in used}
        graph[module] = found & set(modules) - {module}
    TopologicalSorter(graph).prepare()


def test_the_layer_contract_names_every_floor():
    """import-linter ignores a room that it is not told of only where the contract is not exhaustive."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    floors = next(contract for contract in contracts["contracts"] if contract["type"] == "layers")
    assert floors["exhaustive"]
    assert "exhaustive_ignores" not in floors
    assert "ignore_imports" not in floors
