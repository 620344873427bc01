"""`translate-trt attention`: plot the attention weights of a sentence and its translation."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.names import PATH, output_option
from translate_trt.runtime.cli.output import print_lines
from translate_trt.runtime.cli.search_flags import check_flags, replace_options, search_flags
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.text.bracketings import linearize
from translate_trt.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from translate_trt.train.evaluation.attention_maps import AttentionMap

log = logging.getLogger("translate_trt")

_DEFAULT_OUT = Path("attention.png")


@click.command(cls=Command)
@click.argument("sentence")
@click.option("--checkpoint", type=PATH, required=True, help="Run or checkpoint.")
@click.option(
    "--translation",
    "target",
    help="Translation of SENTENCE; for a parser its tree, in brackets or as labels. Default: the "
    "result of beam search.",
)
@click.option(
    "--kind",
    type=click.Choice(["encoder", "decoder", "cross"]),
    default="cross",
    show_default=True,
    help="Self-attention of the encoder or of the decoder, or cross-attention to the source.",
)
@click.option("--layer", metavar="N|all", help="Layer; 1 is the bottom. Default: the top layer.")
@click.option("--head", metavar="N|all", default="all", show_default=True, help="Head, from 1.")
@click.option(
    "--style",
    type=click.Choice(["lines", "matrix"]),
    default="lines",
    show_default=True,
    help="lines, with opacity by weight (the paper's appendix), or matrix: a heat map per head.",
)
@search_flags
@output_option(
    "Picture to write: .png, .svg or .pdf. Default: attention.png; none with --json.",
    required=False,
)
@click.option("--force", is_flag=True, help="Replace the picture if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print tokens and weights as JSON.")
def attention(
    sentence: str,
    checkpoint: Path,
    target: str | None,
    kind: str,
    layer: str | None,
    head: str,
    style: str,
    out: Path | None,
    force: bool,
    as_json: bool,
    **search: Any,
) -> None:
    """Draw the attention weights of a model on SENTENCE and its translation.

    Queries are above or to the left, keys below. In the decoder's self-attention, both are the
    tokens that the decoder reads, from the start symbol on. In cross-attention, queries have the
    names of the tokens that they predict, up to the end symbol.
    """
    check_flags(search)

    from translate_trt.train.checkpoint import open_checkpoint
    from translate_trt.train.evaluation.attention_maps import attend_sentence
    from translate_trt.train.evaluation.attention_plots import draw_attention
    from translate_trt.train.evaluation.pictures import check_picture, save_picture

    opened = open_checkpoint(checkpoint)
    config = opened.model
    if kind == "decoder" and config.is_recurrent:
        raise OptionError(
            f"the decoder of {checkpoint} has recurrent layers and no self-attention; choose "
            "--kind cross or encoder."
        )
    stack = "encoder" if kind == "encoder" else "decoder"
    count = config.encoder_layers if kind == "encoder" else config.decoder_layers
    layers = _numbers("--layer", layer or str(count), count, f"layers of the {stack}")
    heads = _numbers("--head", head, config.heads, "heads of each layer")
    out = _DEFAULT_OUT if out is None and not as_json else out
    if out is not None:
        check_picture(out, force, [checkpoint])
    options = replace_options(opened.search_options(), search)
    opened.check_languages(options)
    tokenizer = Tokenizer(*opened.tokenizers)
    if target is not None and tokenizer.writes_trees:
        target = linearize(target)
    found = attend_sentence(
        opened.load_model(),
        tokenizer,
        sentence,
        target,
        options,
        opened.prompt,
    )
    log.info("translation: %s", found.translation)
    attended = found.maps[kind]
    if out is not None:
        save_picture(draw_attention(attended, layers, heads, style), out)
    if as_json:
        value = {"translation": found.translation, **_as_json(attended, layers, heads)}
        print_lines([json.dumps(value, ensure_ascii=False)])


def _numbers(option: str, value: str, count: int, what: str) -> list[int]:
    """Parse a number from 1 to `count`, or "all".

    Raises:
        OptionError: The value is neither; the message gives the range.
    """
    if value == "all":
        return list(range(1, count + 1))
    if not (value.isascii() and value.isdecimal() and 1 <= int(value) <= count):
        raise OptionError(f"{option} {value}: the {what} are 1 to {count}; give a number, or all.")
    return [int(value)]


def _as_json(attended: AttentionMap, layers: list[int], heads: list[int]) -> dict[str, Any]:
    return {
        "kind": attended.kind,
        "query": attended.query,
        "key": attended.key,
        "layers": [
            {
                "layer": layer,
                "heads": [
                    {"head": head, "weights": attended.weights[layer - 1, head - 1].tolist()}
                    for head in heads
                ],
            }
            for layer in layers
        ],
    }
