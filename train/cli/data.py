"""`translate-trt data`: prepare text or a named corpus as memory-mapped token files."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.bundle.term_annotation import APPEND, FORMS
from translate_trt.runtime.cli.command import Group
from translate_trt.runtime.cli.names import default_note, field_options, output_option
from translate_trt.runtime.cli.output import open_output
from translate_trt.runtime.cli.verbosity import is_quiet
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.locks import locked_directory
from translate_trt.runtime.io.outputs import check_apart

# Neither torch nor numpy yet: this module is imported for --help too.
from translate_trt.train.data.corpora import (
    BASE_URL,
    CORPORA,
    TREE_DEFAULTS,
    Corpus,
    PrepareOptions,
)

if TYPE_CHECKING:
    from translate_trt.train.data.prepare import Preparation

log = logging.getLogger("translate_trt")

_FILES = click.Path(path_type=Path)


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
    type=_FILES,
    multiple=True,
    help="Source and target training text, plain, gzip or zstd; repeatable. Nothing is downloaded.",
)
@click.option(
    "--alignment",
    "alignments",
    type=_FILES,
    multiple=True,
    help="Word alignments of a --from, in Pharaoh format (0-0 1-2), for train --guided-alignment; "
    "once for each --from.",
)
@click.option(
    "--trees",
    type=_FILES,
    multiple=True,
    help="Treebank to train on in place of text: a file of bracketings or a directory of .mrg, "
    ".tree, .trees or .ptb files; repeatable. The source is the words, the target the linearized "
    "trees.",
)
@click.option(
    "--valid-trees", type=_FILES, multiple=True, help="Treebank for validation; repeatable."
)
@click.option("--test-trees", type=_FILES, multiple=True, help="Treebank for testing; repeatable.")
@click.option("--valid", nargs=2, type=_FILES, help="Source, target for validation (with --from).")
@click.option("--test", nargs=2, type=_FILES, help="Source, target for testing (with --from).")
@click.option("--source-language", help="Language code such as en. [file ending]")
@click.option("--target-language", help="Language code such as de. [file ending]")
@click.option("--downloads", type=_FILES, help="Directory of archives. [OUT/downloads]")
@click.option("--mirror", default=BASE_URL, show_default=True, help="Server to download from.")
@click.option("--workers", type=click.IntRange(min=1), help="Number of processes. [all cores]")
@click.option("--force", is_flag=True, help="Replace complete data in --output.")
@field_options(dataclasses.fields(PrepareOptions), default_note)
@click.option(
    "--terminology",
    type=_FILES,
    help="Glossary whose target phrases annotate training pairs (docs/terminology.md).",
)
@click.option(
    "--terminology-form",
    type=click.Choice(FORMS),
    help=f"Whether the target phrase follows the source phrase or replaces it. [{APPEND}]",
)
@click.option(
    "--terminology-share",
    type=float,
    help="Share of the pairs with terms on both sides to annotate, chosen by --seed. [0.5]",
)
@click.option(
    "--terminology-ignore-case",
    is_flag=True,
    default=None,
    help="Find the phrases of the glossary in any case.",
)
@click.pass_context
def prepare(
    ctx: click.Context,
    /,
    name: str | None,
    out: Path,
    train_files: tuple[tuple[Path, Path], ...],
    alignments: tuple[Path, ...],
    trees: tuple[Path, ...],
    valid_trees: tuple[Path, ...],
    test_trees: tuple[Path, ...],
    valid: tuple[Path, Path] | None,
    test: tuple[Path, Path] | None,
    source_language: str | None,
    target_language: str | None,
    downloads: Path | None,
    mirror: str,
    workers: int | None,
    force: bool,
    terminology: Path | None,
    terminology_form: str | None,
    terminology_share: float | None,
    terminology_ignore_case: bool | None,
    **settings: Any,
) -> None:
    """Download a named corpus, or take text or trees of your own, and prepare it for training.

    The text is cleaned (dropped pairs are counted), a vocabulary is trained, and all text is
    tokenized into --output. Run the command again to resume an interrupted download.

    \b
    translate-trt data prepare wmt14-en-de --output wmt14/
    translate-trt data prepare --from train.en train.de --valid val.en val.de --output data/
    translate-trt data prepare --trees train.mrg --valid-trees dev.mrg --output trees/
    """  # noqa: D301
    if not is_quiet(ctx):
        log.setLevel(min(log.level or logging.INFO, logging.INFO))  # the counts are a result
    from translate_trt.train.data.prepare import DOWNLOADS, check_directory, recover
    from translate_trt.train.data.prepare import prepare as run
    from translate_trt.train.data.terminology import TerminologyOptions
    from translate_trt.train.data.text_sources import TextSource
    from translate_trt.train.worker_processes import available_cores

    given = {field: value for field, value in settings.items() if value is not None}
    corpus = CORPORA[name] if name else None
    if corpus:
        given.setdefault("vocabulary_size", corpus.vocabulary_size)
    if trees:
        given = TREE_DEFAULTS | given
    options = PrepareOptions(**given)
    languages = (source_language, target_language)
    if trees and (corpus or train_files or valid or test or terminology):
        raise OptionError(
            "--trees takes the place of text: leave out the name of a corpus, --from, --valid, "
            "--test and --terminology."
        )
    if bool(trees) != bool(valid_trees) or (test_trees and not trees):
        raise OptionError("give --trees and --valid-trees together; --test-trees needs both.")
    if corpus is None and not train_files and not trees:
        raise OptionError(
            f"name a corpus ({', '.join(CORPORA)}), or give text with --from or trees with --trees."
        )
    if not train_files and not trees and (valid or test):
        raise OptionError("--valid and --test need --from; a named corpus has its own.")
    if alignments and not train_files:
        raise OptionError("--alignment needs --from; trees have alignments of their own.")
    how: dict[str, Any] = {
        "terminology_form": terminology_form,
        "terminology_share": terminology_share,
        "terminology_ignore_case": terminology_ignore_case,
    }
    chosen = {flag: value for flag, value in how.items() if value is not None}
    if chosen and terminology is None:
        raise OptionError(f"{', '.join(chosen)}: name the glossary with --terminology.")
    terms = None if terminology is None else TerminologyOptions(terminology, **chosen)
    if out.is_dir():
        recover(out)
    check_directory(out, force)  # before gigabytes are downloaded
    glossary = () if terminology is None else (terminology,)
    texts = (*train_files, alignments, valid or (), test or (), trees, valid_trees, test_trees)
    check_apart(out, itertools.chain(*texts, glossary))
    with locked_directory(out):
        if trees:
            job = _treebank(languages, (trees, valid_trees, test_trees), options)
        elif train_files or name is None:
            job = _local(name, languages, train_files, valid, test, options)
            aligned = [TextSource(path) for path in alignments]
            job = dataclasses.replace(job, alignments=aligned)
        else:
            job = _named(name, languages, downloads or out / DOWNLOADS, mirror, options)
        job = dataclasses.replace(job, terminology=terms)
        run(job, out, workers or available_cores(), force)
    click.echo(out)


def _treebank(
    languages: tuple[str | None, str | None],
    splits: tuple[tuple[Path, ...], ...],
    options: PrepareOptions,
) -> Preparation:
    from translate_trt.train.data.prepare import Preparation
    from translate_trt.train.data.trees import treebank_alignment, treebank_pair

    train, valid, test = splits
    origin = [[str(path) for path in paths] for paths in splits if paths]
    return Preparation(
        "treebank", languages, [treebank_pair([path]) for path in train], treebank_pair(valid),
        treebank_pair(test) if test else None, options, origin, trees=True,
        alignments=[treebank_alignment([path]) for path in train],
    )  # fmt: skip


def _local(
    name: str | None,
    languages: tuple[str | None, str | None],
    train: tuple[tuple[Path, Path], ...],
    valid: tuple[Path, Path] | None,
    test: tuple[Path, Path] | None,
    options: PrepareOptions,
) -> Preparation:
    from translate_trt.train.data.prepare import Preparation
    from translate_trt.train.data.text_sources import TextSource, language_of

    if valid is None:
        raise OptionError("--from needs --valid SOURCE TARGET, the validation text.")
    corpus = CORPORA[name] if name else None
    named = (corpus.source_language, corpus.target_language) if corpus else (None, None)
    return Preparation(
        name or "custom",
        (
            languages[0] or named[0] or language_of(train[0][0]),
            languages[1] or named[1] or language_of(train[0][1]),
        ),
        [(TextSource(source), TextSource(target)) for source, target in train],
        (TextSource(valid[0]), TextSource(valid[1])),
        (TextSource(test[0]), TextSource(test[1])) if test else None,
        options,
        [[str(path) for path in pair] for pair in (*train, valid, *([test] if test else []))],
    )


def _named(
    name: str,
    languages: tuple[str | None, str | None],
    downloads: Path,
    mirror: str,
    options: PrepareOptions,
) -> Preparation:
    from translate_trt.train.data.corpora import ArchivePair
    from translate_trt.train.data.download import download, recorded_downloads
    from translate_trt.train.data.prepare import Preparation
    from translate_trt.train.data.text_sources import Pair, TextSource

    corpus: Corpus = CORPORA[name]
    paths = {archive: download(archive, mirror, downloads) for archive in corpus.archives}

    def sources(pair: ArchivePair) -> Pair:
        path = paths[pair.archive]
        return TextSource(path, pair.source), TextSource(path, pair.target)

    return Preparation(
        name,
        (languages[0] or corpus.source_language, languages[1] or corpus.target_language),
        [sources(pair) for pair in corpus.train],
        sources(corpus.valid),
        sources(corpus.test),
        options,
        recorded_downloads(downloads, corpus.archives),
    )


@data.command()
@click.argument("directory", type=_FILES)
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
    index = prepared.index
    text = json.dumps(index, indent=2, ensure_ascii=False) if as_json else _table(index)
    with open_output(None, force=False) as output:
        output.write([text])


def _vocabulary(index: dict[str, Any]) -> str:
    sizes = f"{index['vocabulary_size']:,}"
    if source := index["source_vocabulary_size"]:
        sizes = f"{source:,} source and {sizes} target"
    return f"{sizes} tokens, {index['token_type']}"


def _table(index: dict[str, Any]) -> str:
    formatter = click.HelpFormatter(width=100)
    rows = [
        ("corpus", str(index["name"])),
        ("languages", f"{index['source_language'] or '?'} to {index['target_language'] or '?'}"),
        ("vocabulary", _vocabulary(index)),
    ]
    if terms := index.get("terminology"):
        rows.append(
            (
                "terminology",
                f"{terms['annotated']:,} training pairs annotated ({terms['annotation']['form']}) "
                f"from {terms['entries']:,} entries",
            )
        )
    with formatter.section("data"):
        formatter.write_dl(rows)
    for name, split in index["splits"].items():
        dropped = ", ".join(f"{count:,} {key}" for key, count in split["dropped"].items() if count)
        rows = [
            ("pairs", f"{split['pairs']:,} of {split['read']:,}"),
            ("dropped", dropped or "none"),
        ]
        for side in ("source", "target"):
            tokens, longest = split[f"{side}_tokens"], split[f"longest_{side}"]
            rows.append((side, f"{tokens:,} tokens, {longest} in the longest"))
        with formatter.section(name):
            formatter.write_dl(rows)
    return formatter.getvalue().strip("\n")
