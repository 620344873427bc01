"""Table of the parsers of scripts/parsing_craft.sh, from a report of parsing.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from results_tables import note_of
from tables import table, where

HEADER = [
    "trees", "target", "beam", "words by", "part", "F1", "F1 with gold tags", "up to 40 words",
    "recall", "precision", "tags", "left out", "repaired", "malformed",
]  # fmt: skip


def scores_of(report: Mapping[str, Any]) -> list[list[str]]:
    """Return a header, and a row for each parser, target, beam size and part of the corpus."""
    rows = [HEADER]
    for parser in report["results"]["parsers"]:
        for one in parser["scores"]:
            figures = (
                one["F1"], one["F1 with gold tags"], one["F1 up to 40 words"], one["recall"],
                one["precision"], one["tags"],
            )  # fmt: skip
            counts = one["lines with other words"], one["repaired"], one["malformed"]
            rows.append(
                [
                    f"{parser['trees']:,}",
                    f"`{one['target']}`",
                    str(one["beam_size"]),
                    "attention" if one["by_attention"] else "count",
                    "dev" if one["split"] == "valid" else "test",
                    *(f"{figure:.2f}" for figure in figures),
                    *(f"{count:.0f}" for count in counts),
                ]
            )
    return rows


def _each(parsers: Sequence[Mapping[str, Any]], name: str) -> str:
    """Format a setting of the training of each parser."""
    return ", ".join(f"{parser['train'][name]:,}" for parser in parsers)


def render(report: dict[str, Any]) -> str:
    """Render the scores, and how the parsers were trained."""
    header, *rows = scores_of(report)
    parsers = report["results"]["parsers"]
    last = parsers[-1]
    model, train = last["model"], last["train"]
    sizes = {one["split"]: one["sentences"] for one in last["scores"]}
    sizes_asked = " ".join(parser["size"] for parser in parsers)
    guided = train["guided_alignment"]
    alignment = f", guided alignment with weight {guided}" if guided else ""
    if train["cooldown_steps"]:
        alignment += f", learning rate to 0 over the last {_each(parsers, 'cooldown_steps')}"
    return (
        f"`bash scripts/parsing_craft.sh TREEBANK OUT {sizes_asked}`\n\n{where(report)}"
        f"{note_of(report)} {model['encoder_layers']}+{model['decoder_layers']} layers, "
        f"d_model {model['d_model']}, d_ff {model['d_ff']}, {model['heads']} heads, "
        f"{last['parameters']:,} parameters; {_each(parsers, 'steps')} steps of up to "
        f"{train['batch_tokens']:,} tokens per side{alignment}. Trained on CRAFT alone "
        "(biomedical articles): not comparable with the 91.3 of the paper, which was trained on "
        "the WSJ. "
        f"{sizes['valid']:,} sentences of dev, {sizes['test']:,} of test; length penalty 0.3, "
        f"source + 300; `{last['scores'][0]['signature']}`. Sentences left out have other words "
        "for EVALB, because a punctuation mark has another tag; F1 with gold tags counts them. "
        "Words by count: the n-th word has the n-th tag, as without attention.\n\n"
        f"{table(header, rows)}\n"
        "![F1 on dev by steps of training](plots/parsing-craft.svg)\n"
    )
