"""Constituency parsing with a compiled model (section 6.3 of the paper, docs/parsing.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from translate_trt.runtime.arguments import checked_iterable
from translate_trt.runtime.bundle.checks import max_segment_length
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.bracketings import as_text, build_tree
from translate_trt.runtime.text.tokenizer import without_controls
from translate_trt.runtime.translator import Translator


@dataclass(frozen=True)
class Parse:
    """Parse tree of a sentence.

    Attributes:
        tree: The tree on one line, with exactly the words of the sentence; empty without words.
        repaired: Whether the model's output was no tree of the words and was made one.
        score: Log-probability of the output divided by the length penalty; None for a sentence
            that is longer than the bundle's limit, whose tree only lists its words.
        truncated: Whether the output was cut off at the maximum length.
    """

    tree: str
    repaired: bool
    score: float | None
    truncated: bool


class Parser:
    """Parser of sentences, each as a whole: none is split into segments.

    Args of the constructor:
        translator: Translator of a bundle that was trained on trees.

    Raises:
        OptionError: The bundle's target vocabulary has no labels of trees.
    """

    def __init__(self, translator: Translator) -> None:
        if not translator.tokenizer.writes_trees:
            raise OptionError(
                "this bundle is no parser: its target vocabulary has no labels of trees, such as "
                "(S. Export a model that was trained on data of `translate-trt data prepare "
                "--trees`."
            )
        self._translator = translator

    def parse(
        self, sentences: Iterable[str | Sequence[str]], options: SearchOptions | None = None
    ) -> list[Parse]:
        """Parse sentences.

        Args:
            sentences: Sentences as text, which `split_words` splits, or as lists of words, in which
                "-LRB-" is a bracket.
            options: Search options; None uses the bundle's defaults.

        Raises:
            OptionError: An option is out of range or not compiled into the bundle; a word has white
                space or is empty; the package nltk, which splits text, is not installed.
            BackendError: The backend failed.
        """
        words = [
            split_words(one) if isinstance(one, str) else [_word(word) for word in one]
            for one in checked_iterable("sentences", "texts or lists of words", sentences)
        ]
        translator = self._translator
        sources = translator.tokenizer.encode_source_batch([" ".join(one) for one in words])
        longest = max_segment_length(translator.manifest)
        fits = [len(source) <= longest for source in sources]
        found = iter(
            translator.translate_ids(
                [source for source, fit in zip(sources, fits, strict=True) if fit], options
            )
        )
        parses = []
        for own, fit in zip(words, fits, strict=True):
            if not fit:
                parses.append(Parse(build_tree((), own).text, True, None, False))
                continue
            best = next(found)[0]
            built = build_tree(translator.tokenizer.decode(best.tokens).split(), own)
            parses.append(Parse(built.text, built.repaired, best.score, best.truncated))
        return parses


def split_words(text: str) -> list[str]:
    """Split an English sentence into words as the Penn Treebank does ("isn't" is "is n't").

    Raises:
        OptionError: The package nltk is not installed.
    """
    try:
        from nltk.tokenize.destructive import NLTKWordTokenizer
    except ImportError as error:
        raise OptionError(
            "splitting text into words needs the package nltk; run pip install "
            "'translate-trt[parse]', or give the words."
        ) from error
    found = NLTKWordTokenizer().tokenize(without_controls(text))
    return [word for token in found for word in token.split()]


def _word(word: str) -> str:
    if without_controls(word).split() != [word]:
        raise OptionError(f"{word!r} is no word: words have no white space and are not empty.")
    return as_text(word)
