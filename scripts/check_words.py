"""Report house terms that must not come back, which scripts/words.toml lists.

python scripts/check_words.py            # enforced directories; exit code 1 if one has any
python scripts/check_words.py --counts   # every directory, with the number of finds
python scripts/check_words.py PATH ...   # these files or directories, enforced or not
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = Path(__file__).with_name("words.toml")
SUFFIXES = {
    ".c",
    ".cc",
    ".cff",
    ".h",
    ".hpp",
    ".ipynb",
    ".md",
    ".py",
    ".sh",
    ".toml",
    ".txt",
    ".yml",
}


@dataclass(frozen=True)
class Term:
    """A pattern that must not come back, and what to write instead."""

    pattern: re.Pattern[str]
    write: str
    names: bool
    allowed: re.Pattern[str] | None
    excepted: tuple[str, ...]


@dataclass(frozen=True)
class Configuration:
    pending: tuple[str, ...]
    enforced: tuple[str, ...]
    ignored: tuple[str, ...]
    openers: re.Pattern[str]
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Find:
    path: str
    line: int
    text: str
    write: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: "{self.text}": {self.write}'


def read_configuration(path: Path = CONFIGURATION) -> Configuration:
    fields = tomllib.loads(path.read_text(encoding="utf-8"))
    terms = []
    for term in fields["terms"]:
        allowed = term.get("allowed")
        terms.append(
            Term(
                re.compile(rf"\b(?:{term['pattern']})\b", re.IGNORECASE),
                term["write"],
                term.get("names", False),
                re.compile("|".join(f"(?:{one})" for one in allowed), re.IGNORECASE)
                if allowed
                else None,
                tuple(term.get("except", ())),
            )
        )
    return Configuration(
        tuple(fields["pending"]),
        tuple(fields["enforced"]),
        tuple(fields["ignored"]),
        re.compile("|".join(rf"{one}\b" for one in fields["docstring_openers"])),
        tuple(terms),
    )


def is_below(path: str, directories: Iterable[str]) -> bool:
    """Return True if a path is one of these files or lies in one of these directories."""
    return any(PurePosixPath(path).is_relative_to(one) for one in directories)


def finds_in(path: str, text: str, configuration: Configuration) -> Iterator[Find]:
    """Every term and docstring opener in the text of a file."""
    terms = [term for term in configuration.terms if not is_below(path, term.excepted)]
    for number, line in enumerate(text.splitlines(), start=1):
        for term in terms:
            searched = line.replace("_", " ") if term.names else line
            fine = list(term.allowed.finditer(searched)) if term.allowed else []
            for match in term.pattern.finditer(searched):
                if not any(one.start() <= match.start() < one.end() for one in fine):
                    yield Find(path, number, match.group(), f"write {term.write}")
    if path.endswith(".py"):
        yield from openers_in(path, text, configuration.openers)


def openers_in(path: str, text: str, openers: re.Pattern[str]) -> Iterator[Find]:
    """Docstrings that begin with one of these words."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = openers.match(ast.get_docstring(node) or "")
            if first is not None:
                yield Find(
                    path, node.body[0].lineno, first.group(), "begin with a verb or the subject"
                )


def tracked_files(root: Path) -> list[str]:
    """Text files that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    return sorted(p for p in listed if Path(p).suffix in SUFFIXES and (root / p).is_file())


def is_wanted(path: str, asked: Iterable[str], configuration: Configuration) -> bool:
    """Return True if finds in a file are reported, given the paths of the command line."""
    if asked:
        return is_below(path, asked)
    pending = is_below(path, configuration.pending)
    return not pending or is_below(path, configuration.enforced)


def directory_of(path: str) -> str:
    """The directory that counts are shown for: two levels, or the file itself at the top."""
    parts = PurePosixPath(path).parts
    return "/".join(parts[: min(2, len(parts) - 1)]) or path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", help="files or directories to check, pending or not")
    parser.add_argument("--counts", action="store_true", help="count finds by directory")
    options = parser.parse_args(arguments)
    configuration = read_configuration()
    counts: Counter[str] = Counter()
    failed = False
    for path in tracked_files(ROOT):
        if is_below(path, configuration.ignored):
            continue
        if not options.counts and not is_wanted(path, options.paths, configuration):
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        for find in finds_in(path, text, configuration):
            if options.counts:
                counts[directory_of(path)] += 1
            else:
                failed = True
                print(find)
    for directory, count in sorted(counts.items()):
        print(f"{count:5}  {directory}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
