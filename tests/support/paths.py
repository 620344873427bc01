"""Folders of the repository, so that test files can move."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
