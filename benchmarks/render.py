"""Write docs/results.md, and the generated parts of other pages, from benchmarks/results/.

    python benchmarks/render.py

`tables.toml` declares the tables. Every run overwrites them: to change a number, measure again.

Expressions of the tables are a subset of Python that can only use the names it is given: constants,
names, attributes without a leading underscore, subscripts, operators, conditions, calls, lists,
tuples, dictionaries, f-strings, comprehensions and lambdas.
"""

from __future__ import annotations

import ast
import functools
import operator
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import derived
import plots
from harness import ROOT, machines_of, read_reports, shown

END = "<!-- end -->"
#: Packages whose versions stand beside the figures of reports with a word.
_PACKAGES = {"torch": "", "onnxruntime": "", "joeynmt": "joeynmt", "ctranslate2": "ctranslate2",
             "pymarian": "marian", "ray": "shard", "transformers": "transformers"}  # fmt: skip


class View(dict[str, Any]):
    """JSON object whose entries are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def view(value: Any) -> Any:
    """Return JSON values with objects as `View`."""
    if isinstance(value, Mapping):
        return View({name: view(one) for name, one in value.items()})
    return [view(one) for one in value] if isinstance(value, list) else value


# ---- functions of the declarations ----


def mib(count: float) -> str:
    """Format a number of bytes."""
    return f"{count / 2**20:,.0f} MiB"


def optional(shape: str, value: Any) -> str:
    """Format a value; nothing for None and for False."""
    return "" if value is None or value is False else shape.format(value)


def plural(count: int, noun: str) -> str:
    """Format a number of things."""
    return f"{count:,} {noun}{'s' * (int(count) != 1)}"


def model(shape: Any) -> str:
    """Describe the shape of a model."""
    return (
        f"{shape.encoder_layers}+{shape.decoder_layers} layers, d_model {shape.d_model}, "
        f"d_ff {shape.d_ff}, {shape.heads} heads, vocabulary {shape.vocabulary_size:,}"
    )


def peaks(found: Any) -> str:
    """Describe the measured peaks of a machine."""
    tiles = f" ({found['tiles'] / 1e9:.0f} by tiles alone)" if found.get("tiles") else ""
    return (
        f"Peaks in that run: {found.int8 / 1e9:.0f} billion operations/s in 8 bits{tiles}, "
        f"{found.fp32 / 1e9:.0f} in fp32, {found['copy'] / 1e9:.1f} GB/s copied."
    )


def where(report: Mapping[str, Any]) -> str:
    """Describe date, machine and versions in a sentence."""
    machine, versions = report["machine"], report["versions"]
    text = str([report.get(part) for part in ("benchmark", "settings", "results")]).lower()
    used = [name for name, word in _PACKAGES.items() if name in versions and word in text]
    packages = ", ".join(f"{name} {versions[name]}" for name in used)
    kernels = machine.get("kernels", "none")  # old reports lack the entry
    # The reason after "none" is left out.
    compiled = "" if kernels.startswith("none") else f", compiled kernels {kernels}"
    limited = "".join(f", {name}={value}" for name, value in machine.get("limits", {}).items())
    return f"{report['date']}, {' and '.join(machines_of(report))}, {packages}{compiled}{limited}."


FUNCTIONS: dict[str, Any] = {
    **{name: one for name, one in vars(derived).items() if not name.startswith("_")},
    "commas": lambda numbers: ", ".join(f"{number:,}" for number in numbers),
    "first": lambda values: next(iter(values)),
    "last": lambda values: list(values.values())[-1],
    "lines": "\n".join,
    "slashes": lambda values: " / ".join(map(str, values)),
    "ratio": shown,
    **{one.__name__: one for one in (mib, model, optional, peaks, plural)},
}

# ---- expressions ----

OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.USub: operator.neg, ast.Not: operator.not_, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda item, values: item in values, ast.NotIn: lambda item, values: item not in values,
}  # fmt: skip
BUILTINS: dict[str, Any] = {
    one.__name__: one
    for one in (dict, enumerate, int, len, list, map, max, min, range, sorted, str, sum, zip)
}


@functools.cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression.

    Raises:
        ValueError: The expression is not of the subset.
    """
    return _value(_parsed(expression), {**BUILTINS, **names})


def _value(node: Any, names: Mapping[str, Any]) -> Any:
    def of(part: Any) -> Any:
        return None if part is None else _value(part, names)

    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return names[node.id]
        case ast.Attribute() if not node.attr.startswith("_"):
            return getattr(of(node.value), node.attr)
        case ast.Subscript():
            return of(node.value)[of(node.slice)]
        case ast.Slice():
            return slice(of(node.lower), of(node.upper), of(node.step))
        case ast.BinOp():
            return OPERATORS[type(node.op)](of(node.left), of(node.right))
        case ast.UnaryOp():
            return OPERATORS[type(node.op)](of(node.operand))
        case ast.BoolOp():
            for part in node.values:
                value = of(part)
                if bool(value) == isinstance(node.op, ast.Or):
                    break
            return value
        case ast.Compare():
            values = [of(one) for one in (node.left, *node.comparators)]
            pairs = zip(node.ops, pairwise(values), strict=True)
            return all(OPERATORS[type(one)](*pair) for one, pair in pairs)
        case ast.IfExp():
            return of(node.body if of(node.test) else node.orelse)
        case ast.Call():
            named = {one.arg: of(one.value) for one in node.keywords}
            return of(node.func)(*_items(node.args, names), **named)
        case ast.List():
            return _items(node.elts, names)
        case ast.Tuple():
            return tuple(_items(node.elts, names))
        case ast.Dict():
            return {of(key): of(one) for key, one in zip(node.keys, node.values, strict=True)}
        case ast.JoinedStr():
            return "".join(map(of, node.values))
        case ast.FormattedValue():
            return format(of(node.value), of(node.format_spec) or "")
        case ast.ListComp() | ast.GeneratorExp():
            return [_value(node.elt, inner) for inner in _scopes(node.generators, names)]
        case ast.DictComp():
            scopes = _scopes(node.generators, names)
            return {_value(node.key, inner): _value(node.value, inner) for inner in scopes}
        case ast.Lambda():
            (target,) = node.args.args
            return lambda given: _value(node.body, {**names, target.arg: given})
    raise ValueError(f"expressions of tables.toml cannot have {ast.unparse(node)}")


def _items(nodes: Sequence[Any], names: Mapping[str, Any]) -> list[Any]:
    """Return the items of a list, with those of starred ones."""
    found: list[Any] = []
    for node in nodes:
        starred = isinstance(node, ast.Starred)
        found += _value(node.value, names) if starred else [_value(node, names)]
    return found


def _scopes(generators: Sequence[Any], names: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Iterate over the names that the clauses of a comprehension bind."""
    if not generators:
        yield names
        return
    first, *others = generators
    for value in _value(first.iter, names):
        inner = {**names, **_bound(first.target, value)}
        if all(_value(test, inner) for test in first.ifs):
            yield from _scopes(others, inner)


def _bound(target: Any, value: Any) -> dict[str, Any]:
    if isinstance(target, ast.Name):
        return {target.id: value}
    found: dict[str, Any] = {}
    for one, part in zip(target.elts, value, strict=True):
        found |= _bound(one, part)
    return found


# ---- layouts ----


def _template(text: str, clause: str = "") -> str:
    """Return the expression of an f-string, which a clause may repeat or leave out."""
    if clause.startswith("if "):
        clause = f"for _ in (0,) {clause}"
    return f"*(f'''{text}''' {clause})" if clause else f"f'''{text}'''"


def table(declared: Mapping[str, Any], names: Mapping[str, Any], **more: Any) -> str:
    """Render a declared table in Markdown."""
    names = {**names, **more}
    columns = [(header, cell, *clause) for header, cell, *clause in declared["columns"]]
    header = ", ".join(_template(header, *clause) for header, _, *clause in columns)
    cells = ", ".join(_template(cell, *clause) for _, cell, *clause in columns)
    heads = evaluate(f"[{header}]", names)
    rows = evaluate(f"[[{cells}] {declared['rows']}]", names)
    found = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in found)


def render(layout: Mapping[str, Any], reports: Sequence[Mapping[str, Any]]) -> str:
    """Render reports by a layout."""
    shown = [view(one) for one in reports]
    report = shown[0]
    note = report.get("settings", {}).get("note")
    names: dict[str, Any] = FUNCTIONS | {
        "layout": view(layout), "report": report, "reports": shown,
        "settings": report.get("settings"), "results": report.get("results"),
        "note": f" {note}" if note else "",
        "where": where(report) if "versions" in report else "",
    }  # fmt: skip
    for name, expression in layout.get("let", {}).items():
        names[name] = evaluate(expression, names)
    tables = {"table": layout, **layout.get("tables", {})}
    names |= {name: functools.partial(table, one, {**names}) for name, one in tables.items()}

    def text(name: str = "text") -> str:
        return str(evaluate(_template(layout[name].strip("\n")), names)).rstrip()

    names["text"] = text
    return f"{text()}\n"


def page_of_results(declared: Mapping[str, Any], reports: Mapping[str, Any]) -> str:
    """Render the page of all results."""
    parts = [declared["head"].strip() + "\n"]
    for section in declared["pages"]["sections"]:
        if "group" in section:
            parts.append(f"## {section['group']}\n")
        if section["reports"][0] in reports:
            intro = f"{section['intro'].strip()}\n\n" if "intro" in section else ""
            found = [reports[name] for name in section["reports"] if name in reports]
            shown = render(declared["layouts"][section["layout"]], found)
            parts.append(f"### {section['title']}\n\n{intro}{shown}")
    return "\n".join(parts)


def fill(page: Path, mark: str, content: str) -> None:
    """Replace the part of a page between the marks of that name.

    Raises:
        ValueError: The page has no such marks.
    """
    begin = f"<!-- {mark}, made by benchmarks/render.py -->"
    text = page.read_text(encoding="utf-8")
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"{page} has no part between {begin} and {END}; put both there.")
    page.write_text(f"{before}{begin}\n{content}{END}{after}", encoding="utf-8")


def declarations() -> dict[str, Any]:
    """Read tables.toml."""
    return tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))


def text_of(name: str, reports: Iterable[Mapping[str, Any]]) -> str:
    """Render reports by the layout of that name."""
    return render(declarations()["layouts"][name], list(reports))


def main() -> None:
    """Render the newest report of every kind."""
    declared, reports = declarations(), read_reports()
    (ROOT / "docs/results.md").write_text(page_of_results(declared, reports), encoding="utf-8")
    for part in declared["pages"]["parts"]:
        if all(name in reports for name in part["reports"]):
            layout = declared["layouts"][part["layout"]]
            shown = render(layout, [reports[name] for name in part["reports"]])
            fill(ROOT / part["page"], part["mark"], shown)
    for one in (*declared["pages"]["sections"], *declared["pages"]["parts"]):
        if "plot" in one and one["reports"][0] in reports:
            plots.DRAWINGS[one["plot"]](reports[one["reports"][0]])


if __name__ == "__main__":
    main()
