"""`translate-trt import`: models that other toolkits trained become checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.cli.names import output_option
from translate_trt.runtime.io.outputs import check_apart

if TYPE_CHECKING:
    from translate_trt.export.importers.imported import Imported

_PATH = click.Path(path_type=Path)


def _destination(importer: Callable[..., Any]) -> Callable[..., Any]:
    """The options that every importer has; all its other paths are inputs."""

    @functools.wraps(importer)
    def command(**given: Any) -> Any:
        check_apart(given["out"], _inputs(given))  # before a large model is read
        return importer(**given)

    for option in (
        click.option("--force", is_flag=True, help="Replace the checkpoint at --output."),
        click.option(
            "--languages", nargs=2, metavar="SOURCE TARGET", default=(None, None),
            help="Codes of the two languages, for the record.",
        ),
        output_option("The checkpoint to make."),
    ):  # fmt: skip
        command = option(command)
    return command


def _inputs(given: Mapping[str, Any]) -> list[Path]:
    """The files and directories among an importer's arguments that it reads."""
    return [one for name, one in given.items() if name != "out" and isinstance(one, Path)]


def _pieces(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of importers whose files have no SentencePiece model with them."""
    for option in (
        click.option(
            "--target-spm", type=_PATH, help="Of the target. Default: as of the source."
        ),
        click.option(
            "--source-spm", type=_PATH,
            help="SentencePiece model of the source. Default: tokens are what stands between "
            "spaces.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _shared_pieces(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option of models whose source and target have one tokenizer."""
    return click.option(
        "--spm", type=_PATH,
        help="The SentencePiece model. Default: sentencepiece.bpe.model in DIRECTORY, which "
        "tokenizers saved by transformers 5 lack.",
    )(command)  # fmt: skip


@click.group("import")
def import_() -> None:
    """Make a checkpoint of a model that another toolkit trained (docs/import.md).

    No code of the model's files is run. What translate-trt does not support is refused by name.
    """


@import_.command()
@click.argument("directory", type=_PATH)
@click.option(
    "--source-spm", type=_PATH,
    help="SentencePiece model of the source. Default: source.spm or sentencepiece.model in "
    "DIRECTORY, else tokens are what stands between spaces.",
)  # fmt: skip
@click.option(
    "--target-spm", type=_PATH,
    help="Of the target. Default: target.spm in DIRECTORY, else as of the source.",
)  # fmt: skip
@click.option(
    "--source-format", metavar="FORMAT",
    help="Tokens that the model reads around a text, where the caller of CTranslate2 adds them, "
    "such as '<s> {text} </s>' or '{source_language} {text} </s>'. Default: as the files say, or "
    "as of a known family of models; docs/import.md.",
)  # fmt: skip
@click.option(
    "--target-prefix", metavar="TOKENS",
    help="Tokens that translations begin with, such as '{target_language}'.",
)  # fmt: skip
@_destination
def ctranslate2(
    directory: Path,
    source_spm: Path | None,
    target_spm: Path | None,
    source_format: str | None,
    target_prefix: str | None,
    **destination: Any,
) -> None:
    """Import DIRECTORY, which a converter of CTranslate2 made, in any precision."""
    from translate_trt.export.importers.ctranslate2.converted import import_ctranslate2

    imported = import_ctranslate2(directory, source_spm, target_spm, source_format, target_prefix)
    _save(imported, **destination)


@import_.command()
@click.argument("directory", type=_PATH)
@_destination
def marian_hf(directory: Path, **destination: Any) -> None:
    """Import DIRECTORY, a Marian model as Hugging Face's transformers saves it."""
    from translate_trt.export.importers.hugging_face.marian import import_marian

    _save(import_marian(directory), **destination)


@import_.command()
@click.argument("directory", type=_PATH)
@_shared_pieces
@_destination
def m2m100_hf(directory: Path, spm: Path | None, **destination: Any) -> None:
    """Import DIRECTORY, an M2M100 or NLLB-200 model as Hugging Face's transformers saves it."""
    from translate_trt.export.importers.hugging_face.m2m100 import import_m2m100

    _save(import_m2m100(directory, spm), **destination)


@import_.command()
@click.argument("directory", type=_PATH)
@_shared_pieces
@_destination
def bart_hf(directory: Path, spm: Path | None, **destination: Any) -> None:
    """Import DIRECTORY, a BART or mBART-50 model as Hugging Face's transformers saves it.

    Its tokenizer must be a SentencePiece model, as BARThez's and mBART-50's are.
    """
    from translate_trt.export.importers.hugging_face.bart import import_bart

    _save(import_bart(directory, spm), **destination)


@import_.command()
@click.argument("checkpoint", type=_PATH)
@click.option(
    "--dict", "dictionary", type=_PATH, required=True,
    help="dict.*.txt of the source, which fairseq-preprocess made.",
)  # fmt: skip
@click.option("--target-dict", type=_PATH, help="Of the target. Default: both share the source's.")
@_pieces
@_destination
def fairseq(
    checkpoint: Path,
    dictionary: Path,
    target_dict: Path | None,
    source_spm: Path | None,
    target_spm: Path | None,
    **destination: Any,
) -> None:
    """Import CHECKPOINT, which fairseq-train wrote: a Transformer for translation."""
    from translate_trt.export.importers.fairseq import import_fairseq

    pieces = source_spm, target_spm
    _save(import_fairseq(checkpoint, dictionary, target_dict, pieces), **destination)


@import_.command()
@click.argument("checkpoint", type=_PATH)
@_pieces
@_destination
def opennmt_py(
    checkpoint: Path, source_spm: Path | None, target_spm: Path | None, **destination: Any
) -> None:
    """Import CHECKPOINT, which OpenNMT-py's onmt_train wrote: a Transformer for translation."""
    from translate_trt.export.importers.opennmt_py import import_opennmt_py

    _save(import_opennmt_py(checkpoint, (source_spm, target_spm)), **destination)


@import_.command()
@click.argument("model", type=_PATH)
@click.option(
    "--vocab", type=_PATH, required=True,
    help="Vocabulary of the source: .yml, .json, .txt, or .spm, which is its tokenizer too.",
)  # fmt: skip
@click.option("--target-vocab", type=_PATH, help="Of the target. Default: both share the source's.")
@_pieces
@_destination
def marian(
    model: Path,
    vocab: Path,
    target_vocab: Path | None,
    source_spm: Path | None,
    target_spm: Path | None,
    **destination: Any,
) -> None:
    """Import MODEL, the model.npz of a Transformer that Marian trained."""
    from translate_trt.export.importers.marian.npz import import_marian_npz

    pieces = source_spm, target_spm
    _save(import_marian_npz(model, vocab, target_vocab, pieces), **destination)


def _save(
    imported: Imported, out: Path, languages: tuple[str | None, str | None], force: bool
) -> None:
    imported.save(out, languages, force, _inputs(click.get_current_context().params))
    config = imported.model.config
    parameters = sum(parameter.numel() for parameter in imported.model.parameters())
    click.echo(
        f"{out}: {config.encoder_layers} + {config.decoder_layers} layers, {parameters:,} "
        "parameters"
    )
