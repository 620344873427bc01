"""Marian as a peer: its files written from our checkpoint, and its engine behind `System`.

Marian is optional (`pip install pymarian`, 600 MB).

Marian numbers the vocabulary with the shortlist's frequent tokens first, because a lexical
shortlist names those by their number alone. A token is written as w and our id. PAD and START,
which Marian does not know, are banned by their bias. Both engines therefore choose among the same
candidates, except that Marian has one list for all sentences of a batch, filled up to a multiple
of eight.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from systems import Models, Setting

from translate_trt.runtime.errors import OptionError, TranslateTrtError
from translate_trt.train.config import BANNED_BIAS, END, PAD, START, UNKNOWN

#: Packed int8 weights that Marian is tried with: on processors with AVX-512, and on others.
WEIGHTS = {
    True: ("intgemm8", "intgemm8avx512", "packed8avx512"),
    False: ("intgemm8", "intgemm8avx2", "packed8avx2"),
}
#: Megabytes that each thread of Marian begins with; more are allocated when they are used up.
WORKSPACE = 512

_MODEL, _VOCABULARY, _LEXICON = "model.npz", "vocab.yml", "lex.bin"
_EPSILON = 1e-6  # layerNorm in src/layers/generic.h


def int8_weights() -> tuple[str, ...]:
    """Return the packed weights that this processor can multiply."""
    cpuinfo = Path("/proc/cpuinfo")
    return WEIGHTS[cpuinfo.exists() and " avx512f " in cpuinfo.read_text()]


def folder_of(setting: Setting, models: Models) -> Path:
    """Return the folder of Marian's files for a setting."""
    ending = "-shortlist" if setting.shortlist else ""
    return models.converted / f"{setting.system}-{setting.precision}{ending}"


class Marian:
    """Marian's translator, called with all sentences at once; it makes the batches itself.

    A translation may have three times as many tokens as its source. Beams that have ended are not
    replaced, and a search ends when none is left.
    """

    def __init__(self, setting: Setting, models: Models) -> None:
        import pymarian

        files = folder_of(setting, models)
        name = _MODEL if setting.precision == "fp32" else f"{setting.weights}.bin"
        if not (files / name).exists():
            raise OptionError(
                f"{files} has no {name}; weights of {setting!r} must be among {int8_weights()}."
            )
        vocabulary = files / _VOCABULARY
        options = [
            f"--models {files / name} --vocabs {vocabulary} {vocabulary} --quiet",
            f"--cpu-threads {setting.workers} --workspace {WORKSPACE}",
            f"--mini-batch 1024 --mini-batch-words {setting.batch_tokens}",
            "--maxi-batch 100 --maxi-batch-sort src",
            f"--beam-size {setting.beam_size} --normalize {setting.length_penalty}",
        ]
        if setting.beam_size == 1:
            options.append("--skip-cost")
        if setting.shortlist:
            options.append(f"--shortlist {files / _LEXICON} false")
        self._prefix = setting.source_prefix
        self._translator = pymarian.Translator(" ".join(options))

    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """Translate token ids, see `System`."""
        prefix = self._prefix
        lines = [" ".join(map(word, (*prefix, *source))) for source in sources]
        found = self._translator.translate(lines)
        return [[int(word[1:]) for word in line.split()] for line in found]


def convert(checkpoint: Path, out: Path, precision: str, shortlist: Path | None = None) -> None:
    """Write a checkpoint, and a shortlist if there is one, in Marian's formats."""
    from translate_trt.train.checkpoint import open_checkpoint
    from translate_trt.train.shortlist.table import Shortlist

    model = open_checkpoint(checkpoint).load_model()
    table = None if shortlist is None else Shortlist.load(shortlist)
    order = marian_order(
        model.config.vocabulary_size, [END] if table is None else table.frequent.tolist()
    )
    out.mkdir(parents=True)
    vocabulary = out / _VOCABULARY
    write_vocabulary(order, vocabulary)
    write_model(model, order, out / _MODEL)
    if precision == "int8":
        for name in int8_weights():
            arguments = ["--from", str(out / _MODEL), "--to", str(out / f"{name}.bin")]
            _run(["convert", *arguments, "--gemm-type", name])
    if table is not None:
        text = out / "lex.txt"
        write_lexicon(table, text)
        sizes = [str(len(table.frequent)), str(table.translations.shape[1]), "0"]
        vocabularies = ["--vocabs", str(vocabulary), str(vocabulary)]
        target = ["--dump-shortlist", str(out / _LEXICON)]
        _run(["convert", "--shortlist", str(text), *sizes, *target, *vocabularies])


def marian_order(size: int, frequent: Sequence[int]) -> NDArray[np.int64]:
    """Return our token of each of Marian's numbers: frequent tokens first, END before all."""
    first = [END, *(token for token in frequent if token != END)]
    last = [token for token in (UNKNOWN, START, PAD) if token not in first]
    others = np.setdiff1d(np.arange(size), [*first, *last])
    return np.concatenate((first, others, last)).astype(np.int64)


def write_vocabulary(order: NDArray[np.int64], path: Path) -> None:
    """Write Marian's number of each token as YAML."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{word(token)}: {index}\n" for index, token in enumerate(order))


def write_lexicon(table: Any, path: Path) -> None:
    """Write a `Shortlist` as text: target, source and probability per line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for source, tokens in enumerate(table.translations):
            for token, probability in zip(tokens, table.probabilities[source], strict=True):
                if token:
                    # Marian drops candidates of probability 0; a copy of the source may have it.
                    shown = max(float(probability), 1e-7)
                    file.write(f"{word(token)} {word(source)} {shown:.9f}\n")


def write_model(model: Any, order: NDArray[np.int64], path: Path) -> None:
    """Write a `Transformer` as Marian's model.npz; `order` is that of `marian_order`."""
    _check(model)
    config = model.config
    embedding = _array(model.embedding.weight)
    bias = np.zeros(len(embedding), np.float32)
    if model.output_bias is not None:
        bias = _array(model.output_bias).copy()
    bias[[PAD, START]] = BANNED_BIAS
    arrays = {"Wemb": embedding[order], "decoder_ff_logit_out_b": bias[None, order]}
    pre = config.norm == "pre"
    stacks = {
        "encoder": (range(1, 1 + config.encoder_layers), model.encoder_layers, model.encoder_norm),
        "decoder": (_tied_layers(config), model.decoder_layers, model.decoder_norm),
    }
    for stack, (numbers, layers, norm) in stacks.items():
        if pre:
            arrays |= _norm(f"{stack}_top", norm, "")
        for number, layer in zip(numbers, layers, strict=True):
            name = f"{stack}_l{number}"
            if stack == "decoder":
                arrays |= _attention(f"{name}_context", layer.cross_attention)
                arrays |= _norm_of(f"{name}_context_Wo", layer.cross_attention_norm, pre)
            if stack == "decoder" and config.decoder_mixer == "ssru":
                arrays |= _linear(f"{name}_rnn", "f", layer.ssru.forget)
                arrays |= _linear(f"{name}_rnn", "", layer.ssru.input)
                arrays |= _norm_of(f"{name}_rnn{'' if pre else '_ffn'}", layer.ssru_norm, pre)
            else:
                arrays |= _attention(f"{name}_self", layer.self_attention)
                arrays |= _norm_of(f"{name}_self_Wo", layer.self_attention_norm, pre)
            arrays |= _norm_of(f"{name}_ffn_ffn", layer.feed_forward_norm, pre)
            arrays |= _linear(f"{name}_ffn", "1", layer.feed_forward.inner)
            arrays |= _linear(f"{name}_ffn", "2", layer.feed_forward.outer)
    settings = "\n".join(f"{key}: {value}" for key, value in _settings(config).items())
    content = np.frombuffer(f"{settings}\n\0".encode(), np.int8)
    np.savez(path, **{"special:model.yml": content}, **arrays)


def _check(model: Any) -> None:
    """Raise an OptionError for models that Marian cannot compute."""
    config = model.config
    wanted = {
        "norm": ("post", "pre"), "positions": ("sinusoidal",), "sinusoid": ("tensor2tensor",),
        "first_position": (0,), "tied": ("all",), "scale_embedding": (True,),
        "norm_embedding": (False,), "source_end": (True,), "activation": ("relu", "swish"),
        "layer_norm_epsilon": (_EPSILON,), "key_size": (0, config.d_v),
    }  # fmt: skip
    for name, allowed in wanted.items():
        if getattr(config, name) not in allowed:
            raise OptionError(
                f"Marian cannot run this model: {name} is {getattr(config, name)!r}, and must be "
                f"{' or '.join(map(repr, allowed))}. `benchmarks/models.py peers` makes others."
            )
    if model.embedding.weight[START].any():
        raise OptionError(
            "Marian cannot run this model: the embedding of its start token is not zero. "
            "`benchmarks/models.py peers` makes others."
        )


def _settings(config: Any) -> dict[str, str]:
    """Return the settings of special:model.yml; Marian takes its defaults for all others."""
    mixer = {"self-attention": "self-attention", "ssru": "rnn"}[config.decoder_mixer]
    ties = f"[{', '.join(map(str, _tied_layers(config)))}]" if config.decoder_ties else "[]"
    size, pre = config.vocabulary_size, config.norm == "pre"
    values: dict[str, Any] = {
        "dec-cell": "ssru", "dec-depth": config.decoder_layers, "dim-emb": config.d_model,
        "dim-vocabs": f"[{size}, {size}]", "enc-depth": config.encoder_layers,
        "tied-embeddings-all": "true", "transformer-decoder-autoreg": mixer,
        "transformer-decoder-dim-ffn": config.decoder_inner, "transformer-dim-ffn": config.d_ff,
        "transformer-ffn-activation": config.activation, "transformer-heads": config.heads,
        "transformer-postprocess": "da" if pre else "dan", "transformer-postprocess-emb": "d",
        "transformer-preprocess": "n" if pre else '""',
        "transformer-postprocess-top": "n" if pre else '""',
        "transformer-tied-layers": ties, "type": "transformer", "version": "v1.12.0",
    }  # fmt: skip
    return {key: str(value) for key, value in values.items()}


def _tied_layers(config: Any) -> list[int]:
    """Return the number, from 1, of the layer whose weights each decoder layer has."""
    if config.decoder_ties:
        return [int(number) for number in config.decoder_ties.split(",")]
    return list(range(1, config.decoder_layers + 1))


def _array(tensor: Any) -> NDArray[np.float32]:
    found: NDArray[np.float32] = tensor.detach().numpy()
    return found


def _linear(name: str, suffix: str, linear: Any) -> dict[str, NDArray[np.float32]]:
    """Return a projection as Marian stores it: [in, out] and [1, out]."""
    found = {f"{name}_W{suffix}": np.ascontiguousarray(_array(linear.weight).T)}
    if linear.bias is not None:
        found[f"{name}_b{suffix}"] = _array(linear.bias)[None]
    return found


def _norm(name: str, norm: Any, suffix: str) -> dict[str, NDArray[np.float32]]:
    return {
        f"{name}_ln_scale{suffix}": _array(norm.weight)[None],
        f"{name}_ln_bias{suffix}": _array(norm.bias)[None],
    }


def _norm_of(name: str, residual: Any, pre: bool) -> dict[str, NDArray[np.float32]]:
    """Return the norm of a sublayer, before or after it."""
    return _norm(name, residual.norm, "_pre" if pre else "")


def _attention(name: str, attention: Any) -> dict[str, NDArray[np.float32]]:
    found: dict[str, NDArray[np.float32]] = {}
    for letter, part in zip("qkvo", ("query", "key", "value", "output"), strict=True):
        found |= _linear(name, letter, getattr(attention, part))
    return found


def word(token: int) -> str:
    """Return a token as Marian reads and writes it."""
    return {END: "</s>", UNKNOWN: "<unk>"}.get(int(token), f"w{token}")


def _run(arguments: Sequence[str]) -> None:
    """Run a command of Marian in a process of its own, which Marian ends when it fails."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode:
        raise TranslateTrtError(
            f"marian {' '.join(arguments)} ended with code {done.returncode}: "
            f"{(done.stdout + done.stderr)[-2000:]}"
        )


if __name__ == "__main__":
    import _pymarian

    sys.exit(_pymarian.main(sys.argv[1:]))
