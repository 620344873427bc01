"""Bundles of multilingual models, which differ from others in their manifest alone.

Prompts are no part of the graphs, so that any bundle can have any.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from translate_trt.runtime.bundle.manifest import read_manifest, write_manifest
from translate_trt.runtime.bundle.prompt import Prompt

#: As in M2M100, with something before it as in BART, and as in OPUS-MT.
TARGET = Prompt((5,), (6,), {"en": 21, "fr": 22}, {"de": 31, "nl": 32})
SOURCE = Prompt(target_languages={"deu": 31, "nld": 32}, target_side="source")


def with_prompt(bundle: Path, prompt: Prompt, path: Path, **search: Any) -> Path:
    """Copy a bundle to `path` and add a prompt and search defaults."""
    shutil.copytree(bundle, path)
    manifest = read_manifest(path)
    manifest = dataclasses.replace(manifest, prompt=prompt, search=manifest.search | search)
    write_manifest(path, manifest)
    return path
