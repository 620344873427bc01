"""`translate-trt data`: prepare text or a named corpus as memory-mapped token files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.bundle.term_annotation import APPEND, FORMS
from translate_trt.runtime.cli.command import Group, given, take
from translate_trt.runtime.cli.names import (
    PATH,
    default_note,
    field_option,
    field_options,
    output_option,
    processes_flag,
)
from translate_trt.runtime.cli.output import print_json, print_sections
from translate_trt.runtime.cli.verbosity import show_progress
from translate_trt.runtime.cores import available_cores
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.locks import locked_directory
from translate_trt.runtime.io.outputs import check_apart
from translate_trt.train.cli.terminology_flags import take_terminology, terminology_share_flag

# Neither torch nor numpy yet: this module is imported for --help too.
from translate_trt.train.data.augmentation import KINDS, modified_pair
from translate_trt.train.data.corpora import (
    BASE_URL,
    CORPORA,
    TREE_DEFAULTS,
    ArchivePair,
    Corpus,
    PrepareOptions,
)

if TYPE_CHECKING:
    from translate_trt.train.data.prepare import Preparation
    from translate_trt.train.data.text_sources import Pair


@click.group(cls=Group)
def data() -> None:
    """Prepare parallel text as memory-mapped token files."""


@data.command()
@click.argument("name", type=click.Choice(list(CORPORA)), required=False)
@output_option("Directory to create.")
@click.option(
    "--from",
    "train_files",
    nargs=2,
    type=PATH,
    multiple=True,
    help="Source and target training text, plain, gzip or zstd; repeatable. Nothing is downloaded.",
)
@click.option(
    "--back-translated",
    nargs=2,
    type=PATH,
    multiple=True,
    help="More training text like --from, whose source is a machine's translation of the target: "
    "each source begins with a tag, <BT>; repeatable.",
)
@click.option(
    "--alignment",
    "alignments",
    type=PATH,
    multiple=True,
    help="Word alignments of a --from, in Pharaoh format (0-0 1-2), for train --guided-alignment; "
    "once for each --from, then each --back-translated.",
)
@click.option(
    "--trees",
    type=PATH,
    multiple=True,
    help="Treebank to train on in place of text: a file of bracketings or a directory of .mrg, "
    ".tree, .trees or .ptb files; repeatable. The source is the words, the target the linearized "
    "trees.",
)
@click.option(
    "--valid-trees", type=PATH, multiple=True, help="Treebank for validation; repeatable."
)
@click.option("--test-trees", type=PATH, multiple=True, help="Treebank for testing; repeatable.")
@click.option(
    "--valid", nargs=2, type=PATH, multiple=True,
    help="Source, target for validation (with --from); repeatable.",
)  # fmt: skip
@click.option(
    "--test", nargs=2, type=PATH, multiple=True,
    help="Source, target for testing (with --from); repeatable.",
)  # fmt: skip
@click.option(
    "--language-tags",
    is_flag=True,
    help="Begin each source with the language of its target, such as <2de>: the ending of the "
    "target's file name. The model then takes --target-language.",
)  # fmt: skip
@click.option("--source-language", help="Language code such as en. [file ending]")
@click.option("--target-language", help="Language code such as de. [file ending]")
@click.option("--downloads", type=PATH, help="Directory of archives. [OUT/downloads]")
@click.option("--mirror", default=BASE_URL, show_default=True, help="Server to download from.")
@processes_flag
@click.option("--force", is_flag=True, help="Replace complete data in --output.")
@field_options(dataclasses.fields(PrepareOptions), default_note)
@click.option(
    "--terminology",
    type=PATH,
    help="Glossary whose target phrases annotate training pairs (docs/terminology.md).",
)
@click.option(
    "--terminology-form",
    type=click.Choice(FORMS),
    help=f"Whether the target phrase follows the source phrase or replaces it. [{APPEND}]",
)
@terminology_share_flag
@click.option(
    "--terminology-ignore-case",
    is_flag=True,
    help="Find the phrases of the glossary in any case.",
)
def prepare(
    out: Path,
    downloads: Path | None,
    mirror: str,
    workers: int | None,
    force: bool,
    **flags: Any,
) -> None:
    """Download a named corpus, or take text or trees of your own, and prepare it for training.

    The text is cleaned (dropped pairs are counted), a vocabulary is trained, and all text is
    tokenized into --output. Run the command again to resume an interrupted download.

    \b
    translate-trt data prepare wmt14-en-de --output wmt14/
    translate-trt data prepare --from train.en train.de --valid val.en val.de --output data/
    translate-trt data prepare --trees train.mrg --valid-trees dev.mrg --output trees/
    """  # noqa: D301
    show_progress()  # the counts are a result
    from translate_trt.train.data.prepare import DOWNLOADS, check_directory, recover
    from translate_trt.train.data.prepare import prepare as run

    texts, terminology = take(flags, _Texts), take_terminology(flags)
    options = PrepareOptions(**texts.defaults | given(flags))
    texts.check(terminology is not None)
    if out.is_dir():
        recover(out)
    check_directory(out, force)  # before gigabytes are downloaded
    glossary = () if terminology is None else (terminology.terminology,)
    check_apart(out, (*texts.files, *glossary))
    with locked_directory(out):
        job = texts.preparation(options, downloads or out / DOWNLOADS, mirror)
        job = dataclasses.replace(job, terminology=terminology)
        run(job, out, workers or available_cores(), force)
    click.echo(out)


@dataclass(frozen=True)
class _Texts:
    """Flags that say what is prepared: a named corpus, text of one's own, or trees."""

    name: str | None
    train_files: tuple[tuple[Path, Path], ...]
    back_translated: tuple[tuple[Path, Path], ...]
    alignments: tuple[Path, ...]
    trees: tuple[Path, ...]
    valid_trees: tuple[Path, ...]
    test_trees: tuple[Path, ...]
    valid: tuple[tuple[Path, Path], ...]
    test: tuple[tuple[Path, Path], ...]
    language_tags: bool
    source_language: str | None
    target_language: str | None

    @property
    def corpus(self) -> Corpus | None:
        """The named corpus, which lends its languages and settings to text of one's own."""
        return CORPORA[self.name] if self.name else None

    @property
    def defaults(self) -> dict[str, Any]:
        """Settings that differ from those of `PrepareOptions`."""
        if self.trees:
            return TREE_DEFAULTS
        return {"vocabulary_size": self.corpus.vocabulary_size} if self.corpus else {}

    @property
    def files(self) -> list[Path]:
        """All files that are named."""
        pairs = (*self.train_files, *self.back_translated, *self.valid, *self.test)
        trees = (self.trees, self.valid_trees, self.test_trees)
        return [path for paths in (*pairs, self.alignments, *trees) for path in paths]

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Languages that are given, or those of the corpus."""
        named = self.corpus
        source, target = (named.source_language, named.target_language) if named else (None, None)
        return self.source_language or source, self.target_language or target

    def check(self, has_glossary: bool) -> None:
        """Refuse flags that exclude each other or need another.

        Raises:
            OptionError: Flags do not go together.
        """
        text = self.train_files or self.valid or self.test
        if self.trees and self.back_translated:
            raise OptionError("--back-translated is text; leave it or --trees out.")
        if self.trees and (self.name or text or has_glossary):
            raise OptionError(
                "--trees takes the place of text: leave out the name of a corpus, --from, --valid, "
                "--test and --terminology."
            )
        if bool(self.trees) != bool(self.valid_trees) or (self.test_trees and not self.trees):
            raise OptionError("give --trees and --valid-trees together; --test-trees needs both.")
        if not (self.name or self.train_files or self.trees):
            raise OptionError(
                f"name a corpus ({', '.join(CORPORA)}), or give text with --from or trees with "
                "--trees."
            )
        if text and not self.train_files:
            raise OptionError("--valid and --test need --from; a named corpus has its own.")
        if self.language_tags and (not self.train_files or self.target_language):
            raise OptionError(
                "--language-tags needs --from, whose file names have the target languages; leave "
                "--target-language out."
            )
        if self.train_files and not self.valid:
            raise OptionError("--from needs --valid SOURCE TARGET, the validation text.")
        if self.alignments and not self.train_files:
            raise OptionError("--alignment needs --from; trees have alignments of their own.")

    def preparation(self, options: PrepareOptions, downloads: Path, mirror: str) -> Preparation:
        """Open the texts; those of a named corpus are downloaded first."""
        if self.trees:
            return self._treebank(options)
        if self.train_files:
            return self._own_text(options)
        assert self.corpus is not None  # `check` refuses flags without texts
        return self._downloaded(self.corpus, options, downloads, mirror)

    def _treebank(self, options: PrepareOptions) -> Preparation:
        from translate_trt.train.data.prepare import Preparation
        from translate_trt.train.data.trees import treebank_alignment, treebank_pair

        splits = (self.trees, self.valid_trees, self.test_trees)
        origin = [[str(path) for path in paths] for paths in splits if paths]
        return Preparation(
            "treebank", self.languages, [treebank_pair([path]) for path in self.trees],
            [treebank_pair(self.valid_trees)],
            [treebank_pair(self.test_trees)] if self.test_trees else [], options, origin,
            trees=True, alignments=[treebank_alignment([path]) for path in self.trees],
        )  # fmt: skip

    def _own_text(self, options: PrepareOptions) -> Preparation:
        from translate_trt.train.data.prepare import Preparation
        from translate_trt.train.data.text_sources import TextSource, language_of

        source, target = self.languages
        pairs = (*self.train_files, *self.back_translated, *self.valid, *self.test)
        if self.language_tags:
            target, endings = None, {language_of(pair[0]) for pair in self.train_files}
            source = source or (endings.pop() if len(endings) == 1 else None)
        else:
            first = self.train_files[0]
            source, target = source or language_of(first[0]), target or language_of(first[1])
        return Preparation(
            self.name or "custom",
            (source, target),
            [_text_pair(pair) for pair in self.train_files],
            [_text_pair(pair) for pair in self.valid],
            [_text_pair(pair) for pair in self.test],
            options,
            [[str(path) for path in pair] for pair in pairs],
            alignments=[TextSource(path) for path in self.alignments],
            back_translated=[_text_pair(pair) for pair in self.back_translated],
            language_tags=self.language_tags,
        )

    def _downloaded(
        self, corpus: Corpus, options: PrepareOptions, downloads: Path, mirror: str
    ) -> Preparation:
        from translate_trt.train.data.download import download, recorded_downloads
        from translate_trt.train.data.prepare import Preparation
        from translate_trt.train.data.text_sources import TextSource

        paths = {archive: download(archive, mirror, downloads) for archive in corpus.archives}

        def sources(pair: ArchivePair) -> Pair:
            path = paths[pair.archive]
            return TextSource(path, pair.source), TextSource(path, pair.target)

        return Preparation(
            str(self.name),
            self.languages,
            [sources(pair) for pair in corpus.train],
            [sources(corpus.valid)],
            [sources(corpus.test)],
            options,
            [
                *recorded_downloads(downloads, corpus.archives),
                *([str(path) for path in pair] for pair in self.back_translated),
            ],
            back_translated=[_text_pair(pair) for pair in self.back_translated],
        )


def _text_pair(pair: tuple[Path, Path]) -> Pair:
    from translate_trt.train.data.text_sources import TextSource

    return TextSource(pair[0]), TextSource(pair[1])


@data.command()
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@output_option("Directory to create, with source.txt and target.txt.")
@field_option(PrepareOptions, "seed", "Seed of typos, marks and noise.")
def augment(kind: str, source: Path, target: Path, out: Path, seed: int) -> None:
    """Modify all lines of a test set, to measure the robustness of models.

    SOURCE and TARGET are changed as by `data prepare --augment`. Pairs that a KIND does not apply
    to stay as they are.

    \b
    translate-trt data augment upper test.en test.de --output capitals/
    translate-trt evaluate run/ --source capitals/source.txt --reference capitals/target.txt
    """  # noqa: D301
    from translate_trt.runtime.io.atomic_files import new_directory
    from translate_trt.train.data.text_sources import read_sides

    pairs = zip(*read_sides(source, target), strict=True)
    modified = [modified_pair(kind, *pair, PrepareOptions(seed=seed).seed) for pair in pairs]
    with new_directory(out, inputs=(source, target)) as directory:
        for side, name in enumerate(("source.txt", "target.txt")):
            content = "".join(f"{pair[side]}\n" for pair in modified)
            (directory / name).write_bytes(content.encode())
    click.echo(out)


@data.command()
@click.argument("directory", type=PATH)
@click.option("--check", is_flag=True, help="Read all token files and compare their checksums.")
@click.option("--json", "as_json", is_flag=True, help="Print data.json.")
def info(directory: Path, check: bool, as_json: bool) -> None:
    """Show the sizes of prepared data, and the dropped pairs by reason."""
    from translate_trt.train.data.token_files import open_prepared

    prepared = open_prepared(directory)
    for name in prepared.splits:
        if check:
            prepared.check(name)
        else:
            prepared.split(name)
    if as_json:
        print_json(prepared.index)
    else:
        print_sections(_sections(prepared.index))


def _vocabulary(index: dict[str, Any]) -> str:
    sizes = f"{index['vocabulary_size']:,}"
    if source := index["source_vocabulary_size"]:
        sizes = f"{source:,} source and {sizes} target"
    return f"{sizes} tokens, {index['token_type']}"


def _sections(index: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    rows = [
        ("corpus", str(index["name"])),
        ("languages", f"{index['source_language'] or '?'} to {index['target_language'] or '?'}"),
        ("vocabulary", _vocabulary(index)),
    ]
    if tagged := index.get("back_translated"):
        pairs = sum(index["splits"]["train"]["corpora"][-tagged:])
        rows.append(("back-translated", f"{pairs:,} training pairs"))
    if languages := index.get("prompt", {}).get("target_languages"):
        rows.append(("target languages", ", ".join(languages)))
    if terms := index.get("terminology"):
        rows.append(
            (
                "terminology",
                f"{terms['annotated']:,} training pairs annotated ({terms['annotation']['form']}) "
                f"from {terms['entries']:,} entries",
            )
        )
    sections = {"data": rows}
    for name, split in index["splits"].items():
        dropped = ", ".join(f"{count:,} {key}" for key, count in split["dropped"].items() if count)
        copies = split.get("copies", {})
        sections[name] = rows = [
            ("pairs", f"{split['pairs'] - sum(copies.values()):,} of {split['read']:,}"),
            ("dropped", dropped or "none"),
        ]
        if copies:
            added = ", ".join(f"{count:,} {kind}" for kind, count in copies.items())
            rows.append(("copies", added))
        for side in ("source", "target"):
            tokens, longest = split[f"{side}_tokens"], split[f"longest_{side}"]
            rows.append((side, f"{tokens:,} tokens, {longest} in the longest"))
    return sections
