"""CTranslate2's vmap.txt: the target tokens that source tokens and phrases may be translated to.

A line has a source phrase, a tab, and target tokens, all separated by spaces. The tokens of lines
without a phrase are in every list, as is the unknown token.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from translate_trt.export.importers.input_files import read_lines
from translate_trt.export.importers.shortlist_checks import Fit, check_sizes
from translate_trt.export.importers.vocabulary import TokenMap
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import PAD, START, UNKNOWN
from translate_trt.train.shortlist.table import Shortlist, no_copies, shortlist_of_entries

log = logging.getLogger("translate_trt")

#: Name of the file in the directory of a model.
NAME = "vmap.txt"


def read_vocabulary_map(
    path: Path, token_maps: tuple[TokenMap, TokenMap], tokenizer_sha256: str
) -> Shortlist | None:
    """Read a vocabulary map as a shortlist; phrases of several tokens are left out.

    Args:
        path: Path of the file.
        token_maps: Maps of source and target.
        tokenizer_sha256: Hash of the tokenizers, for the table.

    Returns:
        The shortlist; None without a file.

    Raises:
        InputError: The file is damaged, or of another model.
    """
    if not path.is_file():
        return None
    sources, targets = (
        {name: index for index, name in enumerate(one.names) if index not in (PAD, START)}
        for one in token_maps
    )
    fit = Fit(path, sources, targets)
    always, lists, phrases = {UNKNOWN}, dict[int, set[int]](), 0
    for number, line in enumerate(read_lines(path), 1):
        phrase, tab, text = line.partition("\t")
        if not tab and line:
            raise InputError(
                f"{path}, line {number}: {line[:60]!r} is not a source phrase, a tab and target "
                "tokens; copy the file again."
            )
        if " " in phrase:
            phrases += 1
            continue
        found = lists.setdefault(sources.get(phrase, UNKNOWN), set()) if phrase else always
        for target in filter(None, text.split(" ")):
            found.add(targets.get(target, UNKNOWN))
            if phrase:
                fit.add(phrase, target)
    fit.check()
    if phrases:
        log.warning(
            "%s: %s phrases of several tokens are left out: a shortlist has single tokens.", path,
            f"{phrases:,}",
        )  # fmt: skip
    longest = max(map(len, lists.values()), default=0)
    check_sizes(path, len(always), longest, "Move the file away to import the model without it.")
    entries = np.array(
        [(source, target) for source, found in lists.items() for target in sorted(found)],
        dtype=np.int64,
    ).reshape(-1, 2)
    # The file has no probabilities: all translations are equal.
    return shortlist_of_entries(
        entries[:, 0],
        entries[:, 1],
        np.ones(len(entries), dtype=np.float32),
        frequent=np.array(sorted(always)),
        copies=no_copies(token_maps[0].size),
        vocabulary_size=token_maps[1].size,
        tokenizer_sha256=tokenizer_sha256,
    )
