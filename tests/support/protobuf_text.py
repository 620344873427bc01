"""Strict parser of protobuf's text format, for Triton's configurations."""

from __future__ import annotations

import re
from typing import Any

TOKEN = re.compile(r'\s*(?:([{}:])|"((?:[^"\\]|\\[0-7]{3})*)"|([A-Za-z0-9_.-]+))')


def parse(text: str) -> dict[str, list[Any]]:
    """Parse a message strictly; return the list of values of every field."""
    tokens, place = [], 0
    text = text.rstrip()
    while place < len(text):
        match = TOKEN.match(text, place)
        assert match, text[place:]
        tokens.append(match.groups())
        place = match.end()
    message, rest = parse_fields(tokens)
    assert rest == []
    return message


def parse_fields(tokens: list[Any]) -> tuple[dict[str, list[Any]], list[Any]]:
    message: dict[str, list[Any]] = {}
    while tokens and tokens[0][0] != "}":
        (_, _, name), (sign, quoted, bare) = tokens[:2]
        if sign == "{":
            value, tokens = parse_fields(tokens[2:])
            assert tokens[0][0] == "}"
        else:
            assert sign == ":"
            _, quoted, bare = tokens[2]
            value, tokens = bare if quoted is None else unescaped(quoted), tokens[2:]
        message.setdefault(name, []).append(value)
        tokens = tokens[1:]
    return message, tokens


def unescaped(quoted: str) -> str:
    content = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), quoted.encode())
    return content.decode("utf-8")


def parameters(config: dict[str, list[Any]]) -> dict[str, str]:
    """Parse a model's configuration."""
    return {one["key"][0]: one["value"][0]["string_value"][0] for one in config["parameters"]}
