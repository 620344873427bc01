"""Expressions of tables.toml: a subset of Python that can only use the names it is given.

Supported are constants, names, attributes, subscripts, operators, conditions, calls, lists, tuples,
dictionaries, f-strings, comprehensions and lambdas. Attributes that begin with an underscore are
refused.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.USub: operator.neg, ast.Not: operator.not_, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda item, values: item in values, ast.NotIn: lambda item, values: item not in values,
}  # fmt: skip
FUNCTIONS: dict[str, Any] = {
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
    return _value(_parsed(expression), {**FUNCTIONS, **names})


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
