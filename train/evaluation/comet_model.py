"""COMET models (Rei et al. 2020) of the package `unbabel-comet`, which is optional."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from translate_trt.runtime.errors import DownloadError, OptionError

#: Model by default; it compares a translation with its source and a reference.
DEFAULT_MODEL = "Unbabel/wmt22-comet-da"
_BATCH_SIZE = 32


class CometModel:
    """A COMET model, on a GPU if PyTorch finds one.

    Attributes:
        name: Name that the user gave.
        version: Version of the package.
        needs_references: Whether the model cannot judge a translation by its source alone.
    """

    def __init__(self, name: str) -> None:
        """Load a model.

        Args:
            name: Name on the Hugging Face Hub, or path of a file that ends in .ckpt. The package
                reads checkpoints with pickle, which can run code.

        Raises:
            OptionError: The package is not installed, or cannot load the model.
            DownloadError: The model is neither on this machine nor available.
        """
        handlers = list(logging.root.handlers)
        try:
            import comet
            import torch
        except ImportError as error:
            raise OptionError(
                f"comet needs the package unbabel-comet: pip install unbabel-comet ({error})"
            ) from error
        finally:
            logging.root.handlers[:] = handlers  # the import adds one, which repeats all messages
        try:
            path = name if name.endswith(".ckpt") else comet.download_model(name)
        except KeyError as error:
            raise DownloadError(
                f"the COMET model {name} cannot be downloaded. Check its name at "
                "https://huggingface.co/Unbabel and the connection; some models need a login, "
                "after their terms have been accepted there."
            ) from error
        try:
            self._model = comet.load_from_checkpoint(path)
        except Exception as error:  # of the package, which raises the base class itself
            raise OptionError(f"comet_model is {name}, which cannot be loaded: {error}") from error
        self.name, self.version = name, str(comet.__version__)
        self.needs_references = bool(self._model.requires_references())
        self._gpus = int(torch.cuda.is_available())

    def scores(self, samples: Sequence[Mapping[str, str]]) -> list[float]:
        """Return the score of each sample times 100.

        Args:
            samples: Texts by name: `src`, the source; `mt`, the translation; and `ref`, a
                reference, if the model needs one.
        """
        if not samples:
            return []
        found = self._model.predict(
            list(samples), batch_size=_BATCH_SIZE, gpus=self._gpus, progress_bar=False
        )
        return [100 * score for score in found.scores]
