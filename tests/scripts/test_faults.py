"""Faults of scripts/mutate.py: what they change, and where in a later revision."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

PYTHON = '''
def f(a: int = 1) -> Literal[7]:
    """Docstring: 2 < 3."""
    if a < 3 and a:
        g(a, b)
    return f"{a + 1}" + h(None)
'''

CPP = """
#define N 1
// a == b
#ifdef TRANSLATE_TRT_AVX512
  if (a == 512) return;
#else
  x = "a && b";
#endif
  static_assert(sizeof(a) == 4);
  if (a < b) {
    call(p, q);
    return;
  }
"""


def changes(edits: Callable[[str], Iterator[tuple[str, int, int, str]]], text: str) -> set[str]:
    changed = (text[:start] + new + text[end:] for _, start, end, new in edits(text))
    old = text.split("\n")
    return {
        line.strip()
        for other in changed
        for line, before in zip(other.split("\n"), old, strict=True)
        if line != before
    }


def test_python() -> None:
    from faults import python_edits

    assert changes(python_edits, PYTHON) == {
        "def f(a: int = 2) -> Literal[7]:",
        "if a <= 3 and a:", "if a >= 3 and a:", "if a < 4 and a:", "if a < 3 or a:",
        "if not (a < 3 and a):", "g(b, a)", "pass", 'return f"{a + 1}" - h(None)',
    }  # fmt: skip
    for _, start, end, new in python_edits(PYTHON):
        ast.parse(PYTHON[:start] + new + PYTHON[end:])


def test_cpp() -> None:
    from faults import cpp_edits

    assert changes(cpp_edits, CPP) == {
        "if (a <= b) {", "if (a >= b) {", "if (!(a < b)) {", "call(q, p);", "{}",
    }  # fmt: skip


def test_a_fault_is_found_by_its_lines_nearest_to_where_they_were() -> None:
    from faults import Fault

    fault = Fault("runtime", "a.py", 4, "statement", "x += 1", "pass")
    assert fault.find("x += 1\ny\nz\n\nx += 1\n") == (12, 18)
    assert fault.find("x += 1\n") == (0, 6)
    assert fault.find("    x += 1\nx += 12\n") is None
