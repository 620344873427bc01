"""Write a trained student in Marian's formats, to compare the translations of both engines.

    python benchmarks/marian_student.py students/student-tiny/run --text test.en --out DIR
    python scripts/compare_marian.py DIR/marian/intgemm8.bin DIR/marian/vocab.yml DIR/text

Marian has sinusoids of other frequencies in another order, a smaller LayerNorm epsilon, and begins
a translation with a zero vector. The script permutes the axes of the residual stream into Marian's
order and replaces the rest, so the model in DIR/checkpoint differs slightly from the student;
`translate-trt evaluate` shows by how much. Both engines then run that model. DIR/text has the
tokens of the text as Marian reads them.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import torch
from marian import convert, locate, word
from torch import Tensor

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.lines import open_input, read_lines
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import open_checkpoint, save_checkpoint
from translate_trt.train.config import START, TrainConfig

#: Parameters whose rows, and whose columns, belong to the residual stream.
_ROWS = (".output.weight", ".outer.weight", ".forget.weight", ".input.weight")
_COLUMNS = ("embedding.weight", ".query.weight", ".key.weight", ".value.weight", ".inner.weight",
            ".forget.weight", ".input.weight")  # fmt: skip
_VECTORS = ("norm.weight", "norm.bias", ".output.bias", ".outer.bias", ".forget.bias")


def permuted(weights: dict[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Permute the axes of the residual stream: a model of the same function.

    Args:
        weights: Weights of a `Transformer` without separate tables, by name.
        order: [d_model], the old number of each new axis.
    """
    found = {}
    for name, weight in weights.items():
        changed = weight
        if name.endswith(_ROWS) or name.endswith(_VECTORS):
            changed = changed[order]
        if name.endswith(_COLUMNS):
            changed = changed[:, order]
        found[name] = changed.contiguous()
    return found


def main() -> None:
    """Write the checkpoint, Marian's files and the text."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("run", type=Path, help="run or checkpoint")
    options.add_argument("--text", type=Path, required=True, help="source text")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--pymarian", type=Path, help="folder of the package pymarian")
    given = options.parse_args()
    if not locate(given.pymarian):
        raise OptionError("pymarian is missing; install it or name its folder with --pymarian.")
    checkpoint = open_checkpoint(given.run)
    model = checkpoint.load_model()
    if model.config.sinusoid != "interleaved":
        raise OptionError(f"{given.run}: the sinusoids are not those of the paper.")
    order = torch.arange(model.config.d_model).reshape(-1, 2).T.flatten()
    weights = permuted(model.state_dict(), order)
    weights["embedding.weight"][START] = 0
    config = dataclasses.replace(model.config, sinusoid="tensor2tensor", layer_norm_epsilon=1e-6)
    saved = given.out / "checkpoint"
    tokenizers = checkpoint.tokenizers
    save_checkpoint(saved, weights, config, TrainConfig(), tokenizers, checkpoint.decoding)
    convert(saved, given.out / "marian", "int8")
    tokenizer = Tokenizer(*tokenizers)
    with open_input(str(given.text)) as stream:
        found = tokenizer.encode_source_batch(list(read_lines(stream, str(given.text))))
    lines = [" ".join(map(word, tokens)) for tokens in found]
    (given.out / "text").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(given.out)


if __name__ == "__main__":
    main()
