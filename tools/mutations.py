"""Small wrong changes of a Python source, one at a time, which tests should notice (used by mutate.py).

Not changed: docstrings, annotations, names of types, and the words of a message; a message itself may be left out.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import takewhile, zip_longest

EVERYWHERE = range(1, 1_000_000)  # the lines of what runs when the file is imported
CONTEXT = 40  # how much of the line an excerpt shows on either side of what changes

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
SYMMETRIC = {"max", "min", "minimum", "transpose"}
LIBRARIES = {"torch", "F", "nn", "math", "init", "cast"}  # a call of theirs is left out as f(x) -> x


@dataclass(frozen=True)
class Mutation:
    """One change: where it is, by which operator, a piece of the line before and after, and the whole new source.

    lines: of the statement that changes, in the file; of the body where the head of a function changes (`head`).
    """

    function: str
    operator: str
    before: str
    after: str
    lines: range
    head: bool
    source: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names the change, however the rest of the file grows."""
        return self.function, self.operator, self.before, self.after


@dataclass(frozen=True)
class Scope:
    """Where a node stands: the function (dotted, "" outside any) and the lines whose tests are its own."""

    function: str = ""
    lines: range = EVERYWHERE
    head: bool = True
    in_function: bool = False


def mutations(source: str) -> list[Mutation]:
    """Every change of a source by every operator, in the order of the source.

    >>> for mutation in mutations("def f(x):\\n    return x < 1"):
    ...     print(mutation.operator, "|", mutation.after)
    compare | return x <= 1
    compare | return x >= 1
    constant | return x < 2
    constant | return x < 0
    return | return None
    """
    tree = ast.parse(source)
    whole = ast.unparse(tree).splitlines()
    found: dict[tuple[str, str, str, str], Mutation] = {}
    for scope, operator, owner, field, new in _changes(tree, Scope()):
        old = getattr(owner, field)
        setattr(owner, field, new)
        changed = ast.unparse(ast.fix_missing_locations(tree))
        setattr(owner, field, old)
        if changed.splitlines() == whole:  # as where two arguments that are alike change places
            continue
        before, after = _excerpts(whole, changed.splitlines())
        mutation = Mutation(scope.function, operator, before, after, scope.lines, scope.head, changed)
        while mutation.key in found:  # the same words twice in one function
            mutation = replace(mutation, before=mutation.before + " (again)")
        found[mutation.key] = mutation
    return sorted(found.values(), key=lambda mutation: mutation.lines.start)


def drawn(keys: list[tuple[str, ...]], count: int, seed: int) -> list[tuple[str, ...]]:
    """`count` of the keys, by a hash of each with the seed: an edit of the code changes little of the draw.

    >>> drawn([("a",), ("b",), ("c",), ("d",)], 2, seed=1)
    [('d',), ('b',)]
    """
    return sorted(keys, key=lambda key: blake2b(repr((seed, *key)).encode()).digest())[:count]


def _excerpts(whole: list[str], changed: list[str]) -> tuple[str, str]:
    """The piece of the first line that differs, before and after."""
    pairs = zip_longest(whole, changed, fillvalue="")
    old, new = next((a.strip(), b.strip()) for a, b in pairs if a != b)
    start = _equal(old, new)
    end = min(_equal(old[::-1], new[::-1]), len(old) - start, len(new) - start)
    first, cut = max(start - CONTEXT, 0), max(end - CONTEXT, 0)
    return old[first : len(old) - cut], new[first : len(new) - cut]


def _equal(first: str, second: str) -> int:
    """How many characters at the start agree."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _changes(node: ast.AST, scope: Scope) -> Iterator[tuple[Scope, str, ast.AST, str, object]]:
    """For each change: its scope, its operator, and which field of which node becomes what."""
    scope = _scope(node, scope)
    for field, value in ast.iter_fields(node):
        if _is_left_alone(node, field):
            continue
        children = value if isinstance(value, list) else [value]
        for number, child in enumerate(children):
            if not isinstance(child, ast.AST) or _is_words(child):
                continue
            inner = _scope(child, scope)
            for operator, new in _rewritten(child, condition=field in ("test", "ifs")):
                if operator == "call removed" and isinstance(node, ast.Expr):
                    continue  # then the statement says nothing
                if isinstance(value, list):
                    yield inner, operator, node, field, [*value[:number], new, *value[number + 1 :]]
                else:
                    yield inner, operator, node, field, new
            yield from _changes(child, scope)


def _scope(node: ast.AST, scope: Scope) -> Scope:
    match node:
        case ast.FunctionDef():
            function = f"{scope.function}.{node.name}".lstrip(".")
            return Scope(function, range(node.body[0].lineno, (node.end_lineno or 0) + 1), in_function=True)
        case ast.ClassDef():
            return Scope(f"{scope.function}.{node.name}".lstrip("."), scope.lines)
        case ast.stmt() if scope.in_function:
            body = getattr(node, "body", None)
            end = body[0].lineno if body else (node.end_lineno or 0) + 1
            return Scope(scope.function, range(node.lineno, max(end, node.lineno + 1)), False, True)
    return scope


def _is_left_alone(node: ast.AST, field: str) -> bool:
    alias = isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Literal[")
    return field in ("annotation", "returns", "ctx") or alias or isinstance(node, ast.Raise | ast.JoinedStr)


def _is_words(child: ast.AST) -> bool:
    docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
    return docstring or isinstance(child, ast.Import | ast.ImportFrom | ast.JoinedStr)


def _rewritten(node: ast.AST, *, condition: bool) -> Iterator[tuple[str, ast.AST]]:
    """What a node may wrongly become, each with the name of the operator."""
    if condition and isinstance(node, ast.expr) and not isinstance(node, ast.Compare):
        yield "condition negated", ast.UnaryOp(ast.Not(), node)
    match node:
        case ast.Compare():
            for number, old in enumerate(node.ops):
                for new in COMPARISONS[type(old)]:
                    yield "compare", _with(node, ops=[*node.ops[:number], new(), *node.ops[number + 1 :]])
        case ast.BinOp(left, op, right):
            yield from _other_arithmetic(node, left, op, right)
        case ast.BoolOp(op, values):
            yield "boolean", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for number in range(len(values)):
                rest = [*values[:number], *values[number + 1 :]]
                yield "operand removed", rest[0] if len(rest) == 1 else _with(node, values=rest)
        case ast.UnaryOp(_, operand):
            yield "sign or not removed", operand
        case ast.Constant(value):
            yield from (("constant", _with(node, value=other)) for other in _other_constants(value))
        case ast.Call():
            yield from _other_calls(node)
        case ast.Slice(lower, upper, step):
            given = {"lower": lower, "upper": upper, "step": step}
            yield from (("bound removed", _with(node, **{name: None})) for name, end in given.items() if end)
        case ast.Return(value) if value is not None and not _is_none(value):
            yield "return", ast.Return(ast.Constant(None))
        case ast.For():
            yield "loop skipped", _with(node, iter=ast.Tuple([], ast.Load()))
        case ast.Match(_, cases):
            for number in range(len(cases) if len(cases) > 1 else 0):
                yield "case removed", _with(node, cases=[*cases[:number], *cases[number + 1 :]])
        case ast.Raise(ast.Call() as error):
            yield "statement removed", ast.Pass()
            yield "argument removed", _with(node, exc=_with(error, args=[]))
        case ast.stmt() if _may_be_missing(node):
            yield "statement removed", ast.Pass()


def _other_arithmetic(
    node: ast.BinOp, left: ast.expr, op: ast.operator, right: ast.expr
) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(op, ast.MatMult):
        yield "arithmetic", _with(node, left=right, right=left)
        return
    yield "arithmetic", _with(node, op=ARITHMETIC[type(op)]())
    yield "operand removed", left
    if isinstance(op, ast.Add | ast.Mult | ast.BitAnd | ast.BitOr):
        yield "operand removed", right


def _other_constants(value: object) -> Iterator[object]:
    match value:
        case bool():
            yield not value
        case int():
            yield from (value + 1, value - 1)
        case float():
            yield value * 2 if value else 1.0
        case str():
            yield f"x{value}"


def _other_calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    if len(node.args) > 1:
        yield "argument removed", _with(node, args=node.args[:-1])
    for number in range(len(node.keywords)):
        rest = [*node.keywords[:number], *node.keywords[number + 1 :]]
        yield "argument removed", _with(node, keywords=rest)
    name = ast.unparse(node.func).split(".")[-1]
    if len(node.args) > 1 and name not in SYMMETRIC:
        yield "arguments swapped", _with(node, args=[node.args[1], node.args[0], *node.args[2:]])
    base = node.func.value if isinstance(node.func, ast.Attribute) else None
    if base is not None and ast.unparse(base).split(".")[-1] not in LIBRARIES:
        yield "call removed", base
    elif node.args and not isinstance(node.args[0], ast.Starred | ast.GeneratorExp):
        yield "call removed", node.args[0]


def _may_be_missing(node: ast.stmt) -> bool:
    """Whether its absence need not end in a name that nobody knows."""
    match node:
        case ast.Expr(ast.Call()) | ast.AugAssign():
            return True
        case ast.Assign([target], value):
            known = isinstance(target, ast.Name) and target.id in {
                name.id for name in ast.walk(value) if isinstance(name, ast.Name)
            }
            return known or isinstance(target, ast.Attribute | ast.Subscript)
    return False


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of the node with these fields changed."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new
