"""Constituency parsing with a compiled model (section 6.3 of the paper, docs/parsing.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from translate_trt.runtime.arguments import checked_iterable
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.text.bracketings import BuiltTree, as_text, build_tree
from translate_trt.runtime.text.tokenizer import Tokenizer, without_controls
from translate_trt.runtime.text.tree_alignment import attention_to_words, one_tag_per_word
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

    Attributes:
        by_attention: Whether each word has the tag that was written from it, and not the n-th word
            the n-th tag.

    Args of the constructor:
        translator: Translator of a bundle that was trained on trees.
        by_attention: Place words by attention if the target returns that of chosen heads; `export`
            chooses those of a model that was trained with guided alignment.

    Raises:
        OptionError: The bundle's target vocabulary has no labels of trees.
    """

    def __init__(self, translator: Translator, *, by_attention: bool = True) -> None:
        if not translator.tokenizer.writes_trees:
            raise OptionError(
                "this bundle is no parser: its target vocabulary has no labels of trees, such as "
                "(S. Export a model that was trained on data of `translate-trt data prepare "
                "--trees`."
            )
        self._translator = translator
        heads = translator.manifest.attention
        returned = translator.target.contract.attention and bool(heads and heads.heads)
        self.by_attention = by_attention and returned

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
        if self.by_attention:
            options = replace(options or translator.default_options, return_attention=True)
        sources = translator.tokenizer.encode_source_batch([" ".join(one) for one in words])
        longest = translator.manifest.max_segment_length
        fits = [len(source) <= longest for source in sources]
        found = iter(
            translator.translate_ids(
                [source for source, fit in zip(sources, fits, strict=True) if fit], options
            )
        )
        parses = []
        for own, source, fit in zip(words, sources, fits, strict=True):
            if not fit:
                parses.append(Parse(build_tree((), own).text, True, None, False))
                continue
            best = next(found)[0]
            built = tree_of(translator.tokenizer, own, source, best)
            parses.append(Parse(built.text, built.repaired, best.score, best.truncated))
        return parses


def tree_of(
    tokenizer: Tokenizer, words: Sequence[str], source: Sequence[int], found: Hypothesis
) -> BuiltTree:
    """Make the tree that a hypothesis describes.

    Args:
        tokenizer: Tokenizer of the parser.
        words: Words of the sentence.
        source: Tokens of the sentence without the end symbol.
        found: Hypothesis. With attention, which must be that of a head of guided alignment, each
            word has the tag that was written from it; else the n-th word has the n-th tag.
    """
    labels = tokenizer.decode(found.tokens).split()
    attention = found.attention
    if attention is None or attention.shape[1] != len(source) + 1 or not words:
        return build_tree(labels, words)
    pieces = tokenizer.source_pieces(source)
    weights = attention_to_words(attention[: len(labels)], pieces)
    # Not so for symbols without text, which no trained model writes, and for U+2581 in a word.
    if len(labels) != len(found.tokens) or weights.shape[1] != len(words) + 1:
        return build_tree(labels, words)
    tagged = one_tag_per_word(labels, weights)
    built = build_tree(tagged, words)
    return replace(built, repaired=built.repaired or tagged != labels)


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
