"""`translate-trt import`: convert models of other toolkits to checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.cli.command import Group, together
from translate_trt.runtime.cli.names import PATH, output_option
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.outputs import check_apart

if TYPE_CHECKING:
    from translate_trt.export.importers.imported import Imported


def _saved(importer: Callable[..., Imported]) -> Callable[..., Any]:
    """Add the options of the result, and save what an importer returns; its paths are inputs."""

    @functools.wraps(importer)
    def command(
        out: Path, languages: tuple[str | None, str | None], force: bool, **arguments: Any
    ) -> None:
        inputs = [x for x in arguments.values() if isinstance(x, Path)]
        check_apart(out, inputs)  # before a large model is read
        imported = importer(**arguments)
        imported.save(out, languages, force, inputs)
        config = imported.model.config
        parameters = sum(parameter.numel() for parameter in imported.model.parameters())
        shortlist = "" if imported.shortlist is None else ", with its shortlist"
        scales = "" if imported.activation_scales is None else ", with its activation scales"
        click.echo(
            f"{out}: {config.encoder_layers} + {config.decoder_layers} layers, {parameters:,} "
            f"parameters{shortlist}{scales}"
        )

    decorated: Callable[..., Any] = together(
        output_option("The checkpoint to write."),
        click.option(
            "--languages", nargs=2, metavar="SOURCE TARGET", default=(None, None),
            help="Codes of the two languages, stored in the checkpoint.",
        ),
        click.option("--force", is_flag=True, help="Replace the checkpoint at --output."),
    )(command)  # fmt: skip
    return decorated


#: Separate SentencePiece models of source and target.
_spm_options = together(
    click.option(
        "--source-spm", type=PATH,
        help="SentencePiece model of the source. Default: split text at spaces.",
    ),
    click.option(
        "--target-spm", type=PATH,
        help="SentencePiece model of the target. Default: the source's.",
    ),
)  # fmt: skip
#: A SentencePiece model that source and target share.
_shared_spm_option = click.option(
    "--spm", type=PATH,
    help="SentencePiece model. Default: sentencepiece.bpe.model (T5: spiece.model) in DIRECTORY, "
    "which transformers 5 does not save.",
)  # fmt: skip


@click.group("import", cls=Group)
def import_() -> None:
    """Convert a model of another toolkit to a checkpoint (docs/import.md).

    No code in the model's files is run. Unsupported models are refused with the reason.
    """


@import_.command()
@click.argument("directory", type=PATH)
@_saved
def auto(directory: Path) -> Imported:
    """Import DIRECTORY, a model of any format below, recognized by its files, or an .argosmodel."""
    from translate_trt.export.importers.recognition import import_directory

    languages = click.get_current_context().params["languages"]
    model, imported = import_directory(directory, languages)
    click.echo(f"{directory}: {model.title}")
    return imported


@import_.command()
@click.argument("package", type=PATH)
@_saved
def argos(package: Path) -> Imported:
    """Import PACKAGE of Argos Translate, an .argosmodel file or the directory of an installed one.

    The languages are those of the package.
    """
    from translate_trt.export.importers.ctranslate2.argos_package import import_argos

    return import_argos(package)


@import_.command()
@click.argument("directory", type=PATH)
@click.option(
    "--source-spm", type=PATH,
    help="SentencePiece model of the source. Default: source.spm, sentencepiece.model or "
    "sentencepiece.bpe.model in DIRECTORY; without these, split text at spaces.",
)  # fmt: skip
@click.option(
    "--target-spm", type=PATH,
    help="SentencePiece model of the target. Default: target.spm in DIRECTORY, or the source's.",
)  # fmt: skip
@click.option(
    "--source-format", metavar="FORMAT",
    help="Tokens around a source text that callers of CTranslate2 add, such as "
    "'<s> {text} </s>' or '{source_language} {text} </s>'. Default: taken from the model's files, "
    "or from a known model family; see docs/import.md.",
)  # fmt: skip
@click.option(
    "--target-prefix", metavar="TOKENS",
    help="Tokens that translations begin with, such as '{target_language}'.",
)  # fmt: skip
@_saved
def ctranslate2(
    directory: Path,
    source_spm: Path | None,
    target_spm: Path | None,
    source_format: str | None,
    target_prefix: str | None,
) -> Imported:
    """Import DIRECTORY, which a converter of CTranslate2 wrote, in any precision."""
    from translate_trt.export.importers.ctranslate2.converted import import_ctranslate2

    return import_ctranslate2(directory, source_spm, target_spm, source_format, target_prefix)


@import_.command()
@click.argument("directory", type=PATH)
@_saved
def marian_hf(directory: Path) -> Imported:
    """Import DIRECTORY, a Marian model saved by Hugging Face transformers."""
    from translate_trt.export.importers.hugging_face.marian import import_marian

    return import_marian(directory)


@import_.command()
@click.argument("directory", type=PATH)
@_shared_spm_option
@_saved
def m2m100_hf(directory: Path, spm: Path | None) -> Imported:
    """Import DIRECTORY, an M2M100 or NLLB-200 model saved by Hugging Face transformers."""
    from translate_trt.export.importers.hugging_face.m2m100 import import_m2m100

    return import_m2m100(directory, spm)


@import_.command()
@click.argument("directory", type=PATH)
@_shared_spm_option
@_saved
def bart_hf(directory: Path, spm: Path | None) -> Imported:
    """Import DIRECTORY, a BART or mBART-50 model saved by Hugging Face transformers.

    The tokenizer must be a SentencePiece model, like those of BARThez and mBART-50.
    """
    from translate_trt.export.importers.hugging_face.bart import import_bart

    return import_bart(directory, spm)


@import_.command()
@click.argument("directory", type=PATH)
@_shared_spm_option
@_saved
def t5_hf(directory: Path, spm: Path | None) -> Imported:
    """Import DIRECTORY, a T5, mT5 or MADLAD-400 model saved by Hugging Face transformers."""
    from translate_trt.export.importers.hugging_face.t5 import import_t5

    return import_t5(directory, spm)


@import_.command()
@click.argument("checkpoint", type=PATH)
@click.option(
    "--dict", "dictionary", type=PATH, required=True,
    help="dict.*.txt of the source, from fairseq-preprocess.",
)  # fmt: skip
@click.option("--target-dict", type=PATH, help="dict.*.txt of the target. Default: the source's.")
@_spm_options
@_saved
def fairseq(
    checkpoint: Path,
    dictionary: Path,
    target_dict: Path | None,
    source_spm: Path | None,
    target_spm: Path | None,
) -> Imported:
    """Import CHECKPOINT, a Transformer that fairseq-train wrote."""
    from translate_trt.export.importers.fairseq import import_fairseq

    tokenizers = source_spm, target_spm
    return import_fairseq(checkpoint, dictionary, target_dict, tokenizers)


@import_.command()
@click.argument("checkpoint", type=PATH)
@_spm_options
@_saved
def opennmt_py(checkpoint: Path, source_spm: Path | None, target_spm: Path | None) -> Imported:
    """Import CHECKPOINT, a Transformer that OpenNMT-py's onmt_train wrote."""
    from translate_trt.export.importers.opennmt_py import import_opennmt_py

    return import_opennmt_py(checkpoint, (source_spm, target_spm))


@import_.command()
@click.argument("model", type=PATH)
@click.option(
    "--vocab", type=PATH,
    help="Vocabulary of the source: .yml, .json, .txt, or .spm, which is also its tokenizer. "
    "Required, unless MODEL is a directory.",
)  # fmt: skip
@click.option("--target-vocab", type=PATH, help="Vocabulary of the target. Default: the source's.")
@click.option(
    "--shortlist", type=PATH,
    help="Lexical shortlist: lex.s2t of extract_lex, or lex.bin of marian-conv. Default: that of "
    "the decoder's settings or the directory.",
)  # fmt: skip
@click.option(
    "--frequent", type=click.IntRange(min=1), default=100, show_default=True,
    help="With --shortlist lex.s2t: number of target tokens that are in every list.",
)  # fmt: skip
@click.option(
    "--best", type=click.IntRange(min=1), default=100, show_default=True,
    help="With --shortlist lex.s2t: maximum number of translations of a source token.",
)  # fmt: skip
@click.option(
    "--recorded-activation-scales", "keep_scales", is_flag=True,
    help="Keep the scales of activations that int8 models of Bergamot contain (*_QuantMultA), to "
    "reproduce the rounding of Bergamot's engine. Default: int8 targets compute a scale per row, "
    "which clips no value and is faster.",
)  # fmt: skip
@_spm_options
@_saved
def marian(
    model: Path,
    vocab: Path | None,
    target_vocab: Path | None,
    shortlist: Path | None,
    frequent: int,
    best: int,
    keep_scales: bool,
    source_spm: Path | None,
    target_spm: Path | None,
) -> Imported:
    """Import MODEL, a Transformer that Marian trained.

    MODEL is model.npz, a .bin file of marian-conv, or the directory of a student of Firefox or
    Bergamot: model*.bin, vocab*.spm, lex*.bin, and a configuration.
    """
    from translate_trt.export.importers.marian.lexical_table import ShortlistFile
    from translate_trt.export.importers.marian.model import import_marian_model
    from translate_trt.export.importers.marian.model_folder import import_folder

    tokenizers = source_spm, target_spm
    source = click.get_current_context().get_parameter_source
    for name in ("frequent", "best"):
        if shortlist is None and source(name) is click.core.ParameterSource.COMMANDLINE:
            raise OptionError(f"--{name} is for a file of --shortlist; add that, or leave it out.")
    file = None if shortlist is None else ShortlistFile(shortlist, frequent, best)
    if model.is_dir():
        if vocab is not None or target_vocab is not None:
            raise OptionError(
                "--vocab and --target-vocab are for a model's file; leave them out, or pass the "
                f"file in {model} instead of the directory."
            )
        return import_folder(model, tokenizers, file, keep_scales)
    if vocab is None:
        raise OptionError(
            "--vocab is missing: pass the vocabulary of the source, or a directory with a model, "
            "its vocabularies and its shortlist."
        )
    return import_marian_model(
        model, vocab, target_vocab, tokenizers, file, recorded_scales=keep_scales
    )
