"""Bracketings of parse trees, and their linearization for a model that reads words (section 6.3).

A tree such as "(S (NP (PRP It)) (VP (VBZ works)))" has the words "It works" and the labels
"(S (NP PRP )NP (VP VBZ )VP )S": an opening label, a tag for each word, a closing label.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

#: Tag of the empty words that mark traces in treebanks.
TRACE = "-NONE-"

#: Tag of words for which a model has written none, except for punctuation marks.
NO_TAG = "XX"

# Words with the same tag in all treebanks of Penn's style, which EVALB tells words from marks by.
_MARKS = {
    ",": ",", ".": ".", "?": ".", "!": ".", ":": ":", ";": ":", "``": "``", "''": "''",
    "-LRB-": "-LRB-", "-RRB-": "-RRB-",
}  # fmt: skip

#: Label of a root that a tree is given so that it has one.
ROOT = "TOP"

# Labels of roots without a meaning, in the treebanks that have them; Penn's have none.
_EMPTY_ROOTS = frozenset(("", ROOT, "ROOT", "S1"))

_TOKEN = re.compile(r"[()]|[^\s()]+")

# Round brackets of words in bracketings, and in text.
_ESCAPES = (("-LRB-", "("), ("-RRB-", ")"))

# SentencePiece's text of the unknown symbol.
_UNKNOWN = "\u2047"


class Opening(NamedTuple):
    """Begin of a constituent."""

    label: str


class Word(NamedTuple):
    """Word with its tag."""

    tag: str
    text: str


class Closing(NamedTuple):
    """End of the constituent that was opened last."""

    label: str


Event = Opening | Word | Closing


def read_bracketing(text: str) -> Iterator[Event]:
    """Read the brackets of a text, which may have any number of trees.

    Raises:
        ValueError: They are not balanced, or a bracket has more than a tag and a word.
    """
    return _events(_TOKEN.findall(text))


def _events(tokens: Sequence[str]) -> Iterator[Event]:
    position, labels = 0, list[str]()
    while position < len(tokens):
        if tokens[position] == ")":
            if not labels:
                raise ValueError("a closing bracket has no opening one")
            yield Closing(labels.pop())
            position += 1
            continue
        if tokens[position] != "(":
            raise ValueError(f"{tokens[position]} is not in a bracket with a tag")
        label, position = "", position + 1
        if position < len(tokens) and tokens[position] not in "()":
            label, position = tokens[position], position + 1
        if position < len(tokens) and tokens[position] not in "()":
            if tokens[position + 1 : position + 2] != [")"]:
                raise ValueError(f"the bracket {label} {tokens[position]} has more than a word")
            yield Word(label, tokens[position])
            position += 2
            continue
        labels.append(label)
        yield Opening(label)
    if labels:
        raise ValueError("an opening bracket has no closing one")


def read_trees(lines: Iterable[str], damaged: Callable[[int, str], None]) -> Iterator[list[Event]]:
    """Read the trees of a treebank, each on one line or several.

    If the file ends inside a tree, reading resumes after the tree's first line, at the next line
    with a bracket in its first column.

    Args:
        lines: Lines of the file.
        damaged: Called for each tree that cannot be read, with the number of its first line and
            the reason.
    """
    tokens, numbers, starts, depth = list[str](), list[int](), list[int](), 0
    for number, line in enumerate(lines, start=1):
        if line.startswith("("):
            starts.append(len(tokens))
        for token in _TOKEN.findall(line):
            depth += {"(": 1, ")": -1}.get(token, 0)
            tokens.append(token)
            numbers.append(number)
            if depth <= 0:
                yield from _tree(tokens, numbers[0], damaged)
                tokens, numbers, starts, depth = [], [], [], 0
    yield from _unclosed(tokens, numbers, starts, damaged)


def _unclosed(
    tokens: Sequence[str],
    numbers: Sequence[int],
    starts: Sequence[int],
    damaged: Callable[[int, str], None],
) -> Iterator[list[Event]]:
    """Read the rest of a treebank, which begins with a tree whose last bracket is missing.

    Brackets are matched once for all trees, so time is linear in the number of tokens.

    Args:
        tokens: Tokens from that tree to the end of the file.
        numbers: Line number of each token.
        starts: Indices of the tokens that are brackets in the first column of a line.
        damaged: See `read_trees`.
    """
    closings, openings = dict[int, int](), list[int]()
    for index, token in enumerate(tokens):
        if token == "(":
            openings.append(index)
        elif token == ")" and openings:
            closings[openings.pop()] = index
    begin = 0
    while begin < len(tokens):
        if tokens[begin] == "(" and begin not in closings:
            damaged(numbers[begin], "an opening bracket has no closing one")
            following = bisect_right(starts, begin)
            begin = starts[following] if following < len(starts) else len(tokens)
        else:
            end = closings.get(begin, begin) + 1
            yield from _tree(tokens[begin:end], numbers[begin], damaged)
            begin = end


def _tree(
    tokens: Sequence[str], begin: int, damaged: Callable[[int, str], None]
) -> Iterator[list[Event]]:
    try:
        events = list(_events(tokens))
        _check_words(events)
    except ValueError as error:
        damaged(begin, str(error))
    else:
        yield events


def _check_words(tree: Sequence[Event]) -> None:
    """Raise ValueError if a bracket has neither a word nor other brackets in it.

    Such brackets are those of words that are brackets themselves and were not escaped: "(-LRB- ()".
    """
    for event, following in pairwise(tree):
        if isinstance(event, Opening) and isinstance(following, Closing):
            raise ValueError(f"the bracket {event.label or '()'} has no word")


def category(label: str) -> str:
    """Return the label of a constituent without functions and indices: NP of "NP-SBJ-1"."""
    return re.split("[-=]", label, maxsplit=1)[0]


def clean(tree: Iterable[Event]) -> list[Event]:
    """Remove traces, functions of labels, and constituents without words or without a label.

    The result has one root, which is `ROOT` if the tree has several constituents or a word outside
    of any; it is empty if the tree has no words.
    """
    labelled: list[Event] = []
    openings: list[int] = []
    for event in tree:
        match event:
            case Opening(label):
                openings.append(len(labelled))
                labelled.append(Opening(category(label)))
            case Word(tag):
                if tag != TRACE:
                    labelled.append(event)
            case Closing():
                begin = openings.pop()
                if begin == len(labelled) - 1:
                    labelled.pop()
                else:
                    labelled.append(Closing(labelled[begin][0]))
    closings = _closings(labelled)
    begin, end = 0, len(labelled)
    while closings.get(begin) == end - 1 and labelled[begin][0] in _EMPTY_ROOTS:
        begin, end = begin + 1, end - 1
    return _with_root([event for event in labelled[begin:end] if event[0]])


def _closings(tree: Sequence[Event]) -> dict[int, int]:
    """Return the index of the closing of each opening, by the index of the opening."""
    closings, openings = dict[int, int](), list[int]()
    for index, event in enumerate(tree):
        if isinstance(event, Opening):
            openings.append(index)
        elif isinstance(event, Closing):
            closings[openings.pop()] = index
    return closings


def _has_one_root(tree: Sequence[Event]) -> bool:
    depth = 0
    for index, event in enumerate(tree):
        depth += isinstance(event, Opening) - isinstance(event, Closing)
        if not depth:
            return isinstance(event, Closing) and index == len(tree) - 1
    return False


def _with_root(tree: list[Event]) -> list[Event]:
    if not tree or _has_one_root(tree):
        return tree
    return [Opening(ROOT), *tree, Closing(ROOT)]


def words_of(tree: Iterable[Event]) -> list[str]:
    """Return the words of a tree as they are in text, with "(" for "-LRB-"."""
    return [as_text(event.text) for event in tree if isinstance(event, Word)]


def as_text(word: str) -> str:
    """Return a word of a bracketing as it is in text, with "(" for "-LRB-"."""
    for escape, bracket in _ESCAPES:
        word = word.replace(escape, bracket)
    return word


def labels_of(tree: Iterable[Event]) -> list[str]:
    """Return the linearized tree without its words."""
    prefixes = {Opening: "(", Word: "", Closing: ")"}
    return [prefixes[type(event)] + event[0] for event in tree]


def is_tag(label: str) -> bool:
    """Whether a label of a linearized tree is the tag of a word, and no bracket."""
    return label[:1] not in ("(", ")")


def linearize(text: str) -> str:
    """Return the labels of a text that is one tree, and any other text as it is."""
    damages = list[str]()
    trees = list(read_trees([text], lambda _, reason: damages.append(reason)))
    return " ".join(labels_of(clean(trees[0]))) if len(trees) == 1 and not damages else text


def _escaped(word: str) -> str:
    for escape, bracket in _ESCAPES:
        word = word.replace(bracket, escape)
    return word


def render(tree: Iterable[Event]) -> str:
    """Return a tree as one line."""
    parts: list[str] = []
    for event in tree:
        space = " " if parts and not isinstance(event, Closing) else ""
        match event:
            case Opening(label):
                parts.append(f"{space}({label}")
            case Word(tag, text):
                parts.append(f"{space}({tag} {text})")
            case Closing():
                parts.append(")")
    return "".join(parts)


@dataclass(frozen=True)
class BuiltTree:
    """Tree of a model's labels.

    Attributes:
        text: The tree as one line; empty for a sentence without words.
        repaired: Whether the labels alone were no tree of the words.
    """

    text: str
    repaired: bool


def build_tree(labels: Sequence[str], words: Sequence[str]) -> BuiltTree:
    """Put words into a linearized tree, which is repaired where it is none.

    The n-th word has the n-th tag; see `one_tag_per_word` for labels with too few or too many. Tags
    without a word are dropped, and words without a tag are added to the root. The tag of these, and
    in place of an unknown one, is `NO_TAG`, or that of a punctuation mark. A closing label closes
    the innermost open constituent of that label, with all inside it, or is dropped if there is
    none. The end closes all. Brackets without a label are dropped, and so are constituents without
    words. Several roots are put into a root `ROOT`.

    Args:
        labels: The linearized tree, see `labels_of`.
        words: Words as they are in text; none has white space.
    """
    tree: list[Event] = []
    openings: list[str] = []
    left = [_escaped(word) for word in reversed(words)]
    repaired = False

    def close() -> bool:
        """Close the innermost constituent, and return whether it has words."""
        label = openings.pop()
        if isinstance(tree[-1], Opening):
            tree.pop()
            return False
        tree.append(Closing(label))
        return True

    for label in labels:
        if label in ("(", ")"):
            repaired = True
        elif label[:1] == "(":
            openings.append(label[1:])
            tree.append(Opening(label[1:]))
        elif label[:1] == ")":
            count = openings[::-1].index(label[1:]) + 1 if label[1:] in openings else 0
            repaired |= count != 1
            for _ in range(count):
                repaired |= not close()
        elif left:
            word = left.pop()
            repaired |= label in (_UNKNOWN, NO_TAG)
            tree.append(_untagged(word) if label in (_UNKNOWN, NO_TAG) else Word(label, word))
        else:
            repaired = True
    repaired |= bool(openings or left)
    while openings:
        close()
    rest = [_untagged(word) for word in reversed(left)]
    end = len(tree) - _has_one_root(tree)
    tree[end:end] = rest
    rooted = _with_root(tree)
    return BuiltTree(render(rooted), repaired or len(rooted) != len(tree))


def _untagged(word: str) -> Word:
    return Word(_MARKS.get(word, NO_TAG), word)


def is_label_vocabulary(pieces: Iterable[str]) -> bool:
    """Whether the pieces of a target vocabulary are the labels of trees.

    An opening label counts with its closing label alone: text has pieces such as "(18+)" as well.
    """
    known = set(pieces)
    return any(
        piece[:2] == "\u2581(" and len(piece) > 2 and f"\u2581){piece[2:]}" in known
        for piece in known
    )
