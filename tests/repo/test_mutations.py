"""The wrong changes that mutation testing tries: which there are, how they read, and what is left alone."""

import mutations as tool
import room_coverage

SOURCE = '''"""Module of 1."""
from __future__ import annotations

class A:
    """Doc of 1."""

    def __init__(self, size: int = 3):
        super().__init__()
        self.size = size

    def f(self, x: Float[Tensor, "a b"]) -> int:
        """Doc < 2."""
        if x is None and self.size:
            raise ValueError(f"x={x + 1}")
        for part in x[1:]:
            x = -x @ torch.outer(part, out="b")
        return x + 2.0
'''
READ = """
constant: def __init__(self, size: int=3): -> def __init__(self, size: int=4):
constant: def __init__(self, size: int=3): -> def __init__(self, size: int=2):
statement removed: super().__init__() -> pass
statement removed: self.size = size -> pass
condition negated: if x is None and self.size: -> if not (x is None and self.size):
boolean: if x is None and self.size: -> if x is None or self.size:
operand removed: if x is None and self.size: -> if self.size:
operand removed: if x is None and self.size: -> if x is None:
compare: if x is None and self.size: -> if x is not None and self.size:
statement removed: raise ValueError(f'x={x + 1}') -> pass
argument removed: raise ValueError(f'x={x + 1}') -> raise ValueError()
loop skipped: for part in x[1:]: -> for part in ():
bound removed: for part in x[1:]: -> for part in x[:]:
constant: for part in x[1:]: -> for part in x[2:]:
constant: for part in x[1:]: -> for part in x[0:]:
statement removed: x = -x @ torch.outer(part, out='b') -> pass
arithmetic: x = -x @ torch.outer(part, out='b') -> x = torch.outer(part, out='b') @ -x
sign or not removed: x = -x @ torch.outer(part, out='b') -> x = x @ torch.outer(part, out='b')
argument removed: x = -x @ torch.outer(part, out='b') -> x = -x @ torch.outer(part)
call removed: x = -x @ torch.outer(part, out='b') -> x = -x @ part
constant: x = -x @ torch.outer(part, out='b') -> x = -x @ torch.outer(part, out='xb')
return: return x + 2.0 -> return None
arithmetic: return x + 2.0 -> return x - 2.0
operand removed: return x + 2.0 -> return x
operand removed: return x + 2.0 -> return 2.0
constant: return x + 2.0 -> return x + 4.0
"""


def test_each_operator_changes_what_is_its_own_and_no_words():
    found = tool.mutations(SOURCE)
    assert [f"{m.operator}: {m.before} -> {m.after}" for m in found] == READ.strip().splitlines()
    assert all(m.after in m.source for m in found)


def test_a_change_knows_its_function_and_the_lines_whose_tests_are_its_own():
    places = {m.after: (m.function, m.head, list(m.lines)) for m in tool.mutations(SOURCE)}
    assert places["def __init__(self, size: int=4):"] == ("A.__init__", True, [8, 9])
    assert places["if x is not None and self.size:"] == ("A.f", False, [13])
    assert places["for part in ():"] == ("A.f", False, [15])
    ((function, head, lines),) = {
        (m.function, m.head, m.lines) for m in tool.mutations("class A:\n    b = 1")
    }
    assert (function, head) == ("A", True)
    assert len(lines) > 1000  # every test of the file


def test_the_same_words_twice_are_two_changes():
    found = tool.mutations("def f(x):\n    x.a()\n    x.a()")
    assert len({m.key for m in found}) == len(found) == 2


def test_a_new_change_moves_the_draw_by_one_at_most():
    keys = [(str(n),) for n in range(50)]
    before, after = tool.drawn(keys, 10, seed=3), tool.drawn([*keys, ("new",)], 10, seed=3)
    assert len(set(before) & set(after)) >= 9
    assert tool.drawn(keys, 10, seed=4) != before


def test_the_rooms_are_measured_by_tests_that_there_are():
    files = room_coverage.tests()
    assert all((room_coverage.ROOT / file).exists() for file in files)
    assert {"tests/nn", "tests/decoding", "tests/data", "tests/test_models.py", "src/attendo/nn"} <= set(
        files
    )
