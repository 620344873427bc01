"""Models in CTranslate2's format, in any of its precisions.

Their weights are dequantized: W = stored / scale, one scale per row in 8 bits and one per matrix in
16. Every array must find its place in `ModelConfig`; one that does not is named and the model
refused, so that nothing the model needs is left out silently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from translate_trt.export.importers.ctranslate2.model_bin import ModelFile, read_model_file
from translate_trt.export.importers.imported import (
    Imported,
    Placed,
    build_model,
    find_file,
    read_positions,
)
from translate_trt.export.importers.json_file import load_json, shown
from translate_trt.export.importers.languages import (
    is_opus,
    languages_among,
    opus_prompt,
    prompt_of,
    whole_family,
)
from translate_trt.export.importers.prompt_format import Format
from translate_trt.export.importers.vocabulary import (
    Numbering,
    Special,
    make_tokenizers,
)
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import ModelConfig

# Heads of the specifications from before revision 3, which do not say.
_HEADS = {"TransformerBase": 8, "TransformerBig": 16}
_SPECIFICATIONS = ("TransformerSpec", *_HEADS)
# Revisions from this on name a model's settings once for each stack.
_EACH_STACK = 5
# ct2's numbers; include/ctranslate2/ops/activation.h.
_ACTIVATIONS = {0: "relu", 2: "swish", 3: "gelu"}
_REFUSED_ACTIVATIONS = {1: "GELUTanh", 4: "GELUSigmoid", 5: "Tanh", 6: "Sigmoid"}
_PADDING = ("<blank>", "<pad>")
_STACKS = ("encoder", "decoder")
# SentencePiece models that a directory may have, of the source or of both sides.
_TOKENIZERS = ("source.spm", "sentencepiece.model", "sentencepiece.bpe.model")
# They choose what attention CTranslate2 returns, not what it computes.
_NO_MATTER = {
    "alignment_layer", "alignment_heads", "decoder/alignment_layer", "decoder/alignment_heads",
    "embeddings_merge", "encoder/embeddings_merge",
}  # fmt: skip
# Switches, by the last part of their names, of what is not represented; they must be off.
_SWITCHES = {"alibi", "alibi_use_positive_positions", "scale_alibi", "multi_query_attention"}
_ZERO_START = "start_from_zero_embedding"
# Fields of config.json that are read; any other must be one of the following, with that value.
_FIELDS = {
    "unk_token", "bos_token", "eos_token", "decoder_start_token", "add_source_bos",
    "add_source_eos", "layer_norm_epsilon",
}  # fmt: skip
_OFF: dict[str, tuple[Any, ...]] = {
    "multi_query_attention": (False,), "quantization_type": (None,), "quantization_bits": (None,),
    "quantization_group_size": (None,),
}  # fmt: skip
# OpenNMT's name of the padding symbol; no other toolkit's vocabularies have it. Its models never
# read an end symbol behind the source unless add_source_eos says so.
_OPENNMT = "<blank>"


def import_ctranslate2(
    directory: Path,
    source_model: Path | None = None,
    target_model: Path | None = None,
    source_format: str | None = None,
    target_prefix: str | None = None,
) -> Imported:
    """The model in a directory that CTranslate2's converters made.

    Args:
        directory: with model.bin and the vocabularies.
        source_model: SentencePiece model of the source, where the vocabulary is of its pieces;
            None: one beside model.bin, or there is none and tokens are words.
        target_model: of the target; None: as the source's.
        source_format: what the encoder reads around a text, such as "<s> {text} </s>"; None: the
            model's files say, or it is of a known family.
        target_prefix: tokens that translations begin with, such as "{target_language}"; None: as
            of the source.

    Raises:
        InputError: a file is missing or damaged, or the model is of a kind that is not
            represented, or needs a `source_format`; the message names what.
    """
    if not directory.is_dir():
        raise InputError(f"there is no directory {directory}; give the one with model.bin in it.")
    variables = _Variables(directory / "model.bin", read_model_file(directory / "model.bin"))
    settings = _Settings.read(directory, variables)
    vocabularies = _Vocabularies.read(directory, variables, settings)
    source_model = source_model or find_file(directory, _TOKENIZERS)
    target_model = target_model or find_file(directory, ("target.spm",)) or source_model
    around = _around(directory, variables, settings, vocabularies, source_format, target_prefix)
    several = bool(around.languages)
    numberings, tokenizers = make_tokenizers(
        (source_model, target_model), (vocabularies.source, vocabularies.target), is_opus,
        is_hidden=lambda token: several,
    )  # fmt: skip
    vocabularies = _Vocabularies(*numberings)
    config, weights = _convert(variables, settings, vocabularies, around.source_end)
    variables.check_all_used()
    model = build_model(config, weights, directory)
    prompt = around.prompt or opus_prompt(vocabularies.source.names, tokenizers[0])
    return Imported(model, tokenizers, "ctranslate2", settings.search(), prompt)


@dataclass(frozen=True)
class _Around:
    """Tokens around texts.

    Attributes:
        source_end: as in `ModelConfig`.
        languages: tokens of languages are part of the prompt.
        prompt: by our ids; None: what the vocabulary has of OPUS-MT's languages.
    """

    source_end: bool
    languages: bool = False
    prompt: Prompt | None = None


def _around(
    directory: Path,
    variables: _Variables,
    settings: _Settings,
    vocabularies: _Vocabularies,
    source_format: str | None,
    target_prefix: str | None,
) -> _Around:
    """Tokens around texts: from the caller, from the files, or those of a known family."""
    source, target = vocabularies.source.names, vocabularies.target.names
    if source_format is not None or target_prefix is not None:
        fallback = "{text} " + settings.end if _known_end(variables, settings) else None
        if not fallback and _OPENNMT in source:
            fallback = "{text}"
        chosen = source_format or fallback
        if chosen is None:
            raise _unknown_format(directory)
        found = Format.parse(chosen, target_prefix or "", settings.end)
        if settings.source_end and not found.source_end:
            raise InputError(
                f"--source-format {chosen!r} does not end with {settings.end}, but add_source_eos "
                f"in {directory / 'config.json'} says that sources do."
            )
        prompt = found.prompt((source, target), (languages_among(source), languages_among(target)))
        return _Around(found.source_end, found.has_languages, prompt)
    # Requests bring the languages and the end of the source. SMaLL-100 has the vocabulary of
    # M2M100 and another prompt; unlike all published models of these families, it has more layers
    # in the encoder.
    family = whole_family(target) if vocabularies.source is vocabularies.target else {}
    if family and _count_layers(variables, "encoder") == _count_layers(variables, "decoder"):
        return _Around(True, True, prompt_of(family))
    if not family and _known_end(variables, settings):
        return _Around(True)
    if not family and _OPENNMT in source:
        return _Around(False)
    raise _unknown_format(directory)


def _known_end(variables: _Variables, settings: _Settings) -> bool:
    """Whether sources surely end with the end symbol: it is said, or the model is Marian's."""
    return settings.source_end or variables.zero_start()


def _unknown_format(directory: Path) -> InputError:
    return InputError(
        f"{directory}: add_source_eos is false, so that each request to CTranslate2 brings what "
        "the model reads around a text, and the files do not say what that is. Say it with "
        "--source-format: '{text} </s>', '<s> {text} </s>' (BART, BARThez), "
        "'{source_language} {text} </s>' with --target-prefix '{target_language}' (M2M100, NLLB, "
        "mBART-50), '{target_language} {text} </s>' (SMaLL-100), or '{text}' if nothing is added "
        "(docs/import.md)."
    )


class _Variables:
    """The arrays of a file, each taken once or more; what is never taken is not understood."""

    def __init__(self, path: Path, file: ModelFile) -> None:
        if file.specification not in _SPECIFICATIONS or file.revision < 2:
            raise InputError(
                f"{path} is a {file.specification[:60] or 'model'} of revision {file.revision}; "
                "encoder-decoder Transformers (TransformerSpec) from revision 2 on are imported."
            )
        self.path, self.file = path, file
        self._taken = set[str]()

    def __contains__(self, name: str) -> bool:
        return name in self.file.arrays

    def take(self, name: str) -> np.ndarray:
        """That array, as stored."""
        if name not in self.file.arrays:
            raise InputError(f"{self.path} has no {name}, which an encoder-decoder model needs.")
        self._taken.add(name)
        return self.file.arrays[name]

    def matrix(self, name: str) -> Tensor:
        """A weight in floats."""
        stored, scale_name = self.take(name), f"{name}_scale"
        array = stored.astype(np.float32)
        if scale_name in self:
            scale = self.take(scale_name).astype(np.float32)
            if scale.shape not in ((), (1,), array.shape[:1]):
                raise InputError(f"{self.path} is damaged: {scale_name} does not fit {name}.")
            with np.errstate(all="ignore"):
                array = array / (scale[:, None] if scale.size > 1 else scale)
            if not np.isfinite(array).all():
                raise InputError(f"{self.path} is damaged: by {scale_name}, {name} is not finite.")
        elif not np.issubdtype(stored.dtype, np.floating):
            raise InputError(f"{self.path}: {name} is quantized, but there is no {scale_name}.")
        return torch.from_numpy(np.ascontiguousarray(array))

    def number(self, name: str) -> float:
        """An array of one number."""
        array = self.take(name)
        if array.size != 1:
            raise InputError(f"{self.path} is damaged: {name} has {array.size} numbers, not one.")
        return float(array.reshape(()))

    def setting(self, name: str, default: float) -> float:
        """A number of one of the stacks, the same for both."""
        if self.file.revision < _EACH_STACK:
            places = [name]
        else:
            places = [f"{stack}/{name}" for stack in _STACKS]
        found = {self.number(place) if place in self else default for place in places}
        if len(found) > 1:
            raise self.refused(name, f"differs between encoder and decoder: {sorted(found)}")
        return found.pop()

    def refused(self, name: str, why: str) -> InputError:
        """The error that says a setting cannot be represented."""
        return InputError(f"{self.path}: {name} {why}, which translate-trt does not represent.")

    def zero_start(self) -> bool:
        """Whether decoding starts with an embedding of zeros, as Marian's models do."""
        name = f"decoder/{_ZERO_START}"
        return name in self and bool(self.take(name).any())

    def check_all_used(self) -> None:
        """Raise an InputError if there is an array that nobody took."""
        rest = set(self.file.arrays) - self._taken - _NO_MATTER
        off = {name for name in rest if name.rsplit("/", 1)[-1] in _SWITCHES}
        off = {name for name in off if not self.file.arrays[name].any()}
        on = sorted(rest - off)
        if on:
            raise self.refused(on[0][:100], f"is part of the model{_and_more(len(on) - 1)}")


def _and_more(count: int) -> str:
    return f" (and {count} more arrays)" if count else ""


@dataclass(frozen=True)
class _Settings:
    """What config.json says; before layout version 6, arrays of the file do."""

    unknown: str
    end: str
    start: str | None  # None: an embedding of zeros
    source_end: bool
    epsilon: float

    @classmethod
    def read(cls, directory: Path, variables: _Variables) -> _Settings:
        path = directory / "config.json"
        values = _read_config(path)
        unknown = _text(path, values, "unk_token", "<unk>")
        end = _text(path, values, "eos_token", "</s>")
        begin = _text(path, values, "bos_token", "<s>")

        def flag(name: str, old: str) -> bool:
            value = values.get(name, old in variables and bool(variables.number(old)))
            if not isinstance(value, bool):
                raise _wrong(path, name, value, "true or false is needed")
            return value

        if flag("add_source_bos", "with_source_bos"):
            raise variables.refused("add_source_bos", f"puts {begin} before every source")
        with_target_bos = "with_target_bos" not in variables or variables.number("with_target_bos")
        start = None
        if not variables.zero_start():
            if values.get("decoder_start_token", "") is None:
                raise variables.refused(
                    "decoder_start_token",
                    "is null: each request must say what decoding starts with",
                )
            start = _text(path, values, "decoder_start_token", begin if with_target_bos else end)
        epsilon = values.get("layer_norm_epsilon")
        if epsilon is not None and (isinstance(epsilon, bool) or not isinstance(epsilon, float)):
            raise _wrong(path, "layer_norm_epsilon", epsilon, "a number such as 1e-5 is needed")
        return cls(
            unknown, end, start, flag("add_source_eos", "with_source_eos"),
            1e-5 if epsilon is None else epsilon,
        )  # fmt: skip

    def search(self) -> dict[str, Any]:
        """CTranslate2's own defaults, in `SearchOptions`."""
        return {
            "beam_size": 2, "length_penalty": 1.0, "length_penalty_form": "length",
            "early_stopping": True, "min_length": 2,
        }  # fmt: skip


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    values = load_json(path)
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no JSON object; copy or convert the model again.")
    for name, value in values.items():
        if name not in _FIELDS and value not in _OFF.get(name, ()):
            why = "is not known, and may" if name not in _OFF else "would"
            raise _wrong(path, name, value, f"this setting {why} change what the model computes")
    return values


def _text(path: Path, values: dict[str, Any], name: str, default: str) -> str:
    value = values.get(name, default)
    if not isinstance(value, str):
        raise _wrong(path, name, value, "a token is needed")
    return value


def _wrong(path: Path, name: str, value: object, why: str) -> InputError:
    return InputError(f"{path}: {name} is {shown(value)}; {why}.")


@dataclass(frozen=True)
class _Vocabularies:
    """Numbers of both sides' tokens; the same object where they share theirs."""

    source: Numbering
    target: Numbering

    @classmethod
    def read(cls, directory: Path, variables: _Variables, settings: _Settings) -> _Vocabularies:
        shared = _read_vocabulary(directory, "shared_vocabulary", settings)
        source = shared or _read_vocabulary(directory, "source_vocabulary", settings)
        target = shared or _read_vocabulary(directory, "target_vocabulary", settings)
        if source is None or target is None:
            raise InputError(
                f"{directory} has neither shared_vocabulary nor source_vocabulary and "
                "target_vocabulary, as .json or .txt; copy the whole directory."
            )
        for name, tokens in (
            (_source_table(variables), source), ("decoder/embeddings/weight", target)
        ):  # fmt: skip
            rows = len(variables.take(name))
            if rows != len(tokens):
                raise InputError(
                    f"{variables.path}: {name} has {rows} rows, but the vocabulary "
                    f"{len(tokens)} tokens; they are of different models."
                )
        if settings.end not in target or settings.start not in (None, *target):
            raise InputError(
                f"{directory}: the target vocabulary lacks the end symbol {settings.end!r} or the "
                f"start symbol {settings.start!r} that config.json names."
            )
        numbering = _numbering(target, settings)
        if shared is not None:
            return cls(numbering, numbering)
        return cls(_numbering(source, settings), numbering)


def _read_vocabulary(directory: Path, name: str, settings: _Settings) -> list[str] | None:
    """Its tokens; CTranslate2 itself puts the unknown one behind them where it is missing."""
    path = find_file(directory, (f"{name}.json", f"{name}.txt"))
    if path is None:
        return None
    if path.suffix == ".json":
        tokens = load_json(path)
    else:
        try:
            tokens = path.read_text(encoding="utf-8").split("\n")
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {path}: {error}.") from error
        tokens = [token.removesuffix("\r") for token in tokens[: -1 if tokens[-1] == "" else None]]
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise InputError(f"{path} is no list of tokens; copy or convert the model again.")
    return tokens if settings.unknown in tokens else [*tokens, settings.unknown]


def _numbering(tokens: list[str], settings: _Settings) -> Numbering:
    known = set(tokens)

    def place(*names: str | None) -> int | None:
        return next((tokens.index(name) for name in names if name in known), None)

    special = Special(
        place(*_PADDING), place(settings.unknown), place(settings.start), place(settings.end)
    )
    return Numbering(tokens, special)


def _source_table(variables: _Variables) -> str:
    """The name of the source's embeddings, which may be of several features."""
    if "encoder/embeddings_1/weight" in variables:
        raise variables.refused("encoder/embeddings_1", "is there: tokens have several features")
    names = ("encoder/embeddings_0/weight", "encoder/embeddings/weight")
    return names[0] if names[0] in variables else names[1]


def _convert(
    variables: _Variables, settings: _Settings, vocabularies: _Vocabularies, source_end: bool
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration, and the weights by their names in `Transformer`."""
    source = vocabularies.source.matrix(variables.matrix(_source_table(variables)))
    target = vocabularies.target.matrix(variables.matrix("decoder/embeddings/weight"))
    output = vocabularies.target.matrix(variables.matrix("decoder/projection/weight"))
    bias = None
    if "decoder/projection/bias" in variables:
        bias = variables.matrix("decoder/projection/bias")
    bias = vocabularies.target.bias(bias)
    width = target.shape[1]
    shares_input = source.shape == target.shape and bool(torch.equal(source, target))
    shares_input &= vocabularies.source is vocabularies.target
    shares_output = bool(torch.equal(output, target))
    tied = {(True, True): "all", (True, False): "input", (False, True): "output"}
    placed = _positions(variables)
    pre_norm = bool(variables.setting("pre_norm", 1))
    own_source = vocabularies.source is not vocabularies.target
    config = ModelConfig(
        vocabulary_size=vocabularies.target.size,
        source_vocabulary_size=vocabularies.source.size if own_source else 0,
        encoder_layers=_count_layers(variables, "encoder"),
        decoder_layers=_count_layers(variables, "decoder"),
        d_model=width,
        d_ff=len(variables.take("encoder/layer_0/ffn/linear_0/weight")),
        heads=_heads(variables),
        dropout=0.0,
        norm="pre" if pre_norm else "post",
        layer_norm_epsilon=settings.epsilon,
        tied=tied.get((shares_input, shares_output), "none"),
        output_bias=bias is not None,
        activation=_activation(variables),
        scale_embedding=_scales_embeddings(variables, width),
        norm_embedding="encoder/layernorm_embedding/gamma" in variables,
        source_end=source_end,
        **placed.fields,
    )
    weights = {"embedding.weight": target, **placed.weights}
    if not shares_input:
        weights["source_embedding.weight"] = source
    if not shares_output:
        weights["output_weight"] = output
    if bias is not None:
        weights["output_bias"] = bias
    for stack in _STACKS:
        weights |= _stack(variables, config, stack)
    return config, weights


def _count_layers(variables: _Variables, stack: str) -> int:
    count = 0
    while f"{stack}/layer_{count}/ffn/linear_0/weight" in variables:
        count += 1
    return count


def _heads(variables: _Variables) -> int:
    specification = variables.file.specification
    if variables.file.revision < 3:
        return _HEADS.get(specification, 8)
    return int(variables.setting("num_heads", 8))


def _activation(variables: _Variables) -> str:
    number = int(variables.setting("activation", 0))
    if number not in _ACTIVATIONS:
        raise variables.refused("activation", f"is {_REFUSED_ACTIVATIONS.get(number, number)}")
    return _ACTIVATIONS[number]


def _scales_embeddings(variables: _Variables, width: int) -> bool:
    """Whether both are times sqrt(d_model); a flag, or the factor itself."""
    found = set()
    for stack, table in (("encoder", _source_table(variables)),
                         ("decoder", "decoder/embeddings/weight")):  # fmt: skip
        names = f"{stack}/scale_embeddings", table.replace("weight", "multiply_by_sqrt_depth")
        name = next((name for name in names if name in variables), None)
        value = variables.take(name) if name is not None else np.array(1, np.int8)
        factor = float(value)
        if np.issubdtype(value.dtype, np.integer):
            factor = math.sqrt(width) if factor else 1.0
        found.add(round(factor, 4))
    if found == {round(math.sqrt(width), 4)}:
        return True
    if found == {1.0}:
        return False
    raise variables.refused("scale_embeddings", f"is {sorted(found)}")


def _positions(variables: _Variables) -> Placed:
    """Of both stacks; without a table CTranslate2 computes sinusoids as OpenNMT-tf does."""
    names = [f"{stack}/position_encodings/encodings" for stack in _STACKS]
    there = [name in variables for name in names]
    if not any(there):
        return Placed({"sinusoid": "tensor2tensor", "first_position": 1}, {})
    if not all(there):
        raise variables.refused(names[there.index(True)], "is there for one of the stacks alone")
    return read_positions(*(variables.matrix(name) for name in names))


def _stack(variables: _Variables, config: ModelConfig, stack: str) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    ends = {"encoder": ("source_embedding_norm", "encoder_norm"),
            "decoder": ("embedding_norm", "decoder_norm")}[stack]  # fmt: skip
    if config.norm_embedding:
        weights |= _norm(variables, f"{stack}/layernorm_embedding", ends[0])
    if config.norm == "pre":
        weights |= _norm(variables, f"{stack}/layer_norm", ends[1])
    count = config.encoder_layers if stack == "encoder" else config.decoder_layers
    for index in range(count):
        place, layer = f"{stack}/layer_{index}", f"{stack}.{index}"
        weights |= _attention(variables, f"{place}/self_attention", f"{layer}.self_attention")
        if stack == "decoder":
            weights |= _attention(variables, f"{place}/attention", f"{layer}.cross_attention")
        for number, name in enumerate(("inner", "outer")):
            weights |= _linear(
                variables, f"{place}/ffn/linear_{number}", [f"{layer}.feed_forward.{name}"]
            )
        weights |= _norm(variables, f"{place}/ffn/layer_norm", f"{layer}.feed_forward_norm.norm")
    return weights


def _attention(variables: _Variables, place: str, name: str) -> dict[str, Tensor]:
    """Queries, keys and values are one matrix, or the latter two are where they read another."""
    ends = [["query", "key", "value"], ["output"]]
    if f"{place}/linear_2/weight" in variables:
        ends = [["query"], ["key", "value"], ["output"]]
    weights = _norm(variables, f"{place}/layer_norm", f"{name}_norm.norm")
    for index, parts in enumerate(ends):
        linear = f"{place}/linear_{index}"
        weights |= _linear(variables, linear, [f"{name}.{part}" for part in parts])
    if f"{place}/queries_scale" in variables:
        # The graph's own is 1 / sqrt(D).
        size = weights[f"{name}.query.weight"].shape[0] / _heads(variables)
        factor = float(variables.take(f"{place}/queries_scale")) * math.sqrt(size)
        for kind in ("weight", "bias"):
            weights[f"{name}.query.{kind}"] = weights[f"{name}.query.{kind}"] * factor
    return weights


def _linear(variables: _Variables, place: str, names: list[str]) -> dict[str, Tensor]:
    """A projection, whose rows are those of several of ours; one without a bias has zeros."""
    weight = variables.matrix(f"{place}/weight")
    bias = torch.zeros(len(weight))
    if f"{place}/bias" in variables:
        bias = variables.matrix(f"{place}/bias")
    found: dict[str, Tensor] = {}
    for kind, tensor in (("weight", weight), ("bias", bias)):
        parts = tensor.chunk(len(names))
        found |= {f"{name}.{kind}": part for name, part in zip(names, parts, strict=True)}
    return found


def _norm(variables: _Variables, place: str, name: str) -> dict[str, Tensor]:
    return {
        f"{name}.weight": variables.matrix(f"{place}/gamma"),
        f"{name}.bias": variables.matrix(f"{place}/beta"),
    }
