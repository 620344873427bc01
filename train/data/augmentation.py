"""Augmentation of training pairs: copies in capitals, with typos, or with other punctuation.

The kinds follow OpusTrainer (Bogoychev et al. 2023, "OpusCleaner and OpusTrainer, open source
toolkits for training Machine Translation and Large language models"). Data is encoded once for all
epochs, so that a pair and its modified copy are both kept.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping

from translate_trt.runtime.errors import OptionError

TextPair = tuple[str, str]

# Ends of sentences: Latin, Chinese and Japanese, Devanagari, Arabic.
_MARKS = ".!?\u3002\uff01\uff1f\u0964\u061f"
_END = re.compile(rf"(?<=[^\s{_MARKS}])[{_MARKS}]$")
# Words of letters alone; parts of links, of names of files and of placeholders stay as they are.
_WORD = re.compile(rf"(?<!\S)[^\W\d_]{{3,}}(?=[,;:{_MARKS}]*(?:\s|$))")
_WORDS_PER_TYPO = 5
_FIRST_LETTER = re.compile(r"(?<!\S)[^\w\s]*\w")
# In half of the copies the mark is dropped. "!" and "?" are left out: Spanish begins with them too.
_OTHER_ENDS = ("", "", "", "", ",", ":", ";", "...")
_EMOJI = "😀😂😉😍😎🤔😢👍👏🙏🎉🔥✨✅❌🚀"


def _has_case(text: str) -> bool:
    """Return whether most letters have case: a Latin name in Chinese text does not count."""
    letters = [letter for letter in text if letter.isalpha()]
    return 2 * sum(letter.lower() != letter.upper() for letter in letters) > len(letters)


def _upper(source: str, target: str, _: random.Random) -> TextPair:
    return (source.upper(), target.upper()) if _has_case(source) else (source, target)


def _title(source: str, target: str, _: random.Random) -> TextPair:
    if not _has_case(source):
        return source, target
    source, target = (
        _FIRST_LETTER.sub(lambda found: found[0].upper(), text) for text in (source, target)
    )
    return source, target


def _lower(source: str, target: str, _: random.Random) -> TextPair:
    return source.lower(), target


def _typos(source: str, target: str, draw: random.Random) -> TextPair:
    words = list(_WORD.finditer(source))
    chosen = draw.sample(words, -(-len(words) // _WORDS_PER_TYPO))
    for word in sorted(chosen, key=re.Match.start, reverse=True):
        at = word.start() + draw.randrange(len(word[0]) - 1)
        first, second = source[at], source[at + 1]
        other = draw.choice(word[0])
        wrong = draw.choice((second + first, second, first + first + second, other + second))
        source = source[:at] + wrong + source[at + 2 :]
    return source, target


def _punctuation(source: str, target: str, draw: random.Random) -> TextPair:
    ends = [_END.search(text) for text in (source, target)]
    if None in ends:
        return source, target
    end = draw.choice(_OTHER_ENDS) if (source[-1] + target[-1]).isascii() else ""
    return source[:-1] + end, target[:-1] + end


def _noise(source: str, target: str, draw: random.Random) -> TextPair:
    name = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=draw.randint(3, 8)))
    noise = draw.choice(
        (draw.choice(_EMOJI), f"#{name}", f"@{name}", f"{{{name}}}", f"https://{name}.com",
         f"{name}@example.com", str(draw.randrange(10_000)), "%s")
    )  # fmt: skip
    if draw.random() < 0.5:
        return f"{noise} {source}", f"{noise} {target}"
    return f"{source} {noise}", f"{target} {noise}"


#: Kinds of copies by name. All but `ADDS_WORDS` keep the number of words, which alignments count.
KINDS: dict[str, Callable[[str, str, random.Random], TextPair]] = {
    "upper": _upper, "title": _title, "lower": _lower, "typos": _typos,
    "punctuation": _punctuation, "noise": _noise,
}  # fmt: skip
ADDS_WORDS = "noise"


def parse_shares(text: str) -> dict[str, float]:
    """Read the share of the pairs that are copied, by kind, such as "upper=0.05,typos=0.1".

    Raises:
        OptionError: The text has another form.
    """
    shares: dict[str, float] = {}
    for part in text.split(",") if text else ():
        kind, _, number = part.strip().partition("=")
        try:
            share = float(number)
        except ValueError:
            share = -1.0
        if kind not in KINDS or kind in shares or not 0 < share <= 1:
            raise OptionError(
                f"augment {text!r}: {part.strip()!r} is wrong; give each kind once, with a share "
                f"above 0 and at most 1, such as upper=0.05,typos=0.1. Kinds: {', '.join(KINDS)}."
            )
        shares[kind] = share
    return shares


def modified_copies(
    source: str, target: str, shares: Mapping[str, float], seed: int
) -> Iterator[tuple[str, TextPair]]:
    """Iterate over the modified copies of a pair, with their kinds.

    The copies depend on the seed and the text of the pair alone, not on its place. A kind that
    does not change the source gives no copy.

    Args:
        source: Source text.
        target: Its translation.
        shares: Probability of a copy, by kind.
        seed: Seed of the choice.
    """
    draw = random.Random(f"{seed}\n{source}\n{target}")
    chances = {kind: draw.random() for kind in KINDS}  # one kind's share changes no other's copies
    for kind, chance in chances.items():
        if chance < shares.get(kind, 0.0):
            copy = KINDS[kind](source, target, random.Random(f"{kind} {chance}"))
            if copy[0] != source:
                yield kind, copy


def modified_pair(kind: str, source: str, target: str, seed: int) -> TextPair:
    """Modify a pair as its copy of a kind would be; a pair without such a copy stays as it is."""
    copies = modified_copies(source, target, {kind: 1.0}, seed)
    return next((copy for _, copy in copies), (source, target))
