"""Random models in CTranslate2's format, written by CTranslate2's own Python package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.model_spec import OPTIONAL, visit_spec

WIDTH, INNER, HEADS = 32, 48, 4

#: Tokens of a vocabulary, the special ones first.
SPECIAL = ["<blank>", "<s>", "</s>", "<unk>"]


def words(count: int, letter: str) -> list[str]:
    return [*SPECIAL, *(f"{letter}{index}" for index in range(count - len(SPECIAL)))]


def save_random_model(
    directory: Path,
    vocabularies: tuple[list[str], list[str]],
    layers: tuple[int, int] = (2, 1),
    biases: bool = True,
    positions: tuple[np.ndarray, np.ndarray] | None = None,
    tied: bool = False,
    quantization: str | None = None,
    config: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    **options: Any,
) -> Path:
    """Write a model of random weights; `options` are those of TransformerSpec.from_config.

    Args:
        directory: where it goes.
        vocabularies: tokens of source and target; the same list for one of both.
        layers: of encoder and decoder.
        biases: projections have them.
        positions: tables [positions, WIDTH] of encoder and decoder; None: CTranslate2's sinusoids.
        tied: one matrix for source, target and output.
        quantization: what CTranslate2 stores weights in.
        config: fields of config.json.
        settings: attributes of both stacks that are no option.
        seed: of the weights.
    """
    spec = TransformerSpec.from_config(layers, HEADS, **options)
    relative = options.get("relative_attention_bias", False)
    random = np.random.default_rng(seed)
    sizes = {"encoder": len(vocabularies[0]), "decoder": len(vocabularies[1])}
    for index, stack in enumerate((spec.encoder, spec.decoder)):
        for name, value in (settings or {}).items():
            setattr(stack, name, value)
        if relative:
            table = random.standard_normal((8, HEADS)).astype(np.float32)
            for layer in stack.layer:
                layer.self_attention.queries_scale = 1.0
                layer.self_attention.relative_attention_bias = table
                layer.self_attention.relative_attention_max_distance = np.int32(9)
            spec.decoder.scale_outputs = 0.5
        if positions is not None:
            stack.position_encodings.encodings = positions[index]

    def fill(part: Any, name: str, value: object) -> None:
        attribute = name.rsplit("/", 1)[-1]
        shape = _shape(name, sizes[name.split("/")[0]])
        if value is None:
            array = random.standard_normal(shape) * (0.3 if len(shape) > 1 else 0.1)
            setattr(part, attribute, (array + (attribute == "gamma")).astype(np.float32))
        elif isinstance(value, str) and value == OPTIONAL and attribute == "bias" and biases:
            part.bias = (0.1 * random.standard_normal(shape[:1])).astype(np.float32)

    visit_spec(spec, fill)
    if tied:
        table = spec.decoder.embeddings.weight
        spec.encoder.embeddings[0].weight = spec.decoder.projection.weight = table
    spec.register_source_vocabulary(vocabularies[0])
    spec.register_target_vocabulary(vocabularies[1])
    for name, value in (config or {}).items():
        spec.config.add_attribute(name, value)
    spec.validate()
    spec.optimize(quantization)
    directory.mkdir()
    spec.save(str(directory))
    return directory


def _shape(name: str, vocabulary_size: int) -> tuple[int, ...]:
    if name.endswith(("gamma", "beta")):
        return (WIDTH,)
    *_, part, _ = name.split("/")
    if part.startswith(("embeddings", "projection")):
        return vocabulary_size, WIDTH
    if "/ffn/" in name:
        return (WIDTH, INNER) if part == "linear_1" else (INNER, WIDTH)
    merged = {"self_attention/linear_0": 3, "/attention/linear_1": 2}
    times = next((n for end, n in merged.items() if f"{end}/" in name), 1)
    return times * WIDTH, WIDTH


def log_probabilities(
    directory: Path, sources: list[list[str]], targets: list[list[str]]
) -> list[list[float]]:
    """Return CTranslate2's log-probability of each target token and the end symbol."""
    translator = ctranslate2.Translator(str(directory), compute_type="float32", intra_threads=1)
    return [result.log_probs for result in translator.score_batch(sources, targets)]
