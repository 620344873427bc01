"""Directory of a training run: checks before a run begins or resumes in it, and its replacement."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from translate_trt.runtime.errors import OptionError, OutputError
from translate_trt.runtime.io.atomic_files import clear_leftovers_in, finish_switch, new_contents
from translate_trt.runtime.io.locks import TEMPORARY
from translate_trt.runtime.io.outputs import foreign_file, object_in
from translate_trt.train.checkpoint import (
    AVERAGED,
    BEST,
    checkpoint_files,
    numbered_checkpoints,
)
from translate_trt.train.config import TOKENIZER, TOKENIZERS
from translate_trt.train.trainer.metrics import DAMAGED, METRICS, TENSORBOARD
from translate_trt.train.trainer.settings import SETTINGS

log = logging.getLogger("translate_trt")


@dataclass(frozen=True)
class RunDirectory:
    """The --output directory of `translate-trt train`; the caller holds its lock."""

    path: Path

    def check(self, resume: bool, force: bool) -> bool:
        """Check that a run may begin or resume here, before anything is read or deleted.

        Args:
            resume: Continue the run in the directory, if there is one.
            force: Replace the run in the directory.

        Returns:
            Whether the directory holds a run to resume.

        Raises:
            OptionError: `resume` and `force` are both True.
            OutputError: The directory holds files that must not be replaced.
        """
        if resume and force:
            raise OptionError(
                "--resume continues the run in --output and --force deletes it; give one."
            )
        if self.path.is_dir():
            finish_switch(self.path, _run_files, SETTINGS)
        begun = (self.path / SETTINGS).is_file()
        if resume:
            if not begun:
                left = sorted(_run_files(self.path)) if self.path.is_dir() else []
                if left:  # of a run that lost its settings, or of another program
                    raise OutputError(
                        f"{self.path} has {left[0].name}, but no {SETTINGS}, so there is no run to "
                        "resume, and a new one would replace it. Choose another --output, or move "
                        f"{left[0].name} away."
                    )
                log.warning("%s holds no run to resume; starting a new one", self.path)
            for name in (AVERAGED, BEST) if begun else ():
                if (self.path / name).is_dir():  # found now, not after days
                    _check_is_ours(self.path / name)
            return begun
        # A directory may hold a lock, and leftovers of killed processes.
        if self.path.exists() and not (
            self.path.is_dir()
            and all(TEMPORARY.fullmatch(path.name) for path in self.path.iterdir())
        ):
            if not force:
                raise OutputError(
                    f"{self.path} exists; choose another --output, continue the run in it with "
                    "--resume, or start over with --force."
                )
            if not {"model", "train"} <= object_in(self.path / SETTINGS).keys():
                raise OutputError(
                    f"{self.path} holds no run of translate-trt; --force will not delete it."
                )
            for path in filter(Path.is_dir, _run_files(self.path)):
                _check_is_ours(path)
        return False

    @contextmanager
    def replaced(self) -> Iterator[Path]:
        """Replace the run in the directory, if any, by the files that the block writes.

        The old run stays until the block ends without an error (`new_contents`).

        Yields:
            A temporary directory for the new files.

        Raises:
            OutputError: The disk is full, or the directory is not writable.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{self.path} cannot be made: {error.strerror}.") from error
        clear_leftovers_in(self.path)
        with new_contents(self.path, _run_files, SETTINGS) as new:
            yield new


def _check_is_ours(directory: Path) -> None:
    """Raise an OutputError if a directory to be replaced has files that no run has written."""
    if directory.name == TENSORBOARD:
        ours = {path.name for path in directory.glob("events.out.tfevents.*")}
    else:
        ours = checkpoint_files(directory) or set()
    if (other := foreign_file(directory, ours)) is not None:
        raise OutputError(
            f"{directory / other} was not written by translate-trt train, and would be deleted; "
            "move it away, or choose another --output."
        )


def _run_files(out: Path) -> Iterator[Path]:
    """Existing files of the run in a directory; run.json, which makes it a run, comes first."""
    names = (SETTINGS, METRICS, DAMAGED, TOKENIZER, *TOKENIZERS, AVERAGED, BEST, TENSORBOARD)
    for path in (*(out / name for name in names), *numbered_checkpoints(out)):
        if path.exists():
            yield path
