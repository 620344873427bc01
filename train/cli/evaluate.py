"""`translate-trt evaluate`: score systems on a test set and compare them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.bundle.manifest import MANIFEST_NAME, Manifest, read_manifest
from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.names import PATH, threads_flag, torch_device_option
from translate_trt.runtime.cli.output import print_json, print_lines
from translate_trt.runtime.cli.search_flags import check_flags, replace_options, search_flags
from translate_trt.runtime.cli.verbosity import progress_bar
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.interface.search_options import MAX_EXTRA_LENGTH
from translate_trt.runtime.io.compression import uncompressed_name
from translate_trt.runtime.io.lines import chunks, display_name, open_input, read_lines
from translate_trt.runtime.io.report import columns
from translate_trt.runtime.model_store import resolve_bundle
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.cli.rerank import comet_model_flag
from translate_trt.train.evaluation.comet_model import CometModel

if TYPE_CHECKING:
    from translate_trt.train.checkpoint import Checkpoint
    from translate_trt.train.evaluation.scoring import Difference, Score

log = logging.getLogger("translate_trt")

_CHUNK_LINES = 1024  # lines per update of the progress bar; batches drain at the end of each


_Translate = Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class _System:
    """System to score.

    Attributes:
        name: Name that the user gave.
        texts: Reads or computes the translations.
        search: Search options; None for a file.
        language: Target language, where known.
    """

    name: str
    texts: Callable[[], list[str]]
    search: SearchOptions | None = None
    language: str | None = None


@dataclass(frozen=True)
class _Row:
    """Row of the result for a system."""

    system: _System
    scores: dict[str, Score]
    difference: Difference | None = None


@click.command(cls=Command)
@click.argument("systems", nargs=-1, metavar="[SYSTEM]...")
@click.option(
    "--reference",
    "references",
    multiple=True,
    required=True,
    help="Reference translations, line by line; repeatable, for several references of each line.",
)
@click.option(
    "--source", type=str, help="Lines to translate, for checkpoints and bundles, and for comet."
)
@click.option(
    "--ensemble",
    "members",
    multiple=True,
    metavar="CHECKPOINT",
    type=PATH,
    help="Member of an ensemble, given at least twice. The ensemble is the last system.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    type=click.Choice(["bleu", "chrf", "chrf++", "ter", "tokenized-bleu", "comet", "evalb"]),
    help="Metric; repeatable. comet needs --source and the package unbabel-comet; evalb, alone, "
    "compares parse trees. Default: bleu, chrf and tokenized-bleu.",
)
@comet_model_flag
@click.option(
    "--tokenize",
    type=click.Choice(["13a", "intl", "zh", "char", "none"]),
    help="sacrebleu's tokenization for BLEU. Default: 13a; for references in a script without "
    "spaces between words zh (Chinese) or char.",
)
@click.option(
    "--bleu-language",
    help="Language code for tokenized-bleu, such as de. Default: --target-language, the model's "
    "language, or the ending of the reference's name, in this order.",
)
@search_flags
@click.option("--target", help="Target of a bundle, such as onnx-int8. Default: the first.")
@torch_device_option("Device for checkpoints")
@threads_flag
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def evaluate(
    systems: tuple[str, ...],
    references: tuple[str, ...],
    source: str | None,
    members: tuple[Path, ...],
    metrics: tuple[str, ...],
    comet_model: str,
    tokenize: str | None,
    bleu_language: str | None,
    target: str | None,
    device: str,
    threads: int | None,
    as_json: bool,
    **search: Any,
) -> None:
    """Score systems on a test set, and compare each with the first.

    A SYSTEM is a file of translations, a run or checkpoint of `translate-trt train`, or a bundle,
    also by the name of an installed model.
    Checkpoints and bundles translate --source, by default with the search options of each model.
    An ensemble's next-token probabilities are the mean of its checkpoints' probabilities.

    BLEU and chrF are sacrebleu's, with its signatures. tokenized-bleu is the BLEU of "Attention Is
    All You Need": over Moses tokens, and for German with compounds split at hyphens. It can differ
    from BLEU by more than a point, so never compare the two.

    evalb is the F1 of labelled brackets, by the rules of COLLINS.prm: systems and reference are
    then parse trees, one per line. Checkpoints and bundles of parsers parse --source, whose lines
    are words with spaces between them.

    COMET is the mean of the lines, and of several references, times 100.

    The difference to the first system is in BLEU, with --metric chrf as the first metric in chrF,
    or for trees in F1, with a 95 % interval and a two-sided p-value by paired bootstrap.
    """
    check_flags(search)
    reference, *more = references
    if more and "evalb" in metrics:
        raise OptionError("evalb compares trees with one --reference; leave the others out.")
    right = _read(reference)
    if not right:
        raise InputError(f"{display_name(reference)} is empty; give at least one reference line.")

    def read(path: str) -> list[str]:
        return _read_as_long(path, reference, right)

    others = [read(path) for path in more]
    lines = None if source is None else read(source)
    models = _Models(lines, search, target, device, threads, "evalb" in metrics)
    found = []
    for name in systems:
        if (path := resolve_bundle(name)).is_dir():
            found.append(models.open(path))
        else:
            found.append(_System(display_name(name), functools.partial(list, read(name))))
    if members:
        found.append(models.ensemble(members))
    if not found:
        raise OptionError(
            "no systems to score; name files of translations, checkpoints or bundles."
        )
    language = (bleu_language or "").lower() or _language(found, reference)
    names = _metric_names(metrics, language)
    comet = None
    if "comet" in names:
        if lines is None:
            raise OptionError("comet also reads the source; give its lines with --source.")
        comet = CometModel(comet_model), lines
    rows = _score(found, right, others, names, language or "", tokenize, comet)
    if as_json:
        print_json(_json(rows, right, references))
    else:
        print_lines(_table(rows, right))


def _read(path: str) -> list[str]:
    with open_input(path) as stream:
        return list(read_lines(stream, display_name(path)))


def _read_as_long(path: str, reference: str, right: Sequence[str]) -> list[str]:
    lines = _read(path)
    if len(lines) != len(right):
        raise InputError(
            f"{display_name(path)} has {len(lines)} lines and {display_name(reference)} has "
            f"{len(right)}; their lines must correspond to each other."
        )
    return lines


@dataclass(frozen=True)
class _Models:
    """Opens systems of models and checks everything but the weights, to report errors early."""

    source: list[str] | None
    search: dict[str, Any]
    target: str | None
    device: str
    threads: int | None
    trees: bool  # of the words of the source

    def open(self, path: Path) -> _System:
        """Open the bundle or checkpoint in a directory."""
        if (path / MANIFEST_NAME).is_file():
            return self._bundle(path)
        return self._checkpoints([path], str(path))

    def ensemble(self, members: Sequence[Path]) -> _System:
        """Open checkpoints as an ensemble."""
        if len(members) == 1:
            raise OptionError(
                f"--ensemble {members[0]} is a single checkpoint; give --ensemble for each member, "
                "or name the checkpoint as a SYSTEM."
            )
        return self._checkpoints(members, f"ensemble of {', '.join(map(str, members))}")

    def _bundle(self, path: Path) -> _System:
        manifest = read_manifest(path)
        target = manifest.target(self.target).name

        def load(options: SearchOptions) -> _Translate:
            from translate_trt.runtime.parsing import Parser
            from translate_trt.runtime.translator import Translator

            translator = Translator(path, target, threads=self.threads)
            if not self.trees:
                return lambda lines: [one.text for one in translator.translate(lines, options)]
            parser = Parser(translator)
            return lambda lines: [
                one.tree for one in parser.parse([line.split() for line in lines], options)
            ]

        return self._system(f"{path} ({target})", manifest, load)

    def _checkpoints(self, paths: Sequence[Path], name: str) -> _System:
        from translate_trt.train.checkpoint import open_checkpoint
        from translate_trt.train.evaluation.validation import (
            check_same_vocabulary,
            load_as_one,
            reference_trees,
            translate_reference,
        )
        from translate_trt.train.trainer.distributed import choose_device, use_threads

        first, *_ = checkpoints = [open_checkpoint(path) for path in paths]
        check_same_vocabulary(checkpoints)
        heads = first.alignment_heads if len(checkpoints) == 1 else None
        device = choose_device(self.device)

        def load(options: SearchOptions) -> _Translate:
            use_threads(self.threads)
            one = load_as_one(checkpoints, device)
            if self.trees:
                return lambda lines: reference_trees(*one, lines, options, heads)[0]
            return lambda lines: translate_reference(*one, lines, options, first.prompt)[0]

        return self._system(name, first, load)

    def _system(
        self, name: str, model: Manifest | Checkpoint, load: Callable[[SearchOptions], _Translate]
    ) -> _System:
        """Return the system of a model, which `load` loads when its translations are needed."""
        options = replace_options(model.search_options(), self.search)
        model.check_languages(options)
        if self.source is None:
            raise OptionError(f"{name} needs lines to translate; give them with --source.")
        lines = self.source

        def texts() -> list[str]:
            translate, found = load(options), list[str]()
            with progress_bar(len(lines), " lines") as bar:
                for chunk in chunks(lines, _CHUNK_LINES):
                    found += translate(chunk)
                    bar.update(len(chunk))
            return found

        return _System(name, texts, options, options.target_language or model.target_language)


def _language(systems: Sequence[_System], reference: str) -> str | None:
    """Return the target language of a model, or else of the reference's file name.

    Languages of models stem from file names too, and may be "txt" or "tgt".
    """
    codes = [
        *(system.language or "" for system in systems),
        Path(uncompressed_name(reference)).suffix[1:],
    ]
    return next((code for code in codes if code.isalpha() and len(code) == 2), None)


def _metric_names(asked: Sequence[str], language: str | None) -> list[str]:
    if asked and "tokenized-bleu" in asked and language is None:
        raise OptionError("tokenized-bleu needs a language; give --bleu-language, such as de.")
    if "evalb" in asked and len(set(asked)) > 1:
        raise OptionError("evalb compares trees, the other metrics text; leave one of them out.")
    if asked:
        return list(dict.fromkeys(asked))
    if language is None:
        log.warning("tokenized BLEU is skipped; to get it, give --bleu-language, such as de")
        return ["bleu", "chrf"]
    return ["bleu", "chrf", "tokenized-bleu"]


def _score(
    systems: Sequence[_System],
    right: Sequence[str],
    others: Sequence[Sequence[str]],
    names: Sequence[str],
    language: str,
    tokenize: str | None,
    comet: tuple[CometModel, Sequence[str]] | None,
) -> list[_Row]:
    from translate_trt.train.evaluation.scoring import (
        comet_metric,
        make_metric,
        paired_bootstrap,
        paired_bootstrap_of_chrf,
        paired_bootstrap_of_trees,
    )

    metrics = {} if comet is None else {"comet": comet_metric(*comet, [right, *others])}
    for name in names:
        if name != "comet":
            metrics[name] = make_metric(name, right, language, tokenize, others)
    texts = []
    for system in systems:
        log.info("reading or making the %d translations of %s", len(right), system.name)
        texts.append(system.texts())
    scores: list[dict[str, Score]] = []
    with progress_bar(len(texts), " systems") as bar:
        for lines in texts:
            scores.append({name: metrics[name](lines) for name in names})
            bar.update()
    differences = []
    if len(texts) > 1:
        match names[0]:
            case "evalb":
                differences = paired_bootstrap_of_trees(texts, right)
            case "chrf":
                differences = paired_bootstrap_of_chrf(texts, [right, *others])
            case _:
                differences = paired_bootstrap(texts, right, tokenize, others)
    return [
        _Row(system, found, difference)
        for system, found, difference in zip(systems, scores, [None, *differences], strict=True)
    ]


def _table(rows: Sequence[_Row], right: Sequence[str]) -> list[str]:
    from translate_trt.train.evaluation.scoring import BOOTSTRAP

    scores = rows[0].scores
    compared = len(rows) > 1
    header = ["system", *(score.label for score in scores.values())]
    metric = rows[-1].difference.metric if rows[-1].difference else ""
    table = [[*header, f"difference in {metric} (95 %)", "p"] if compared else header]
    for row in rows:
        cells = [row.system.name, *(f"{score.score:.2f}" for score in row.scores.values())]
        if row.difference is not None:
            value, (low, high) = row.difference.value, row.difference.interval
            cells += [f"{value:+.2f} [{low:+.2f}, {high:+.2f}]", f"{row.difference.p_value:.3f}"]
        table.append(cells + [""] * (len(table[0]) - len(cells)))
    notes = [[score.label, score.signature, score.note] for score in scores.values()]
    notes += [
        [row.system.name, ", ".join(f"{name} {value:.2f}" for name, value in details.items()), ""]
        for row in rows
        for details in (score.details for score in row.scores.values())
        if details
    ]
    if compared:
        notes.append(["difference", f"to the first system, {BOOTSTRAP}", ""])
    searches = dict.fromkeys(row.system.search for row in rows if row.system.search)
    notes += [["search", _search_text(options), ""] for options in searches]
    return [*columns(table), f"{len(right)} sentences", *(_note(*note) for note in notes)]


def _note(label: str, text: str, remark: str) -> str:
    return f"{label}: {text}{f' ({remark})' if remark else ''}"


def _search_text(options: SearchOptions) -> str:
    parts = [f"beam {options.beam_size}", f"length penalty {options.length_penalty:g}"]
    parts[1] += f" ({options.length_penalty_form})"
    if options.max_length is not None:
        parts.append(f"max length {options.max_length}")
    elif options.max_extra_length != MAX_EXTRA_LENGTH:
        parts.append(f"max length source + {options.max_extra_length}")
    if options.min_length:
        parts.append(f"min length {options.min_length}")
    if options.repetition_penalty != 1:
        parts.append(f"repetition penalty {options.repetition_penalty:g}")
    if options.no_repeat_ngram_size:
        parts.append(f"no {options.no_repeat_ngram_size}-gram twice")
    if options.samples:
        parts.append(f"drawn from {options.sampling_top_k} tokens, seed {options.seed}")
    return ", ".join(parts)


def _json(rows: Sequence[_Row], right: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    systems = [
        {
            "name": row.system.name,
            "search": None if row.system.search is None else asdict(row.system.search),
            "scores": {name: asdict(score) for name, score in row.scores.items()},
            "difference": None if row.difference is None else asdict(row.difference),
        }
        for row in rows
    ]
    reference = references[0] if len(references) == 1 else references
    return {"reference": reference, "sentences": len(right), "systems": systems}
