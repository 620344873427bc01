"""Bracketings of trees: reading, cleaning, linearization and repair."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from translate_trt.runtime.text.bracketings import (
    Event,
    build_tree,
    clean,
    is_label_vocabulary,
    labels_of,
    linearize,
    read_bracketing,
    read_trees,
    render,
    words_of,
)

# A tree as nested lists: [label, child, ...], and [tag, word] for a word.
Nested = list[Any]


def nested(text: str) -> Nested:
    """Read one tree by recursive descent, unlike the reader under test."""
    symbols = text.replace("(", " ( ").replace(")", " ) ").split()

    def node() -> Nested:
        assert symbols.pop(0) == "("
        found: Nested = [symbols.pop(0)]
        while symbols[0] != ")":
            found.append(node() if symbols[0] == "(" else symbols.pop(0))
        symbols.pop(0)
        return found

    tree = node()
    assert not symbols
    return tree


def leaves(tree: Nested) -> list[str]:
    if isinstance(tree[1], str):
        assert len(tree) == 2
        return [tree[1]]
    return [word for child in tree[1:] for word in leaves(child)]


def random_tree(random: random.Random, depth: int = 0) -> str:
    if depth and (depth > 5 or random.random() < 0.5):
        return f"({random.choice(['NN', 'VB', ',', '-LRB-'])} w{random.randrange(99)})"
    children = " ".join(random_tree(random, depth + 1) for _ in range(random.randint(1, 4)))
    return f"({random.choice(['S', 'NP', 'VP'])} {children})"


def read(text: str) -> list[list[Event]]:
    damages: list[tuple[int, str]] = []
    found = list(read_trees(text.splitlines(), lambda *damage: damages.append(damage)))
    assert not damages
    return found


def test_a_tree_and_its_lines() -> None:
    text = "( (S (NP-SBJ-1 (PRP It))\n  (VP (VBZ is) (ADJP=2 (JJ red)))\n (. .)) )"
    (tree,) = (clean(one) for one in read(text))
    assert words_of(tree) == ["It", "is", "red", "."]
    assert " ".join(labels_of(tree)) == "(S (NP PRP )NP (VP VBZ (ADJP JJ )ADJP )VP . )S"
    assert render(tree) == "(S (NP (PRP It)) (VP (VBZ is) (ADJP (JJ red))) (. .))"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(S (NP (-NONE- *T*-1)) (VP (VB go)))", "(S (VP (VB go)))"),
        ("( (NP (-NONE- *)) )", ""),
        ("(TOP (S (VB go)))", "(S (VB go))"),
        ("( (ROOT (S (VB go))) )", "(S (VB go))"),
        ("( (S (VB go)) (. .) )", "(TOP (S (VB go)) (. .))"),
        ("( (VB go) )", "(TOP (VB go))"),
        ("(S ((VB go)) ((NP (NN home))))", "(S (VB go) (NP (NN home)))"),
        ("(VB go)", "(TOP (VB go))"),
        ("(S (-LRB- -LRB-) (NN a-LRB-b))", "(S (-LRB- -LRB-) (NN a-LRB-b))"),
    ],
)
def test_what_is_left_of_trees(text: str, expected: str) -> None:
    (tree,) = read(text)
    cleaned = clean(tree)
    assert render(cleaned) == expected
    assert clean(cleaned) == cleaned
    words = words_of(cleaned)
    assert "-LRB-" not in "".join(words)
    built = build_tree(labels_of(cleaned), words)
    assert (built.text, built.repaired) == (expected, False)


def test_deep_trees() -> None:
    """Time does not grow with the square of the depth."""
    (tree,) = read("( " * 40_000 + "(S (NN a)" + ")" * 40_001)
    assert render(clean(tree)) == "(S (NN a))"


def test_trees_of_any_shape_come_back() -> None:
    rng = random.Random(1)
    trees = [random_tree(rng) for _ in range(300)]
    separators = [rng.choice(["", " ", "\n", "\n\n  "]) for _ in trees]
    text = "".join(
        a + b.replace(" ", rng.choice([" ", "\n", "\t"]))
        for a, b in zip(separators, trees, strict=True)
    )
    found = read(text)
    assert [nested(render(tree)) for tree in found] == [nested(tree) for tree in trees]
    for tree in found:
        cleaned = clean(tree)
        assert render(cleaned) == render(tree)
        built = build_tree(labels_of(cleaned), words_of(cleaned))
        assert (built.text, built.repaired) == (render(tree), False)


@pytest.mark.parametrize(
    ("labels", "words", "expected"),
    [
        ("(S NN )S", "a", "(S (NN a))"),
        ("(S NN", "a", "(S (NN a))"),
        ("NN )S", "a", "(TOP (NN a))"),
        ("(S (NP NN )S", "a", "(S (NP (NN a)))"),
        ("(S (NP NN )VP )NP )S", "a", "(S (NP (NN a)))"),
        ("(S NN )S (. . )", "a b", "(TOP (S (NN a)) (. (. b)))"),
        ("(S NN )S", "a b c", "(S (NN a) (XX b) (XX c))"),
        ("(S NN NN VB )S", "a", "(S (NN a))"),
        ("(S (NP )NP NN )S", "a", "(S (NN a))"),
        ("", "a ( .", "(TOP (XX a) (-LRB- -LRB-) (. .))"),
        ("(S \u2047 )S", "a", "(S (XX a))"),
        ("(S NN )S", "", ""),
        ("( ) (S NN )S", "a", "(S (NN a))"),
    ],
)
def test_repair(labels: str, words: str, expected: str) -> None:
    built = build_tree(labels.split(), words.split())
    assert built.text == expected
    assert built.repaired == (labels != "(S NN )S" or words != "a")


def test_any_labels_become_a_tree_of_the_words() -> None:
    rng = random.Random(2)
    alphabet = ["(S", "(NP", ")S", ")NP", "NN", "VB", "(", ")", "\u2047"]
    for _ in range(2000):
        words = [rng.choice(["a", "(", ")", "x(y)"]) for _ in range(rng.randint(1, 8))]
        labels = [rng.choice(alphabet) for _ in range(rng.randrange(16))]
        text = build_tree(labels, words).text
        escaped = [word.replace("(", "-LRB-").replace(")", "-RRB-") for word in words]
        assert leaves(nested(text)) == escaped
        assert clean(read_bracketing(text)) == list(read_bracketing(text))


def read_damaged(lines: Iterable[str]) -> tuple[list[str], list[tuple[int, str]]]:
    """Return the trees of lines and the damages."""
    damages: list[tuple[int, str]] = []
    trees = list(read_trees(lines, lambda *damage: damages.append(damage)))
    return [render(tree) for tree in trees], damages


def test_damaged_trees_are_passed_over() -> None:
    lines = ["(S (NN a))", "(NN a b) stray", ")", "(S", "(NN a b))", "(S (NN b))", "(S (NN"]
    trees, damages = read_damaged(lines)
    assert trees == ["(S (NN a))", "(S (NN b))"]
    assert damages == [
        (2, "the bracket NN a has more than a word"),
        (2, "stray is not in a bracket with a tag"),
        (3, "a closing bracket has no opening one"),
        (4, "the bracket NN a has more than a word"),
        (7, "an opening bracket has no closing one"),
    ]


@pytest.mark.parametrize(
    ("text", "bracket"),
    [
        ("(S (NP (-LRB- () (NN x) (-RRB- ))) (. .))", "()"),
        ("(S (NP (NN x) (-RRB- )) (. .))", "-RRB-"),
        ("(S (NP) (NN x))", "NP"),
        ("()", "()"),
    ],
)
def test_brackets_without_a_word_are_damage(text: str, bracket: str) -> None:
    trees, damages = read_damaged(["(S (NN a))", text])
    assert trees == ["(S (NN a))"]
    assert damages[0] == (2, f"the bracket {bracket} has no word")
    assert linearize(text) == text


def test_one_missing_bracket_costs_one_tree() -> None:
    lines = [f"(S (NN w{number}))" for number in range(1, 402)]
    whole, _ = read_damaged(lines)
    lines[2] = lines[2][:-1]
    trees, damages = read_damaged(lines)
    assert trees == whole[:2] + whole[3:]
    assert damages == [(3, "an opening bracket has no closing one")]


def test_brackets_in_the_first_column_of_whole_trees() -> None:
    trees, damages = read_damaged(["(S", "(NN a)", "(NP", "(NN b)))"] * 2)
    assert (trees, damages) == (["(S (NN a) (NP (NN b)))"] * 2, [])


def test_many_damaged_trees() -> None:
    """Time does not grow with the square of their number."""
    trees, damages = read_damaged(["(S (NN a)"] * 50_000 + ["(S (NN a))"])
    assert (trees, len(damages)) == (["(S (NN a))"], 50_000)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("(S (NP-SBJ (PRP It)) (VP (VBZ works)) (. .))", "(S (NP PRP )NP (VP VBZ )VP . )S"),
        ("(S (NP PRP )NP (VP VBZ )VP . )S", "(S (NP PRP )NP (VP VBZ )VP . )S"),
        ("(NP NN )NP", "(NP NN )NP"),  # a tree and a label, if read as brackets
        ("(NN a) (NN b)", "(NN a) (NN b)"),
        ("(NP (NN a)", "(NP (NN a)"),
        ("NN", "NN"),
        ("", ""),
    ],
)
def test_one_tree_is_linearized_and_other_text_is_not(text: str, labels: str) -> None:
    assert linearize(text) == labels


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["<s>", "\u2581NN", "\u2581(NP", "\u2581)NP"], True),
        (["<s>", "\u2581(", "\u2581)", "\u2581the", "(NP", ")NP"], False),
        # Pieces of vocabularies of text.
        (["<s>", "\u2581(18+)", "\u2581(1", "\u2581)", "\u2581).", "1)"], False),
    ],
)
def test_vocabularies_of_labels(pieces: list[str], expected: bool) -> None:
    assert is_label_vocabulary(iter(pieces)) is expected
