"""Search options of all commands that translate."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from translate_trt.runtime.cli.command import given, section, together
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.interface.search_options import OPTIONS, Option
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.glossary import Glossary


def _flags(title: str, *names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the flags of search options, in a section of the help."""
    return section(title)(together(*(_flag(OPTIONS[name]) for name in names)))


def _flag(option: Option) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make the flag of an option; without it, the value is None."""
    name = option.on_command_line
    if option.kind == "flag" and not option.flag:
        name += f"/--no-{name.removeprefix('--')}"
    about = "; ".join(filter(None, (option.meaning, option.help)))
    about = re.sub("`([a-z_]+)`", lambda found: OPTIONS[found[1]].on_command_line, about)
    kinds = {"count": int, "number": float, "text": str, "choice": click.Choice(option.choices)}
    return click.option(
        name,
        option.name,
        type=kinds.get(option.kind),
        is_flag=option.kind == "flag",
        default=None,
        metavar=option.metavar or None,
        help=f"{about[0].upper()}{about[1:]}.",
    )


#: The search options of all commands that translate.
search_flags = _flags(
    "Search", *(name for name in OPTIONS if name not in ("num_hypotheses", "return_attention"))
)

#: Alpha and the form of the length penalty.
length_penalty_flags = _flags("Search", "length_penalty", "length_penalty_form")

#: The languages of multilingual models.
language_flags = _flags("Search", "source_language", "target_language")

#: The number of hypotheses to write.
n_best_flag = _flags("Results", "num_hypotheses")

#: The cross-attention of the results.
attention_flag = _flags("Results", "return_attention")


#: The alignments of the results.
alignment_flags = section("Results")(
    together(
        click.option(
            "--alignments",
            is_flag=True,
            help="Add word alignments in Pharaoh format (0-0 1-2): numbers of source word and "
            "target word. Needs a bundle exported with --attention.",
        ),
        click.option(
            "--alignment-threshold",
            type=float,
            metavar="P",
            help="Align all pairs of words of at least this weight, from 0 to 1; implies "
            "--alignments. Default: each word of the translation with the source word of the "
            "largest weight.",
        ),
    )
)

#: The options of sentence splitting; `split_choice` reads them.
split_flags = section("Sentences and documents")(
    together(
        click.option(
            "--split-sentences",
            is_flag=True,
            help="Translate the sentences of each line one by one; needs the extra split.",
        ),
        click.option(
            "--split-language",
            metavar="CODE",
            help="Language whose rules find the sentences, such as de; implies --split-sentences. "
            "[the source language]",
        ),
    )
)

#: The option that sends lines without letters to the model.
translate_all_flag = section("Sentences and documents")(
    click.option(
        "--translate-all",
        is_flag=True,
        help="Translate also lines without letters, such as numbers, dates and prices, and lines "
        "that are only a URL or an e-mail address. [they stay as they are]",
    )
)

#: The options of a glossary; `read_glossary` reads it.
terminology_flags = section("Terminology")(
    together(
        click.option(
            "--terminology",
            type=click.Path(path_type=Path),
            help="Glossary whose target phrases the translations must have; a model that was "
            "trained on text annotated with them reads them instead. Translate prints their "
            "recall.",
        ),
        click.option(
            "--terminology-ignore-case",
            is_flag=True,
            help="Find the phrases of the glossary in any case.",
        ),
    )
)


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
    chosen = given(flags)
    options = dataclasses.replace(defaults, **chosen)
    if "seed" in chosen and not options.samples:
        raise OptionError(
            f"--sampling-seed is {options.seed}, but no token is drawn; add --sampling-top-k."
        )
    return options
