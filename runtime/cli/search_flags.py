"""Search options of all commands that translate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from translate_trt.runtime.cli.command import section
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.options import LENGTH_PENALTY_BETA, SearchOptions
from translate_trt.runtime.text.glossary import Glossary


@section("Search")
def search_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each field of `SearchOptions` that affects the search itself."""
    flags = (
        click.option("--beam-size", type=int, help="Number of beams; 1 is greedy search."),
        length_penalty_flags,
        click.option(
            "--early-stopping/--no-early-stopping",
            default=None,
            help="Stop when as many hypotheses as beams have finished, even if others may improve.",
        ),
        click.option(
            "--max-length", type=int, help="Maximum output length in tokens, end symbol included."
        ),
        click.option(
            "--max-extra-length",
            type=int,
            metavar="N",
            help="Without --max-length: maximum output length beyond that of the source. [50, or "
            "that of the bundle]",
        ),
        click.option(
            "--min-length", type=int, help="Minimum output length, counted in the same way."
        ),
        click.option(
            "--loop-guard/--no-loop-guard",
            default=None,
            help="Cut a translation that repeats one phrase without end.",
        ),
        click.option(
            "--alternatives",
            type=int,
            metavar="N",
            help="Find a translation for each of the N most likely tokens after the target prefix; "
            "where translations are written, more than 1 implies --json, but for TSV.",
        ),
        click.option(
            "--min-alternative-prob",
            type=float,
            metavar="P",
            help="Leave out alternatives whose token has a probability below P.",
        ),
        marking_flags,
        sampling_flags,
        language_flags,
    )
    for flag in reversed(flags):
        command = flag(command)
    return command


def marking_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that change log-probabilities of tokens (rule 13 of docs/beam-search.md)."""
    flags = (
        click.option(
            "--repetition-penalty",
            type=float,
            help="Factor from 1 to 1000 of the log-probabilities of tokens that a translation "
            "already has.",
        ),
        click.option(
            "--no-repeat-ngram-size",
            type=int,
            help="Let no sequence of so many tokens occur twice in a translation; 0 allows it.",
        ),
        click.option(
            "--suppress-sequences",
            metavar="TOKENS",
            help='Token sequences that no translation has, such as "12 40, 7".',
        ),
        click.option(
            "--disable-unk/--no-disable-unk",
            default=None,
            help="Let no translation have the unknown symbol.",
        ),
    )
    for flag in reversed(flags):
        command = flag(command)
    return command


def sampling_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that draw tokens at random (rule 14 of docs/beam-search.md)."""
    flags = (
        click.option(
            "--sampling-top-k",
            type=int,
            metavar="K",
            help="Draw each token at random from the K most likely ones, or with 0 from the whole "
            "vocabulary; needs --beam-size 1.",
        ),
        click.option(
            "--sampling-top-p",
            type=float,
            metavar="P",
            help="Of these, draw from the fewest that have a share of P of the probability.",
        ),
        click.option(
            "--sampling-temperature",
            type=float,
            metavar="T",
            help="Divide log-probabilities by T before drawing; less than 1 favours likely tokens.",
        ),
        click.option(
            "--sampling-seed",
            "seed",
            type=int,
            metavar="N",
            help="Draw other translations; the same seed repeats them. [0]",
        ),
    )
    for flag in reversed(flags):
        command = flag(command)
    return command


@section("Search")
def length_penalty_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add alpha and the form of the length penalty."""
    form = click.option(
        "--length-penalty-form",
        type=click.Choice(list(LENGTH_PENALTY_BETA)),
        help="gnmt: ((5 + n) / 6) ** alpha, as in the paper; length: n ** alpha.",
    )
    alpha = click.option(
        "--length-penalty", type=float, help="Length penalty alpha; 0 favours short output."
    )
    return alpha(form(command))


@section("Results")
def n_best_flag(command: Callable[..., None]) -> Callable[..., None]:
    """Add the number of hypotheses to write."""
    return click.option(
        "--n-best",
        "num_hypotheses",
        type=int,
        help="Number of best hypotheses to write; more than 1 implies --json, but for TSV.",
    )(command)


@section("Search")
def language_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the language options of multilingual models."""
    for side in ("target", "source"):
        help = f"{side.capitalize()} language of a multilingual model, such as de or deu_Latn."
        command = click.option(f"--{side}-language", metavar="CODE", help=help)(command)
    return command


@section("Results")
def attention_flag(command: Callable[..., None]) -> Callable[..., None]:
    """Add the cross-attention of the results."""
    return click.option(
        "--attention",
        "return_attention",
        is_flag=True,
        default=None,
        help="Add cross-attention; implies --json and needs a bundle exported with --attention.",
    )(command)


@section("Results")
def alignment_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the alignments of the results."""
    command = click.option(
        "--alignment-threshold",
        type=float,
        metavar="P",
        help="Align all pairs of words of at least this weight, from 0 to 1; implies --alignments. "
        "Default: each word of the translation with the source word of the largest weight.",
    )(command)
    return click.option(
        "--alignments",
        is_flag=True,
        help="Add word alignments in Pharaoh format (0-0 1-2): numbers of source word and target "
        "word. Needs a bundle exported with --attention.",
    )(command)


@section("Sentences and documents")
def split_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of sentence splitting; `split_choice` reads them."""
    command = click.option(
        "--split-language",
        metavar="CODE",
        help="Language whose rules find the sentences, such as de; implies --split-sentences. "
        "[the source language]",
    )(command)
    return click.option(
        "--split-sentences",
        is_flag=True,
        help="Translate the sentences of each line one by one; needs the extra split.",
    )(command)


@section("Sentences and documents")
def translate_all_flag(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option that sends lines without letters to the model."""
    return click.option(
        "--translate-all",
        is_flag=True,
        help="Translate also lines without letters, such as numbers, dates and prices, and lines "
        "that are only a URL or an e-mail address. [they stay as they are]",
    )(command)


@section("Terminology")
def terminology_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a glossary; `read_glossary` reads it."""
    command = click.option(
        "--terminology-ignore-case",
        is_flag=True,
        help="Find the phrases of the glossary in any case.",
    )(command)
    return click.option(
        "--terminology",
        type=click.Path(path_type=Path),
        help="Glossary whose target phrases the translations must have; a model that was trained "
        "on text annotated with them reads them instead. Translate prints their recall.",
    )(command)


def read_glossary(path: Path | None, ignore_case: bool) -> Glossary | None:
    """Read the glossary of `terminology_flags`, if there is one.

    Raises:
        InputError: The file is no glossary.
        OptionError: The case matters for a glossary alone.
    """
    if path is not None:
        return Glossary.read(path, ignore_case)
    if ignore_case:
        raise OptionError("--terminology-ignore-case needs --terminology.")
    return None


def split_choice(split_sentences: bool, split_language: str | None) -> bool | str:
    """Return the argument `split_sentences` of `Translator.translate`."""
    return split_sentences if split_language is None else split_language


def check_flags(flags: dict[str, Any]) -> None:
    """Refuse values that are out of range for any model, before a model is loaded.

    Raises:
        OptionError: A value is out of range.
    """
    replace_options(SearchOptions(), flags)


def replace_options(defaults: SearchOptions, flags: dict[str, Any]) -> SearchOptions:
    """Replace the defaults by the options given on the command line.

    Raises:
        OptionError: A value is out of range, or has no effect.
    """
    chosen = {name: value for name, value in flags.items() if value is not None}
    options = dataclasses.replace(defaults, **chosen)
    if "seed" in chosen and not options.samples:
        raise OptionError(
            f"--sampling-seed is {options.seed}, but no token is drawn; add --sampling-top-k."
        )
    return options
