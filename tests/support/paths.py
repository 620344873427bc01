"""Folders of the repository, counted once: a test file that moves keeps finding them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
