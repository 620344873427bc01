"""Damaged bundles with valid hashes, so that the damage reaches the readers of the files."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.file_damage import spoiled

#: Values that no field expects, or that are at the edge of what it may hold.
_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 255, 65_536, 2**31 - 1, 2**31, 2**32, 10**9, 2**53,
    10**18, 2**63 - 1, 2**63, 2**64, 10**40, 0.0, -0.0, 0.5, 1e-300, 1e300, -1e300, "", "a", "\0",
    "\ud7ff", "../x", "/", "x" * 5000, "{}", [], {}, [[]], [0], [-1], [10**18], [None], ["a"],
    {"": None}, {"a": 1}, {"a": {"b": []}}, [[[[]]]], list(range(100)),
)  # fmt: skip


@dataclass(frozen=True)
class Damage:
    """One damaged bundle.

    Attributes:
        number: of the case, from 0; all about it is drawn from this and the seed.
        what: "manifest", "tokenizer" or "graph".
        bundle: the damaged bundle, valid until the next case is asked for.
    """

    number: int
    what: str
    bundle: Path


def damaged(
    good: Path, target: str, place: Path, seed: int, kinds: dict[str, int]
) -> Iterator[Damage]:
    """Damaged copies of a bundle, made one after the other in the same directory.

    Args:
        good: a bundle.
        target: of it, which alone the copies have.
        place: a folder for the copies, on the same file system.
        seed: of everything.
        kinds: how many cases of each kind.
    """
    manifest = json.loads((good / "manifest.json").read_text())
    manifest["targets"] = {target: manifest["targets"][target]}
    number = 0
    for what, count in kinds.items():
        for _ in range(count):
            rng = random.Random(f"{seed} {number}")
            yield Damage(number, what, _copy(good, place / str(number), manifest, what, rng))
            number += 1


def _copy(
    good: Path, bundle: Path, manifest: dict[str, Any], what: str, rng: random.Random
) -> Path:
    """Return a bundle with one kind of damage."""
    found = json.loads(json.dumps(manifest))
    (target,) = found["targets"].values()
    graphs = target["files"]
    sides = found["tokenizer"]
    chosen = None
    if what == "tokenizer":
        chosen = sides["source"]["path"]
    elif what == "graph":
        chosen = graphs[rng.choice(("encoder", "step"))]["path"]
    for entry in (*graphs.values(), *sides.values()):
        path = bundle / entry["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry["path"] != chosen:
            if not path.exists():
                os.link(good / entry["path"], path)
            continue
        if not path.exists():
            path.write_bytes(spoiled((good / chosen).read_bytes(), rng))
        content = path.read_bytes()
        entry["sha256"], entry["bytes"] = hashlib.sha256(content).hexdigest(), len(content)
    if what == "manifest":
        for _ in range(rng.choice((1, 1, 2, 3))):
            _change_field(found, rng)
    (bundle / "manifest.json").write_text(json.dumps(found))
    return bundle


def _change_field(value: dict[str, Any], rng: random.Random) -> None:
    """Replace or remove a random field of a JSON object."""
    places = [(value, name) for name in value]
    for outer, name in places:  # which grows meanwhile
        if isinstance(outer[name], dict):
            places += [(outer[name], inner) for inner in outer[name]]
    outer, name = rng.choice(places)
    way = rng.randrange(8)
    if way == 0:
        del outer[name]
    elif way == 1:
        outer[name + "x"] = rng.choice(_ODD)
    elif way == 2 and isinstance(outer[name], int):
        outer[name] += rng.choice((-1, 1, 10**6))
    else:
        outer[name] = rng.choice(_ODD)
