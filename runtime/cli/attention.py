"""`translate-trt attention`: where a model looks, drawn as in the paper's appendix."""

from __future__ import annotations

import json
from pathlib import Path

import click

from translate_trt.runtime.errors import InputError, OptionError

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("sentence")
@click.option("--checkpoint", type=_PATH, required=True, help="A run or a checkpoint.")
@click.option("--translation", help="What the decoder reads; default: the model's own.")
@click.option(
    "--kind",
    type=click.Choice(["encoder", "decoder", "cross"]),
    default="cross",
    show_default=True,
    help="Self-attention of either side, or from the translation to the sentence.",
)
@click.option("--layer", type=int, help="From 1; default: the last.")
@click.option(
    "--head", "heads", type=int, multiple=True, help="From 1, once or more; default: all."
)
@click.option(
    "--style",
    type=click.Choice(["lines", "matrix"]),
    default="lines",
    show_default=True,
    help="lines: as in the paper's appendix; matrix: a heat map per head.",
)
@click.option(
    "--out", type=_PATH, default=Path("attention.png"), show_default=True,
    help="Picture to write: .png, .pdf or .svg.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the picture that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print the weights, draw nothing.")
def attention(
    sentence: str,
    checkpoint: Path,
    translation: str | None,
    kind: str,
    layer: int | None,
    heads: tuple[int, ...],
    style: str,
    out: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Draw the attention weights of one layer for SENTENCE and its translation.

    A row is what a piece looks at while the model reads or predicts there: the piece after it, on
    the side of the translation.
    """
    from translate_trt.runtime.options import SearchOptions
    from translate_trt.runtime.tokenizer import Tokenizer
    from translate_trt.train.attention import attention_weights
    from translate_trt.train.checkpoint import open_checkpoint
    from translate_trt.train.search import beam_search

    opened = open_checkpoint(checkpoint)
    model = opened.load_model()
    tokenizer = Tokenizer(opened.tokenizer, opened.tokenizer)
    source = tokenizer.encode_source(sentence)
    if not source:
        raise InputError("the sentence is empty; there is nothing to look at.")
    if translation is None:
        target = list(beam_search(model, [source], SearchOptions())[0][0].tokens)
    else:
        target = tokenizer.encode_target(translation)
    queries, keys, layers = attention_weights(model, source, target).of(kind)
    chosen = _number("layer", layer, len(layers))
    picked = [_number("head", head, model.config.heads) for head in heads]
    picked = picked or list(range(model.config.heads))
    weights = layers[chosen][picked]
    pieces = [tokenizer.source_pieces(ids) if side == "source" else tokenizer.target_pieces(ids)
              for ids, side in ((queries, "source" if kind == "encoder" else "target"),
                                (keys, "target" if kind == "decoder" else "source"))]  # fmt: skip
    if as_json:
        value = {"kind": kind, "layer": chosen + 1, "heads": [head + 1 for head in picked],
                 "queries": pieces[0], "keys": pieces[1], "weights": weights.tolist()}  # fmt: skip
        click.echo(json.dumps(value, ensure_ascii=False))
        return
    from translate_trt.train.plots import MOST_PIECES, draw_lines, draw_matrices, save_figure

    longest = max(map(len, pieces))
    if longest > MOST_PIECES:
        raise InputError(
            f"the sentence or its translation has {longest} pieces; a picture has room for "
            f"{MOST_PIECES}. Shorten it, or take the numbers with --json."
        )
    draw = draw_lines if style == "lines" else draw_matrices
    title = f"{kind} attention, layer {chosen + 1} of {len(layers)}"
    save_figure(draw(pieces[0], pieces[1], weights, title), out, force)
    click.echo(out)


def _number(name: str, given: int | None, count: int) -> int:
    """A layer or head, from 1, as an index; the last one if none is given."""
    if given is None:
        return count - 1
    if not 1 <= given <= count:
        raise OptionError(f"--{name} {given}: the model has {name}s 1 to {count}.")
    return given - 1
