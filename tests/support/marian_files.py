"""Random models in Marian's layout: archives, binaries and shortlists, and their formulas."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from support.numpy_transformer import ACTIVATIONS, NumpyTransformer, tensor2tensor_sinusoids

SETTINGS = "special:model.yml"
WIDTH, INNER, HEADS = 32, 48, 4
SPECIAL = ["</s>", "<unk>"]
SOURCE = [*SPECIAL, *(f"s{n}" for n in range(40)), '"', "'", ":", "#", "é", "a:", "null", "-"]
TARGET = [*SPECIAL, *(f"t{n}" for n in range(30))]
OPTIONS: dict[str, Any] = {
    "type": "transformer", "dim-emb": WIDTH, "enc-depth": 2, "dec-depth": 1,
    "transformer-heads": HEADS, "transformer-dim-ffn": INNER, "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "swish", "transformer-preprocess": "",
    "transformer-postprocess": "dan", "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "", "transformer-decoder-autoreg": "self-attention",
    "transformer-no-projection": False, "transformer-tied-layers": [],
    "transformer-train-position-embeddings": False, "tied-embeddings": True,
    "tied-embeddings-all": False, "ulr": False, "lemma-dim-emb": 0,
}  # fmt: skip
OTHER = {
    "transformer-ffn-activation": "relu", "transformer-preprocess": "n",
    "transformer-postprocess": "da", "transformer-postprocess-emb": "nd",
    "transformer-postprocess-top": "n", "tied-embeddings": False, "version": "v1.12.42 b7be0e964",
}  # fmt: skip
SSRU = {
    "transformer-decoder-autoreg": "rnn", "dec-cell": "ssru", "layer-normalization": False,
    "transformer-rnn-projection": False,
}  # fmt: skip


def layers_of(options: dict[str, Any], stack: str) -> list[int]:
    """Return the numbers of a stack's layers; tied ones come more than once."""
    depth = options[f"{stack[:3]}-depth"]
    tied = options["transformer-tied-layers"] if stack == "decoder" else []
    return tied or list(range(1, depth + 1))


def random_weights(options: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return random weights, named as in src/models/transformer.h."""
    rng = np.random.default_rng(1)
    found: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int) -> None:
        found.setdefault(name, (rng.standard_normal(shape) * 0.3).astype(np.float32))

    def add_linear(place: str, suffix: str, rows: int, columns: int) -> None:
        add(f"{place}_W{suffix}", rows, columns)
        add(f"{place}_b{suffix}", 1, columns)

    def add_norm(name: str, end: str) -> None:
        add(f"{name}_ln_scale{end}", 1, WIDTH)
        add(f"{name}_ln_bias{end}", 1, WIDTH)

    before = "_pre" if options["transformer-preprocess"] else ""
    for stack, tokens in (("encoder", SOURCE), ("decoder", TARGET)):
        add(f"{stack}_Wemb", len(tokens), WIDTH)
        inner = (stack == "decoder" and options.get("transformer-decoder-dim-ffn", 0)) or INNER
        for layer in layers_of(options, stack):
            place = f"{stack}_l{layer}"
            parts = ["self", "context"] if stack == "decoder" else ["self"]
            if stack == "decoder" and options["transformer-decoder-autoreg"] == "rnn":
                parts.remove("self")
                add(f"{place}_rnn_W", WIDTH, WIDTH)
                add_linear(f"{place}_rnn", "f", WIDTH, WIDTH)
                add_norm(f"{place}_rnn" if before else f"{place}_rnn_ffn", before)
            for part in parts:
                for letter in "qkvo":
                    add_linear(f"{place}_{part}", letter, WIDTH, WIDTH)
                add_norm(f"{place}_{part}_Wo", before)
            add_linear(f"{place}_ffn", "1", WIDTH, inner)
            add_linear(f"{place}_ffn", "2", inner, WIDTH)
            add_norm(f"{place}_ffn_ffn", before)
        if "n" in options["transformer-postprocess-emb"]:
            add_norm(f"{stack}_emb", "_pre")
        if options["transformer-postprocess-top"]:
            add_norm(f"{stack}_top", "")
    for name, array in found.items():
        if "_ln_scale" in name:
            array += 1
    add("decoder_ff_logit_out_b", 1, len(TARGET))
    if not options["tied-embeddings"]:
        add("decoder_ff_logit_out_W", WIDTH, len(TARGET))
    return found


def tied_weights(rows: int) -> dict[str, np.ndarray]:
    """Return random weights with one matrix for source, target and output."""
    weights = {n: a for n, a in random_weights(OPTIONS).items() if not n.endswith("Wemb")}
    weights["Wemb"] = np.random.default_rng(2).normal(size=(rows, WIDTH)).astype(np.float32)
    return weights | {"decoder_ff_logit_out_b": np.zeros((1, rows), np.float32)}


def yaml_of(options: dict[str, Any]) -> str:
    """Format settings like yaml-cpp."""
    lines = []
    for name, value in options.items():
        if isinstance(value, list):
            lines += [f"{name}:", *(f"  - {item}" for item in value)] if value else [f"{name}: []"]
        else:
            shown = str(value).lower() if isinstance(value, bool) else value
            lines.append(f"{name}: {shown if shown != '' else chr(34) * 2}")
    return "\n".join(lines)


def settings_of(options: dict[str, Any]) -> np.ndarray:
    """Return the array of the settings."""
    return np.frombuffer(yaml_of(options).encode() + b"\0", np.int8)


def save(
    directory: Path, options: dict[str, Any], weights: dict[str, np.ndarray]
) -> tuple[Path, Path, Path]:
    """Save a model.npz with its settings, and vocabularies in YAML."""
    path = directory / "model.npz"
    np.savez(path, **weights, **{SETTINGS: settings_of(options)})
    files = []
    for name, tokens in (("source.yml", SOURCE), ("target.yml", TARGET)):
        lines = []
        for place, token in enumerate(tokens):
            quoted = json.dumps(token) if not token.isalnum() or token == "null" else token
            quoted = quoted.replace("\\u00e9", "\\xe9")
            lines.append(f"? {quoted}\n: {place}\n" if token == "s7" else f"{quoted}: {place}\n")
        (directory / name).write_text("".join(lines), encoding="utf-8")
        files.append(directory / name)
    return path, files[0], files[1]


def positions_of(count: int) -> np.ndarray:
    """Compute sinusoidalPositionEmbeddings of src/graph/node_initializers.cpp."""
    return tensor2tensor_sinusoids(np.arange(count), WIDTH)


def expected_logits(
    options: dict[str, Any], weights: dict[str, np.ndarray], source: list[int], target: list[int]
) -> np.ndarray:
    """Return the logits of each next token, [T, V]; decoding starts with zeros."""
    values = {name: array.astype(np.float64) for name, array in weights.items()}
    pre = options["transformer-preprocess"] == "n"
    recurrent = options["transformer-decoder-autoreg"] == "rnn"
    attentions = {"self": "self", "cross": "context"}

    def linear(name: str) -> tuple[np.ndarray, np.ndarray]:
        stack, layer, *rest = name.split(".")
        place = f"{stack}_l{layers_of(options, stack)[int(layer)]}"
        if rest[0] in ("forget", "candidate"):
            bias = values[f"{place}_rnn_bf"]
            return (
                (values[f"{place}_rnn_Wf"], bias)
                if rest[0] == "forget"
                else (values[f"{place}_rnn_W"], 0 * bias)
            )
        if len(rest) == 1:
            number = {"inner": "1", "outer": "2"}[rest[0]]
            return values[f"{place}_ffn_W{number}"], values[f"{place}_ffn_b{number}"]
        place = f"{place}_{attentions[rest[0]]}"
        return values[f"{place}_W{rest[1][0]}"], values[f"{place}_b{rest[1][0]}"]

    def norm(name: str) -> tuple[np.ndarray, np.ndarray]:
        stack, *rest = name.split(".")
        end = "_pre" if pre else ""
        if not rest:
            place, end = f"{stack}_top", ""
        elif rest == ["embedding"]:
            place, end = f"{stack}_emb", "_pre"
        else:
            part = "ffn_ffn" if rest[1] == "feed" else f"{attentions[rest[1]]}_Wo"
            if recurrent and stack == "decoder" and rest[1] == "self":
                part = "rnn" if pre else "rnn_ffn"
            place = f"{stack}_l{layers_of(options, stack)[int(rest[0])]}_{part}"
        return values[f"{place}_ln_scale{end}"], values[f"{place}_ln_bias{end}"]

    activation = ACTIVATIONS[options["transformer-ffn-activation"]]
    model = NumpyTransformer(HEADS, pre, activation, 1e-6, linear, norm, recurrent)

    def embed(stack: str, rows: np.ndarray) -> np.ndarray:
        x = np.sqrt(WIDTH) * rows + positions_of(len(rows))
        emb = "n" in options["transformer-postprocess-emb"]
        return model.layer_norm(f"{stack}.embedding", x) if emb else x

    history = np.concatenate([np.zeros((1, WIDTH)), values["decoder_Wemb"][target]])
    output = model.decode(
        embed("encoder", values["encoder_Wemb"][[*source, 0]]), embed("decoder", history),
        (options["enc-depth"], options["dec-depth"]),
    )  # fmt: skip
    matrix = values.get("decoder_ff_logit_out_W", values["decoder_Wemb"].T)
    return output @ matrix + values["decoder_ff_logit_out_b"]


#: Numbers of the element types (src/common/types.h), of Marian 1.12 and of Bergamot's fork.
FLOAT32, SETTINGS_TYPE = 0x404, 0x101
INTGEMM = {
    "intgemm8": 0x10001, "intgemm8ssse3": 0x18001, "intgemm8avx2": 0x11001,
    "intgemm8avx512": 0x12001, "intgemm16": 0x10002,
    "intgemm16sse2": 0x14002, "intgemm16avx2": 0x11002, "intgemm16avx512": 0x12002,
}  # fmt: skip
BERGAMOT = {"intgemm8": 0x4101, "intgemm16": 0x4102}
# Bytes of a register, by the end of the name.
_REGISTERS = {"sse2": 16, "ssse3": 16, "avx2": 32, "avx512": 64}


def binary_of(items: Sequence[tuple[str, int, tuple[int, ...], bytes]], align: int = 256) -> bytes:
    """Return a binary model of items: name, number of the type, shape, data."""
    data = [content + bytes(-len(content) % align) for *_, content in items]
    parts = [struct.pack("<QQ", 1, len(items))]
    parts += [
        struct.pack("<4Q", len(name.encode()) + 1, kind, len(shape), len(content))
        for (name, kind, shape, _), content in zip(items, data, strict=True)
    ]
    parts += [name.encode() + b"\0" for name, *_ in items]
    parts += [struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items]
    size = sum(map(len, parts)) + 8
    padding = -size % align
    return b"".join([*parts, struct.pack("<Q", padding), bytes(padding), *data])


def quantized(matrix: np.ndarray, name: str) -> tuple[np.ndarray, float]:
    """Return the integers and the multiplier of an intgemm type."""
    if name.startswith("intgemm16"):
        multiplier = 1024.0
        return np.clip(np.rint(matrix * multiplier), -32768, 32767).astype("<i2"), multiplier
    multiplier = float(np.float32(127 / np.abs(matrix).max()))
    return np.clip(np.rint(matrix * multiplier), -127, 127).astype("i1"), multiplier


def intgemm_data(matrix: np.ndarray, name: str, transposed: bool = True) -> bytes:
    """Return the data of a quantized matrix [K, N], as marian-conv stores it."""
    integers, multiplier = quantized(matrix, name)
    rows, columns = matrix.shape
    kind = name.removeprefix("intgemm8").removeprefix("intgemm16")
    if kind:
        depth = _REGISTERS[kind] // integers.itemsize
        stored = [
            integers[row : row + depth, column]
            for group in range(0, columns, 8)
            for row in range(0, rows, depth)
            for column in range(group, group + 8)
        ]
        content = b"".join(part.tobytes() for part in stored)
    else:
        content = (integers.T if transposed else integers).tobytes()
    return content + struct.pack("<f", multiplier)


def save_binary(
    path: Path,
    options: dict[str, Any],
    weights: dict[str, np.ndarray],
    name: str = "float32",
    bergamot: bool = False,
    multipliers: Mapping[str, float] | None = None,
) -> dict[str, np.ndarray]:
    """Save a binary model; return the weights that its integers stand for.

    Args:
        path: of the file.
        options: its settings.
        weights: by name.
        name: of the type of matrices, as in marian-conv's --gemm-type.
        bergamot: in the layout of Bergamot's fork, with quantized embeddings, scales of
            activations, and data that are not aligned.
        multipliers: recorded activation scales by the names of matrices; those of others are as by
            `multiplier_of`.
    """
    items, stands_for = [], dict(weights)

    def multiplier_of(matrix: str) -> float:
        default = 19.5 if matrix == "none" else 6.5 if "Wemb" in matrix else 25.5
        return (multipliers or {}).get(matrix, default)

    for array_name, array in sorted(weights.items()):
        embedding = "Wemb" in array_name
        is_matrix = array_name[-3:-1] == "_W" or array_name[-2:] == "_W"
        if name != "float32" and (is_matrix or (embedding and bergamot)):
            kind = (BERGAMOT if bergamot else INTGEMM)[name]
            content = intgemm_data(array, name, not embedding)
            integers, multiplier = quantized(array, name)
            stands_for[array_name] = integers.astype(np.float32) / np.float32(multiplier)
            items.append((array_name, kind, array.shape, content))
            if bergamot:
                scale = f"{array_name}_QuantMultA"
                recorded = np.float32([[multiplier_of(array_name)]])
                data = intgemm_data(recorded, name) if embedding else recorded.tobytes()
                items.append((scale, kind if embedding else FLOAT32, (1, 1), data))
        else:
            items.append((array_name, FLOAT32, array.shape, array.astype("<f4").tobytes()))
    if bergamot:
        recorded = np.float32([[multiplier_of("none")]])
        items.append(("none_QuantMultA", FLOAT32, (1, 1), recorded.tobytes()))
    settings = settings_of(options).tobytes()
    items.append((SETTINGS, SETTINGS_TYPE, (len(settings),), settings))
    path.write_bytes(binary_of(items, 1 if bergamot else 256))
    return stands_for


def hash_of(words: Sequence[int]) -> int:
    """Return the checksum of a binary shortlist (hash_combine in src/common/hash.h)."""
    seed, mask = 0, 2**64 - 1
    for word in words:
        seed ^= (word + 0x9E3779B9 + ((seed << 6) & mask) + (seed >> 2)) & mask
    return seed


def shortlist_of(lists: Sequence[Sequence[int]], frequent: int, best: int) -> bytes:
    """Return a binary shortlist of the translations of each source token."""
    ids = [token for row in lists for token in row]
    return table_of(frequent, best, np.cumsum([0, *map(len, lists)]).tolist(), ids)


def table_of(frequent: int, best: int, offsets: Sequence[int], ids: Sequence[int]) -> bytes:
    """Return a binary shortlist with these offsets of the source tokens' translations."""
    content = struct.pack("<4Q", frequent, best, len(offsets), len(ids))
    content += struct.pack(f"<{len(offsets)}Q", *offsets) + struct.pack(f"<{len(ids)}I", *ids)
    count = len(content) // 8
    checksum = hash_of(struct.unpack_from(f"<{count}Q", content))
    return struct.pack("<QQ", 0xF11A48D5013417F5, checksum) + content


def save_student_folder(directory: Path, tokenizer_model: Path, **options: Any) -> Path:
    """Write the files that Firefox loads: a random int8 model, its vocabulary and a shortlist."""
    directory.mkdir()
    vocabulary = directory / "vocab.ende.spm"
    vocabulary.write_bytes(tokenizer_model.read_bytes())
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
    size = pieces.get_piece_size()
    rng = np.random.default_rng(2)
    model = directory / "model.ende.intgemm.alphas.bin"
    save_binary(model, OPTIONS | options, tied_weights(size), "intgemm8", bergamot=True)
    lists = [
        [] if token == pieces.eos_id() else rng.integers(40, 60, 4).tolist()
        for token in range(size)
    ]
    (directory / "lex.50.50.ende.s2t.bin").write_bytes(shortlist_of(lists, 30, 50))
    return directory
