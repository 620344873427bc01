"""Stage records for resuming a distillation.

A stage is identified by the hashes of its inputs and its settings. Its record is written when it
begins and again, with the hashes of its outputs, when it has finished. The inputs of a stage are
outputs of earlier ones, so a change is noticed by all stages that depend on it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from translate_trt.runtime.errors import OutputError
from translate_trt.runtime.io.atomic_files import remove_directory, write_json
from translate_trt.runtime.io.hashing import sha256_of_file
from translate_trt.runtime.version import version

log = logging.getLogger("translate_trt")

_FORMAT_VERSION = 1


@dataclass(frozen=True)
class Stage:
    """Stage of a distillation.

    Attributes:
        name: Name in messages and of the record, such as "train student-tiny".
        inputs: SHA-256 of each input by its name in messages.
        settings: JSON object of all settings that affect the outputs.
        defaults: Dataclasses of the settings. One that a record lacks, since it came later, had its
            default.
        repeats: Repeat the stage if they have changed, even if that is not forced: it takes minutes
            and loses nothing.
    """

    name: str
    inputs: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    defaults: tuple[type, ...] = ()
    repeats: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """Inputs and settings in the form in which a record has them."""
        value = {"inputs": dict(self.inputs), "settings": dict(self.settings)}
        restored: dict[str, Any] = json.loads(json.dumps(value))  # tuples become lists
        return restored

    def complete(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the record of an earlier run with the defaults of settings that it lacks."""
        identity = record["identity"]
        defaults = {
            each.name: each.default
            for kind in self.defaults
            for each in dataclasses.fields(kind)
            if each.name in self.settings and each.default is not dataclasses.MISSING
        }
        defaults = json.loads(json.dumps(defaults))  # tuples become lists
        return record | {"identity": identity | {"settings": defaults | identity["settings"]}}


@dataclass(frozen=True)
class Records:
    """Records of a distillation.

    Attributes:
        root: Directory of the distillation; outputs are recorded relative to it.
        force: Repeat stages whose inputs or settings have changed, instead of refusing them.
    """

    root: Path
    force: bool = False

    @property
    def home(self) -> Path:
        """Directory of the records."""
        return self.root / "stages"

    def run(
        self, stage: Stage, work: Callable[[bool], list[Path]], directory: Path | None = None
    ) -> Mapping[str, str]:
        """Run a stage unless it has finished.

        Args:
            stage: Stage to run.
            work: Does the work and returns the files that it has written. Argument: whether to
                continue where a run of the same stage was interrupted.
            directory: Directory that the work continues in. Before the stage is repeated, the old
                one is moved aside, so that an interrupted run can only continue its own; it is
                deleted when the stage has finished.

        Returns:
            SHA-256 of each output, by its path relative to the root.

        Raises:
            OutputError: The stage was run with other inputs or settings, or its outputs have been
                changed since, and `force` is not set; or a record cannot be written.
        """
        path = self.home / f"{stage.name.replace(' ', '-')}.json"
        before = _read(path)
        if before is not None:
            before = stage.complete(before)
        same = before is not None and before["identity"] == stage.identity
        if before is not None and not same:
            differences = ", ".join(_differences(before["identity"], stage.identity))
            # Nothing is lost where a stage has failed that begins anew in any case.
            if before["outputs"] is not None or (directory is not None and directory.exists()):
                self._check_forced(stage, differences)
            else:
                log.info("%s begins anew (%s)", stage.name, differences)
        if before is not None and same and before["outputs"] is not None:
            changed = list(self._changed(before["outputs"]))
            if not changed:
                log.info("%s: finished before", stage.name)
                return {name: entry["sha256"] for name, entry in before["outputs"].items()}
            present = [name for name in changed if (self.root / name).exists()]
            if present:
                self._check_forced(stage, f"{present[0]} has been changed since it was written")
            log.warning("%s: %s is missing; the stage is repeated", stage.name, changed[0])
        log.info("%s", stage.name)
        self.home.mkdir(parents=True, exist_ok=True)
        resume = same and before is not None and before["outputs"] is None
        if directory is not None and before is not None and not resume:
            _move_aside(directory)
        _write(path, stage, None)
        files = work(resume)
        outputs = {file.relative_to(self.root).as_posix(): _entry(file) for file in files}
        _write(path, stage, outputs)
        if directory is not None and (aside := _aside(directory)).is_dir():
            remove_directory(aside)
        return {name: entry["sha256"] for name, entry in outputs.items()}

    def _check_forced(self, stage: Stage, difference: str) -> None:
        if not self.force and not stage.repeats:
            raise OutputError(
                f"{self.root} has the stage '{stage.name}' of a run that differs ({difference}); "
                "use the same inputs and settings, choose another --output, or add --force to "
                "repeat this stage and those that depend on it."
            )
        log.warning("%s is repeated (%s)", stage.name, difference)

    def _changed(self, outputs: Mapping[str, Any]) -> Iterator[str]:
        """Iterate over the recorded outputs that are missing or have another content."""
        for name, entry in outputs.items():
            path = self.root / name
            try:
                found = path.stat()
                changed = found.st_size != entry["bytes"]
                if not changed and found.st_mtime_ns != entry["modified"]:  # written or copied
                    changed = sha256_of_file(path)[0] != entry["sha256"]
            except OSError:
                changed = True
            if changed:
                yield name


def _aside(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.replaced")


def _move_aside(directory: Path) -> None:
    if not directory.is_dir():
        return
    aside = _aside(directory)
    try:
        if aside.is_dir():
            remove_directory(aside)
        directory.rename(aside)
        log.info("%s is kept as %s until its stage has finished", directory, aside.name)
    except OSError as error:
        raise OutputError(f"{directory} cannot be moved: {error.strerror}.") from error


def _write(path: Path, stage: Stage, outputs: dict[str, Any] | None) -> None:
    record = {"format_version": _FORMAT_VERSION, "created_by": f"translate-trt {version()}"}
    write_json(path, {**record, "identity": stage.identity, "outputs": outputs})


def _read(path: Path) -> dict[str, Any] | None:
    """Read a record; None if there is none.

    Raises:
        OutputError: The file is damaged or of another version.
    """
    try:
        value = json.loads(path.read_bytes())
        if value["format_version"] == _FORMAT_VERSION:
            identity = value["identity"]
            for _ in (*identity["inputs"].items(), *identity["settings"].items()):
                pass
            for entry in (value["outputs"] or {}).values():
                entry["bytes"] + 0, entry["modified"] + 0, entry["sha256"] + ""
            return dict(value)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        pass
    raise OutputError(
        f"{path} is damaged or was written by another version of translate-trt; delete it to "
        "repeat its stage."
    )


def _entry(file: Path) -> dict[str, Any]:
    digest, size = sha256_of_file(file)
    return {"sha256": digest, "bytes": size, "modified": file.stat().st_mtime_ns}


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """Describe each difference of two identities, such as `steps 100 there, 200 here`."""
    inputs = there["inputs"], here["inputs"]
    for name in sorted({*inputs[0], *inputs[1]}):
        if inputs[0].get(name) != inputs[1].get(name):
            yield f"other content of {name}"
    settings = _flat(there["settings"]), _flat(here["settings"])
    for name in sorted({*settings[0], *settings[1]}):
        values = [setting.get(name) for setting in settings]
        if values[0] != values[1]:
            yield f"{name} {values[0]} there, {values[1]} here"


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the names of nested objects before those of their fields."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        nested = value if isinstance(value, dict) else None
        flat |= {name: value} if nested is None else {f"{name}.{k}": v for k, v in nested.items()}
    return flat


def hash_of(hashes: Mapping[str, str]) -> str:
    """Return one SHA-256 for several files, from their hashes by name."""
    return hashlib.sha256(json.dumps(dict(hashes), sort_keys=True).encode()).hexdigest()
