"""The architecture picture shows folders of the tree, and all subjects of the three packages."""

from __future__ import annotations

import re

from support.paths import ROOT

PICTURE = ROOT / "docs/plots/architecture.svg"
#: Folders that every reader expects, or that are another one's binding or build output.
NOT_SHOWN = {
    "train/cli", "export/cli", "runtime/cli", "runtime/io", "runtime/kernels",
    "runtime/namespace", "runtime/native",
}  # fmt: skip


def test_boxes_are_the_folders_of_the_packages() -> None:
    shown = re.findall(r'data-folder="([^"]+)/"', PICTURE.read_text(encoding="utf-8"))
    assert len(set(shown)) == len(shown)
    packages = ("train", "export", "runtime")
    folders = {
        f"{package}/{path.name}"
        for package in packages
        for path in (ROOT / package).iterdir()
        if path.is_dir() and not path.name.startswith(("_", "."))
    }
    assert {*shown} == {*packages, *folders} - NOT_SHOWN
