"""Resumable stages of a distillation.

OUT/
  stages/               a record per stage
  translations/         the teacher's hypotheses, as JSON lines
  pairs/                selected training pairs
  data/                 prepared data with the students' vocabulary
  shortlist.safetensors
  students/NAME/run     training run
  students/NAME/bundle  verified bundle
  table.json            quality and speed of teacher and students
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.export.distillation.distillation_options import (
    DistillationOptions,
    SelectionOptions,
    Student,
)
from translate_trt.export.distillation.pareto import Row, System, measure
from translate_trt.export.distillation.records import Records, Stage, hash_of
from translate_trt.export.distillation.selection import (
    COUNTS,
    SOURCE,
    TARGET,
    Candidate,
    Translated,
    select,
)
from translate_trt.export.distillation.student_training import (
    TrainingProcesses,
    best_checkpoint,
    train_student,
)
from translate_trt.export.verify.parity import verify, warn_of_few_lines
from translate_trt.runtime.benchmark import BenchOptions
from translate_trt.runtime.bundle.manifest import MANIFEST_NAME, SHORTLIST, Manifest, read_manifest
from translate_trt.runtime.cores import available_cores
from translate_trt.runtime.errors import InputError, TranslateTrtError
from translate_trt.runtime.io.atomic_files import write_json
from translate_trt.runtime.io.hashing import input_hash
from translate_trt.runtime.io.lines import open_input, read_lines
from translate_trt.runtime.io.locks import locked_directory
from translate_trt.runtime.io.outputs import check_apart
from translate_trt.runtime.json_lines import read_json_lines
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.serve.corpus.job import ShardRecord
from translate_trt.runtime.serve.corpus.plan import PARQUET
from translate_trt.runtime.serve.corpus.run import prepare_work, translate_inputs
from translate_trt.runtime.serve.corpus.run_options import CorpusOptions, WorkerOptions
from translate_trt.train.checkpoint import WEIGHTS, Checkpoint, open_checkpoint
from translate_trt.train.config import TOKENIZER, ModelConfig, TrainConfig, preset
from translate_trt.train.data.corpora import PrepareOptions
from translate_trt.train.data.prepare import INDEX, Preparation, prepare
from translate_trt.train.data.text_sources import TextSource, language_of, read_sides
from translate_trt.train.data.token_files import open_prepared
from translate_trt.train.shortlist.learning import (
    Vocabularies,
    build_shortlist,
    prepared_pairs,
)
from translate_trt.train.shortlist.shortlist_size import ITERATIONS, ShortlistSize
from translate_trt.train.worker_processes import WorkerPool

log = logging.getLogger("translate_trt")

_TABLE = "table.json"
#: Lines of a shard, fewer than usual: lines with many hypotheses take long, and all workers of a
#: large machine are to have some of a small corpus.
_SHARD_LINES = 2_000

Hashes = Mapping[str, str]
TextHashes = Mapping[Path, str]


@dataclass(frozen=True)
class Resources:
    """Machines and processes of a distillation, which do not affect its result.

    Attributes:
        workers: Processes; None: all cores.
        address: Address of a Ray cluster for the translation; None: this machine.
        device: Device of the training: auto, cpu or cuda.
        processes: Processes that train a student together, one per GPU.
        concurrent_students: Students that train at the same time, on the same device.
        quiet: Show errors only.
    """

    workers: int | None = None
    address: str | None = None
    device: str = "auto"
    processes: int = 1
    concurrent_students: int = 1
    quiet: bool = False


class Distillation:
    """Distillation of one teacher into students.

    Args of the constructor:
        options: Inputs and options.
        out: Directory of all results.
        resources: Machines and processes.
        force: Repeat stages whose inputs or settings have changed.
        on_planned: Called with the numbers of shards to translate and of finished ones.
        on_finished: Called with the record of each translated shard.
        on_translated: Called when no shard is left to translate.
    """

    def __init__(
        self,
        options: DistillationOptions,
        out: Path,
        resources: Resources,
        force: bool = False,
        on_planned: Callable[[int, int], None] = lambda *_: None,
        on_finished: Callable[[ShardRecord], None] = lambda _: None,
        on_translated: Callable[[], None] = lambda: None,
    ) -> None:
        self._options, self._out, self._resources = options, out.resolve(), resources
        self._records = Records(self._out, force)
        self._on_planned, self._on_finished = on_planned, on_finished
        self._on_translated = on_translated
        self._manifest: Manifest = read_manifest(options.teacher)
        self._target = self._manifest.target(options.teacher_target).name
        search = options.search or self._manifest.search_options()
        self._search = dataclasses.replace(search, num_hypotheses=1)

    def run(self) -> list[Row]:
        """Run all stages that have not finished.

        Returns:
            The rows of the table.

        Raises:
            OutputError: The directory has stages with other inputs or settings, holds other files,
                or cannot be written.
            TranslateTrtError: An input is unsuitable, a stage failed, or a student's target missed
                its acceptance thresholds.
        """
        options = self._options
        texts = [*options.sources, *options.references, *options.valid, *(options.test or ())]
        if options.terminology is not None:
            options.terminology.glossary()  # an error in it is noticed before any work
            texts.append(options.terminology.terminology)
        check_apart(self._out, [options.teacher, *texts])
        hashes = {path: input_hash(path) for path in texts}
        with locked_directory(self._out):
            translated = self._translate(hashes)
            self._on_translated()
            pairs = self._select(hashes, translated)
            data = self._prepare(hashes, pairs)
            shortlist = self._learn_shortlist(data)
            bundles: dict[str, Hashes] = {}
            count = self._resources.concurrent_students
            for first in range(0, len(options.students), count):
                students = options.students[first : first + count]
                for student, training in zip(students, self._train(students, data), strict=True):
                    bundles[student.name] = self._make(student, hashes, training, shortlist)
            return self._measure(hashes, bundles)

    # ---- training data ----

    def _teacher(self) -> dict[str, str]:
        """Return the hashes of the teacher's files, without its evidence of verification."""
        files = self._manifest.target(self._target).files
        hashes = {role: file.sha256 for role, file in files.items()}
        hashes |= {side: file.sha256 for side, file in self._manifest.tokenizer.items()}
        return {"the teacher": hash_of(hashes)}

    def _translate(self, hashes: TextHashes) -> Hashes:
        """Translate the sources with the teacher."""
        out, sources = self._out / "translations", self._options.sources
        hypotheses = self._options.hypotheses
        search = dataclasses.replace(
            self._search,
            beam_size=max(self._search.beam_size, hypotheses),
            num_hypotheses=hypotheses,
        )
        terminology = self._options.terminology
        corpus = CorpusOptions(_SHARD_LINES, json=True)
        if terminology is not None:
            entries = terminology.glossary().entries
            corpus = dataclasses.replace(
                corpus,
                terminology=tuple((one.source, *one.targets) for one in entries),
                terminology_ignore_case=terminology.terminology_ignore_case,
            )
        work, inputs = prepare_work(
            self._options.teacher, self._target, False, [str(path) for path in sources], out,
            search, corpus, WorkerOptions(workers=self._resources.workers),
        )  # fmt: skip

        for one in inputs:
            if one.kind == PARQUET:
                raise InputError(f"{one.path} is a Parquet table; give its text as lines.")

        def run(_: bool) -> list[Path]:
            complete = translate_inputs(
                inputs, work, self._on_planned, self._on_finished, self._resources.address
            )
            bad = sum(sum(record.bad.values()) for record in complete.values())
            if bad:
                log.warning("%d lines could not be translated; %s lists them", bad, out)
            return [work.job.result(source) for source in inputs]

        settings = {"target": self._target, **dataclasses.asdict(search)}
        stage_inputs = self._teacher() | _inputs("source", sources, hashes)
        if terminology is not None:
            stage_inputs |= _inputs("glossary", [terminology.terminology], hashes)
            settings["terminology_ignore_case"] = terminology.terminology_ignore_case
        stage = Stage("translate", stage_inputs, settings, (SearchOptions,))
        return self._records.run(stage, run, out)

    def _select(self, hashes: TextHashes, translated: Hashes) -> Hashes:
        """Select the training pairs."""
        references = self._options.references

        def run(_: bool) -> list[Path]:
            files = [self._out / name for name in translated]
            lines = itertools.chain.from_iterable(map(_read_translations, files))
            with WorkerPool(self._workers) as pool:
                counts = select(
                    lines, _read_references(references) if references else None,
                    self._options.selection, self._out / "pairs", pool,
                )  # fmt: skip
            log.info(
                "%d of %d lines are selected; dropped: %s", counts["kept"], counts["read"],
                ", ".join(f"{n} {name}" for name, n in counts.items() if name not in _KEPT),
            )  # fmt: skip
            return [self._out / "pairs" / name for name in (SOURCE, TARGET, COUNTS)]

        inputs = dict(translated) | _inputs("reference", references, hashes)
        settings = dataclasses.asdict(self._options.selection)
        del settings["keep_references"], settings["hypotheses"]  # of other stages
        return self._records.run(Stage("select", inputs, settings, (SelectionOptions,)), run)

    def _prepare(self, hashes: TextHashes, pairs: Hashes) -> Hashes:
        """Clean the pairs, train the vocabulary, and tokenize."""
        options, out = self._options, self._out / "data"
        train = [(self._out / "pairs" / SOURCE, self._out / "pairs" / TARGET)]
        if options.selection.keep_references:
            train += list(zip(options.sources, options.references, strict=True))
        texts = itertools.chain(options.valid, *train[1:])
        languages = self._languages()
        annotation = options.terminology if options.annotated else None

        def run(_: bool) -> list[Path]:
            preparation = Preparation(
                "distilled", languages,
                [(TextSource(source), TextSource(target)) for source, target in train],
                [(TextSource(options.valid[0]), TextSource(options.valid[1]))], [],
                options.prepare, terminology=annotation,
            )  # fmt: skip
            with locked_directory(out):
                prepare(preparation, out, self._workers, force=True)
            names = [f"train.{side}.{part}" for side in ("source", "target") for part in _PARTS]
            return [out / name for name in (INDEX, TOKENIZER, *names)]

        settings = {**dataclasses.asdict(options.prepare), "languages": languages}
        inputs = {**pairs, **_inputs("text", texts, hashes)}
        if annotation is not None:
            inputs |= _inputs("glossary", [annotation.terminology], hashes)
            settings |= dataclasses.asdict(annotation)
            del settings["terminology"]  # a path
        return self._records.run(Stage("prepare", inputs, settings, (PrepareOptions,)), run)

    def _languages(self) -> tuple[str | None, str | None]:
        """Return the languages of the text: the search's, the teacher's, or the file's ending."""
        search, manifest, valid = self._search, self._manifest, self._options.valid
        return (
            search.source_language or manifest.source_language or language_of(valid[0]),
            search.target_language or manifest.target_language or language_of(valid[1]),
        )

    def _learn_shortlist(self, data: Hashes) -> Hashes:
        """Learn the students' shortlist, if a target has one."""
        if not any(target.endswith(SHORTLIST) for target in self._options.targets):
            return {}
        path, size = self._out / "shortlist.safetensors", ShortlistSize()

        def run(_: bool) -> list[Path]:
            prepared = open_prepared(self._out / "data")
            vocabularies = Vocabularies.of(*prepared.tokenizers)
            with WorkerPool(self._workers) as pool:
                pairs = prepared_pairs(prepared)
                build_shortlist(pairs, vocabularies, size, ITERATIONS, pool).save(path)
            return [path]

        settings = {**dataclasses.asdict(size), "iterations": ITERATIONS}
        return self._records.run(Stage("shortlist", data, settings), run)

    # ---- students ----

    def _home(self, student: Student) -> Path:
        return self._out / "students" / student.name

    def _train(self, students: Sequence[Student], data: Hashes) -> list[Hashes]:
        """Train students at the same time; return the hashes of their checkpoints.

        If a training fails, the others finish. Ctrl-C and SIGTERM let each save a checkpoint first.
        """
        running = TrainingProcesses(prefixed=len(students) > 1)
        with ThreadPoolExecutor(len(students)) as pool:
            try:
                trainings = [pool.submit(self._train_one, one, data, running) for one in students]
                wait(trainings)
            except (KeyboardInterrupt, SystemExit) as stop:  # SystemExit: SIGTERM
                running.stop(terminate=isinstance(stop, SystemExit))
                raise
        return [training.result() for training in trainings]

    def _train_one(self, student: Student, data: Hashes, running: TrainingProcesses) -> Hashes:
        run = self._home(student) / "run"
        prepared = self._options.prepare
        common = {"max_length": prepared.max_length, "seed": prepared.seed}
        with_common = student.with_settings(self._options.training)
        flags = ("--device", self._resources.device, *(["--quiet"] * self._resources.quiet))

        def work(resume: bool) -> list[Path]:
            train_student(
                with_common, self._out / "data", run, common, resume, running,
                self._resources.processes, flags,
            )  # fmt: skip
            chosen = best_checkpoint(run)
            log.info("%s: %s is exported", student.name, chosen)
            return [chosen / WEIGHTS]

        # The effective settings: a preset of another version is another training.
        chosen = preset(student.preset)
        settings = dataclasses.asdict(chosen.model) | dataclasses.asdict(chosen.train)
        settings |= with_common.settings | common
        del settings["vocabulary_size"]  # that of the data
        stage = Stage(f"train {student.name}", data, settings, (ModelConfig, TrainConfig))
        return self._records.run(stage, work, run)

    def _make(
        self, student: Student, hashes: TextHashes, training: Hashes, shortlist: Hashes
    ) -> Hashes:
        """Compile and verify a student; return the hashes of its target files."""
        home = self._home(student)
        bundle = self._compile(student, home, training, shortlist)
        self._verify(student, home, hashes, {**bundle, **training})
        return bundle

    def _checkpoint(self, training: Hashes) -> Checkpoint:
        """Open the chosen checkpoint, with greedy search as a student's default."""
        (weights,) = training
        checkpoint = open_checkpoint((self._out / weights).parent)
        search = checkpoint.search | {"beam_size": self._options.beams[0]}
        return dataclasses.replace(checkpoint, search=search)

    def _compile(self, student: Student, home: Path, training: Hashes, shortlist: Hashes) -> Hashes:
        def run(_: bool) -> list[Path]:
            table = self._out / next(iter(shortlist)) if shortlist else None
            options = BuildOptions(targets=self._options.targets, shortlist=table)
            # A bundle whose stage has no record was left by an interrupted run.
            force = (home / "bundle").exists()
            compiled = compile_bundle(self._checkpoint(training), home / "bundle", options, force)
            targets = compiled.manifest.targets.values()
            return sorted({
                file.locate(home / "bundle") for target in targets for file in target.files.values()
            })  # fmt: skip

        settings = {"targets": self._options.targets, "beam_size": self._options.beams[0]}
        stage = Stage(f"export {student.name}", {**training, **shortlist}, settings)
        return self._records.run(stage, run)

    def _verify(self, student: Student, home: Path, hashes: TextHashes, made: Hashes) -> None:
        source, reference = self._options.test_set
        bundle = home / "bundle"

        def run(_: bool) -> list[Path]:
            lines, references = read_sides(source, reference)
            warn_of_few_lines(len(lines))
            training = {name: one for name, one in made.items() if name.endswith(WEIGHTS)}
            found = verify(bundle, self._checkpoint(training), lines, references)
            for name, parity in found.items():
                log.info(
                    "%s, %s: BLEU %.2f, %+.2f of PyTorch's", student.name, name, parity.bleu,
                    parity.bleu_difference,
                )  # fmt: skip
            if failed := [name for name, parity in found.items() if not parity.passed]:
                raise TranslateTrtError(
                    f"{', '.join(failed)} of {bundle} missed the acceptance thresholds "
                    f"({'; '.join(found[failed[0]].missed)}); do not deploy. translate-trt info "
                    "shows the evidence."
                )
            # With the evidence: a bundle that is compiled again has another manifest.
            return [bundle / MANIFEST_NAME]

        texts = _inputs("test text", (source, reference), hashes)
        stage = Stage(f"verify {student.name}", {**made, **texts}, repeats=True)
        self._records.run(stage, run)

    # ---- the table ----

    def _systems(self) -> list[System]:
        """Return the teacher with its own beam size first, then all systems by beam size."""
        options = self._options
        beams = dict.fromkeys((self._search.beam_size, *options.beams))
        systems = [
            System("teacher", options.teacher, self._target, _with_beam(self._search, beam))
            for beam in beams
        ]
        for student in options.students:
            bundle = self._home(student) / "bundle"
            manifest = read_manifest(bundle)
            search = manifest.search_options()
            systems += [
                System(student.name, bundle, target, _with_beam(search, beam))
                for target in manifest.targets
                for beam in options.beams
            ]
        return systems

    def _measure(self, hashes: TextHashes, bundles: Mapping[str, Hashes]) -> list[Row]:
        path, test = self._out / _TABLE, self._options.test_set
        terminology = self._options.terminology

        def run(_: bool) -> list[Path]:
            rows = measure(
                self._systems(), *read_sides(*test),
                BenchOptions(rounds=self._options.rounds, cores=self._resources.workers),
                None if terminology is None else terminology.glossary(),
            )  # fmt: skip
            write_json(path, [dataclasses.asdict(row) for row in rows])
            return [path]

        inputs = self._teacher() | _inputs("test text", test, hashes)
        inputs |= {name: hash_of(files) for name, files in bundles.items()}
        settings = {
            "target": self._target, "beams": self._options.beams, "rounds": self._options.rounds,
            "search": dataclasses.asdict(self._search),
        }  # fmt: skip
        if terminology is not None:
            inputs |= _inputs("glossary", [terminology.terminology], hashes)
            settings["terminology_ignore_case"] = terminology.terminology_ignore_case
        self._records.run(Stage("measure", inputs, settings, repeats=True), run)
        try:
            return [Row(**row) for row in json.loads(path.read_bytes())]
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path} is damaged; delete it to measure again.") from error

    @property
    def _workers(self) -> int:
        return self._resources.workers or available_cores()


_KEPT = ("read", "kept")
_PARTS = ("offsets", "tokens")


def _inputs(role: str, paths: Iterable[Path], hashes: TextHashes) -> dict[str, str]:
    """Return the hashes of texts by role and number: their paths do not matter."""
    return {f"{role} {number}": hashes[path] for number, path in enumerate(paths, start=1)}


def _with_beam(search: SearchOptions, beam: int) -> SearchOptions:
    return dataclasses.replace(search, beam_size=beam, num_hypotheses=1)


def _read_translations(path: Path) -> Iterator[Translated]:
    for source, found in read_json_lines(path):
        yield (
            source or "",
            [
                Candidate(
                    one.text,
                    sum(one.token_log_probs) / max(1, len(one.token_log_probs)),
                    one.truncated,
                )
                for one in found
            ],
        )


def _read_references(paths: tuple[Path, ...]) -> Iterator[str]:
    for path in paths:
        with open_input(str(path)) as stream:
            yield from read_lines(stream, str(path))
