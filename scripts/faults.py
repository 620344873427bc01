"""Small faults in Python and C++, for scripts/mutate.py."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BYTES = "latin-1"  # for texts of one character per byte, the unit of columns in ast

# Code for other processors, other systems and GPUs.
OTHER_FILES = re.compile(r"src/(?:cuda|tensorrt)/|(?:avx512|avxvnni|amx|neon|wasm|tiles)[^/]*$")
OTHER_CODE = re.compile(
    r"AVX512|VNNI|AMX|TILES|NEON|aarch64|__ARM|_WIN32|__APPLE__|EMSCRIPTEN|CUDA"
)


@dataclass(frozen=True)
class Fault:
    """A change of whole lines, of which the first had the number `line` when it was chosen."""

    part: str
    file: str
    line: int
    kind: str
    before: str
    after: str

    def find(self, text: str) -> tuple[int, int] | None:
        """Return the place of the lines in a text, the nearest to `line` if several match."""
        found = [match.span() for match in re.finditer(rf"^{re.escape(self.before)}$", text, re.M)]
        return min(found, key=lambda at: abs(line_of(text, at[0]) - self.line), default=None)


Edit = tuple[str, int, int, str]  # kind, start, end, new text
FLIPPED = {
    "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",),
    "!=": ("==",), "is": ("is not",), "is not": ("is",), "in": ("not in",), "not in": ("in",),
    "and": ("or",), "or": ("and",), "&&": ("||",), "||": ("&&",), "+": ("-",), "-": ("+",),
    "*": ("+",), "/": ("*",), "//": ("*",),
}  # fmt: skip
OPERATOR = re.compile(r"\b(?:is not|not in|is|in|and|or)\b|[<>=!]=|//|[<>+*/-]")


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def python_edits(text: str) -> Iterator[Edit]:
    """Yield the edits of a module; strings and annotations have none."""
    starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]

    def span(node: Any) -> tuple[int, int]:
        return (starts[node.lineno - 1] + node.col_offset,
                starts[node.end_lineno - 1] + node.end_col_offset)  # fmt: skip

    def exchange(kind: str, left: ast.AST, right: ast.AST) -> Iterator[Edit]:
        if found := OPERATOR.search(text, span(left)[1], span(right)[0]):
            for new in FLIPPED[found[0]]:
                yield kind, *found.span(), new

    pending: list[ast.AST] = [ast.parse(text.encode(BYTES))]
    while pending:
        match node := pending.pop():
            case ast.JoinedStr():  # its positions are wrong before Python 3.12
                continue
            case ast.Compare():
                yield from exchange("comparison", node.left, node.comparators[0])
            case ast.BoolOp():
                yield from exchange("condition", *node.values[:2])
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.FloorDiv()):
                yield from exchange("operator", node.left, node.right)
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                condition = text[slice(*span(test))]
                if condition != "TYPE_CHECKING":
                    yield "condition", *span(test), f"not ({condition})"
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                yield "off by one", *span(node), str(value + 1)
            case ast.Call(args=[one, other, *_]) if type(one) is type(other):
                (a, b), (c, d) = span(one), span(other)
                yield "arguments", a, d, text[c:d] + text[b:c] + text[a:b]
            case (ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break()
                  | ast.Expr(value=ast.Call())
                  | ast.Assign(targets=[ast.Attribute() | ast.Subscript()])):  # fmt: skip
                yield "statement", *span(node), "pass"
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns"):
                children = value if isinstance(value, list) else [value]
                pending += [child for child in children if isinstance(child, ast.AST)]


NOT_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|R\"(\w*)\(.*?\)\1\"|\"(?:\\.|[^\"\\\n])*\"|(?<!\w)'(?:\\.|[^'\\\n])+'"
    r"|static_assert\([^;]*;",
    re.S,
)
CPP_EDITS = [
    ("comparison", re.compile(r"(?<= )(?:[<>=!]=|[<>])(?= )")),
    ("condition", re.compile(r"(?<= )(?:&&|\|\|)(?= )")),
    ("operator", re.compile(r"(?<=[\w)\]] )[+*/-](?= [\w(])")),
    ("off by one", re.compile(r"(?<![\w.'])\d+(?![\w.'])")),
    ("condition", re.compile(r"(?<=if \()[^\n{}]+(?=\) (?:\{|return\b|continue;|break;))")),
    ("arguments", re.compile(r"(?<=\w\()(\w[\w.>-]*), (\w[\w.>-]*)(?=[,)])")),
    ("statement", re.compile(r"(?<=[;{}]\n)( +)(?!return|using|throw|case|else|auto|const)"
                             r"[\w\].>:(\[-]+(?:\([^\n;]*\)| [+*|&/-]?= [^\n;]+);(?=\s*$)", re.M)),
]  # fmt: skip


def cpp_edits(text: str) -> Iterator[Edit]:
    """Yield edits outside of comments, strings, the preprocessor's lines and what it omits here."""
    code = NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    lines, omitted, continued = code.split("\n"), [False], False
    for number, line in enumerate(lines):
        directive = line.lstrip().startswith("#") or continued
        continued = directive and line.endswith("\\")
        word = re.match(r"\s*#\s*(ifndef|if|elif|else|endif)", line)
        if word and word[1] == "endif":
            omitted.pop()
        elif word and word[1] in ("if", "ifndef"):
            omitted.append(word[1] == "if" and bool(OTHER_CODE.search(line)))
        elif word:
            omitted[-1] = bool(OTHER_CODE.search(line))
        if directive or any(omitted):
            lines[number] = " " * len(line)
    code = "\n".join(lines)
    for kind, pattern in CPP_EDITS:
        for found in pattern.finditer(code):
            start, end = found.span()
            if kind == "arguments":
                yield kind, start, end, f"{found[2]}, {found[1]}"
            elif kind == "statement":
                yield kind, start, end, found[1] + "{}"
            elif kind == "off by one":
                yield kind, start, end, str(int(found[0]) + 1)
            else:
                for new in FLIPPED.get(found[0], (f"!({text[start:end]})",)):
                    yield kind, start, end, new


def choose(part: str, seed: int) -> Iterator[Fault]:
    """Yield faults in random order, at most one per line."""
    folders = {"export": ("train", "export"), "runtime": ("runtime",),
               "cpp": ("runtime/cpp/src", "runtime/cpp/kernels")}[part]  # fmt: skip
    edits, endings = (cpp_edits, (".cc", ".h")) if part == "cpp" else (python_edits, (".py",))
    lines: dict[tuple[str, int], list[Fault]] = {}
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*")):
        file = str(path.relative_to(ROOT))
        if path.suffix not in endings or (part == "cpp" and OTHER_FILES.search(file)):
            continue
        text = path.read_text(BYTES)
        for kind, start, end, new in edits(text):
            first, last = text.rfind("\n", 0, start) + 1, text.index("\n", end)
            before, after = text[first:last], text[first:start] + new + text[end:last]
            fault = Fault(part, file, line_of(text, start), kind, before, after)
            if before != after:
                lines.setdefault((file, fault.line), []).append(fault)
    chance = random.Random(f"{part} {seed}")
    for place in chance.sample(sorted(lines), len(lines)):
        yield chance.choice(lines[place])
