"""Named corpora and their archives, and the options of `translate-trt data prepare`.

Checksums and sizes of the five training archives are those published by TensorFlow Datasets
(`wmt14_translate`, `wmt15_translate`). For the two archives of development and test sets only MD5
sums are published (by Sockeye and sacrebleu); train/data/download.py records their SHA-256 on the
first download and checks later downloads against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.settings import check_settings, setting
from translate_trt.train.data.augmentation import parse_shares

BASE_URL = "https://www.statmt.org"


@dataclass(frozen=True)
class Archive:
    """File to download.

    Attributes:
        path: Path below the base URL.
        bytes: Size; None if unknown.
        sha256: Published SHA-256; None if unknown.
        md5: Published MD5, if there is no SHA-256. It detects damage, not tampering.
        remedy: What to do if the server has no such file, for messages.
    """

    path: str
    bytes: int | None = None
    sha256: str | None = None
    md5: str | None = None
    remedy: str = "Try --mirror with another server, or get the text yourself and use --from."

    def url(self, base: str) -> str:
        """Return the URL of the archive below the official address or a mirror."""
        return f"{base.rstrip('/')}/{self.path}"

    @property
    def file_name(self) -> str:
        """Name of the file on disk."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class ArchivePair:
    """Two members of an archive that are translations of each other, line by line."""

    archive: Archive
    source: str
    target: str


@dataclass(frozen=True)
class Corpus:
    """Named corpus: languages, vocabulary size, and the files of its splits."""

    source_language: str
    target_language: str
    vocabulary_size: int
    train: tuple[ArchivePair, ...]
    valid: ArchivePair
    test: ArchivePair

    @property
    def archives(self) -> tuple[Archive, ...]:
        """Archives of the corpus in order of use, without repetitions."""
        pairs = (*self.train, self.valid, self.test)
        return tuple(dict.fromkeys(pair.archive for pair in pairs))


EUROPARL = Archive(
    "wmt13/training-parallel-europarl-v7.tgz",
    657_632_379,
    sha256="0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)
COMMON_CRAWL = Archive(
    "wmt13/training-parallel-commoncrawl.tgz",
    918_311_367,
    sha256="c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)
NEWS_COMMENTARY = Archive(
    "wmt14/training-parallel-nc-v9.tgz",
    80_418_416,
    sha256="cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
)
UNITED_NATIONS = Archive(
    "wmt13/training-parallel-un.tgz",
    2_365_634_246,
    sha256="29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47",
)
GIGA_FRENCH = Archive(
    "wmt10/training-giga-fren.tar",
    2_595_102_720,
    sha256="3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a",
)
DEVELOPMENT = Archive("wmt14/dev.tgz", md5="88ba3fc60b2278d59277122e1c7dd6e7")
TEST = Archive("wmt14/test-full.tgz", md5="a8cd784e006feb32ac6f3d9ec7eb389a")


def _wmt14(other: str, vocabulary_size: int, *more: ArchivePair) -> Corpus:
    """Define WMT14 English to `other`, as in section 5.1 of the paper."""

    def train(archive: Archive, stem: str) -> ArchivePair:
        return ArchivePair(archive, f"{stem}.{other}-en.en", f"{stem}.{other}-en.{other}")

    return Corpus(
        source_language="en",
        target_language=other,
        vocabulary_size=vocabulary_size,
        train=(
            train(EUROPARL, "training/europarl-v7"),
            train(COMMON_CRAWL, "commoncrawl"),
            train(NEWS_COMMENTARY, "training/news-commentary-v9"),
            *more,
        ),
        valid=ArchivePair(DEVELOPMENT, "dev/newstest2013.en", f"dev/newstest2013.{other}"),
        test=ArchivePair(
            TEST,
            f"test-full/newstest2014-{other}en-src.en.sgm",
            f"test-full/newstest2014-{other}en-ref.{other}.sgm",
        ),
    )


CORPORA: dict[str, Corpus] = {
    "wmt14-en-de": _wmt14("de", 37_000),
    "wmt14-en-fr": _wmt14(
        "fr",
        32_000,
        ArchivePair(UNITED_NATIONS, "un/undoc.2000.fr-en.en", "un/undoc.2000.fr-en.fr"),
        ArchivePair(
            GIGA_FRENCH, "giga-fren.release2.fixed.en.gz", "giga-fren.release2.fixed.fr.gz"
        ),
    ),
}


@dataclass(frozen=True)
class PrepareOptions:
    """Options of cleaning, vocabulary training and tokenization."""

    # ---- cleaning ----
    max_length: int = setting(
        256, "Drop pairs with a side of more tokens, the end symbol included.",
        least=2, flag="--max-pair-length",
    )  # fmt: skip
    # Of 45,155 carefully translated pairs (WMT news tests into German and French), a ratio of 3
    # drops 8, 2 drops 44 and 1.5 drops 642; in noisy text it drops misaligned pairs. Characters are
    # counted because words are not comparable between languages (compounds, no spaces).
    max_length_ratio: float = setting(
        3.0,
        "Drop pairs whose longer side has more than this many times the characters of the shorter "
        "side, plus 10 (the lengths of short sentences vary).",
        least=1,
    )
    keep_duplicates: bool = setting(False, "Keep repetitions of a pair.")

    # ---- augmentation ----
    augment: str = setting(
        "", "Add modified copies of a share of the training pairs, such as upper=0.05,typos=0.1. "
        "Kinds: upper, title (case of both sides), lower, typos (source alone), punctuation (the "
        "last mark of both sides), noise (an emoji, link, number or placeholder on both sides).",
    )  # fmt: skip

    # ---- segmentation ----
    segmentations: int = setting(
        1, "Times that the training data has each pair: once as text is tokenized for translation, "
        "otherwise with random segmentations (subword regularization).", least=1,
    )  # fmt: skip
    segmentation_alpha: float = setting(
        0.1, "Probability with which those drop a merge of BPE (Provilkov et al. 2020); for "
        "unigram, the exponent of probabilities (Kudo 2018).", above=0, most=1,
    )  # fmt: skip

    # ---- the vocabulary ----
    vocabulary_size: int = setting(
        37_000, "Tokens shared by both languages, or those of the target."
    )
    source_vocabulary_size: int = setting(
        0, "Tokens of a vocabulary of the source alone; 0: both languages share one.", least=0
    )
    vocabulary_type: str = setting("bpe", "bpe (the paper) or unigram.", ("bpe", "unigram"))
    normalization: str = setting(
        "nmt_nfkc", "Normalization of text by the vocabularies: nmt_nfkc, or identity, which "
        "changes no character.",
        ("nmt_nfkc", "identity"),
    )  # fmt: skip
    symbols: str = setting(
        "", "Symbols that are single tokens wherever they occur, and never parts of others, "
        "separated by commas, such as <br>,<name>.",
    )  # fmt: skip
    vocabulary_sentences: int = setting(
        2_000_000, "Sentences to sample for training the vocabulary, half of each language. Pairs "
        "of all corpora are equally likely: `train --corpus-weights` comes later.", least=2,
    )  # fmt: skip
    seed: int = setting(1, "Seed of the sample, of --augment and of --segmentations.", least=0)

    def __post_init__(self) -> None:
        check_settings(self)
        _ = self.augment_shares
        own = self.user_symbols
        special = {"<s>", "</s>", "<pad>", "<unk>"}  # of every vocabulary; \u2581 is its space
        if len(special.union(own)) < len(special) + len(own) or any(
            len(symbol.split()) != 1 or "\u2581" in symbol for symbol in own
        ):
            raise OptionError(
                f"symbols {self.symbols!r}: give each once, without spaces, separated by commas, "
                f"such as <br>,<name>; {', '.join(sorted(special))} are taken."
            )

    @property
    def augment_shares(self) -> dict[str, float]:
        """Share of the pairs that are copied, by kind of `augment`.

        Raises:
            OptionError: The text has another form.
        """
        return parse_shares(self.augment)

    @property
    def user_symbols(self) -> list[str]:
        """The symbols in `symbols`."""
        return [symbol.strip() for symbol in self.symbols.split(",")] if self.symbols else []


#: Options of `data prepare --trees` that differ from those of translation. Labels are more than
#: words and none of them occurs in text; tensor2tensor trains parsers on up to 512 tokens.
TREE_DEFAULTS: dict[str, Any] = {
    "max_length": 512, "max_length_ratio": 1_000.0, "keep_duplicates": True,
    "source_vocabulary_size": 16_000, "normalization": "identity",
}  # fmt: skip
