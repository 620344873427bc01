"""Whatever is given to `translate`: one line out for every line in, or an error that says why."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from translate_trt.runtime.cli import main

pytestmark = pytest.mark.slow

SEED = 1706
#: Of which random lines are made: control characters, odd spaces, half of a pair, marks that
#: combine or turn the direction, letters of many scripts, what is not a character at all.
ALPHABET = [
    *map(chr, range(0x21)), "\x7f", "\x85", "\xa0", "\u0301", "\u200b", "\u200d", "\u2028",
    "\u2029", "\u202e", "\u2581", "\u3000", "\ufeff", "\ufffd", "\uffff", "\U0001f600",
    "\U0010ffff", "the", "Haus", "\u6f22", "\u0e01", "\u05d0", "<s>", "</s>", "<unk>",
    ">>de<<", "\\",
]  # fmt: skip
#: At the edge of what is allowed, or beyond; by the names of flags.
EDGES = {
    "beam-size": ["-1", "0", "1", "2", "157", "158", "99999999999"],
    "length-penalty": ["-0.1", "0", "10", "10.1", "1e300", "nan", "inf"],
    "max-length": ["-1", "0", "1", "98", "99", "99999999999999999999"],
    "max-extra-length": ["-1", "0", "50", "51", "99999999999999999999"],
    "min-length": ["-1", "0", "1", "98", "99"],
    "n-best": ["0", "1", "2", "5"],
    "batch-tokens": ["0", "1", "100000000000"],
    "threads": ["0", "1", "100000"],
    "workers": ["0", "1", "2"],
    "target-language": ["", "de", "\u6f22"],
}


def random_text(rng: random.Random) -> bytes:
    """Some lines of random bytes, or of random characters; now and then a long one."""
    if rng.random() < 0.4:
        return rng.randbytes(rng.choice((0, 1, 7, 60)))
    size = rng.choice((0, 1, 5, 20, 20, 400))
    return "".join(rng.choices(ALPHABET, k=size)).encode("utf-8", "surrogatepass")


def test_the_command_line(compiled_bundle: Path) -> None:
    rng = random.Random(SEED)
    codes = []
    for _ in range(60):
        data = b"\n".join(random_text(rng) for _ in range(rng.randrange(3)))
        flags = ["--max-length", "4", "--threads", "1", "--workers", "1"]
        for name in rng.sample(sorted(EDGES), rng.choice((0, 0, 1, 1, 2))):
            flags += [f"--{name}", rng.choice(EDGES[name])]
        arguments = ["translate", "--bundle", str(compiled_bundle), *flags]
        result = CliRunner().invoke(main, arguments, input=data)
        codes.append(result.exit_code)
        case = (arguments, data, result.output, result.exception)
        assert result.exit_code in (0, 1, 2), case
        assert result.exception is None or isinstance(result.exception, SystemExit), case
        if result.exit_code:
            assert "rror: " in result.stderr, case
            assert result.stdout == "", case
        else:
            lines = data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
            assert result.stdout.count("\n") == lines, case
    assert codes.count(0) > 20
    assert set(codes) >= {0, 2}


#: Inputs with records of each format, and its flags.
RECORDS = {
    "jsonl": (
        b'{"id": 1, "text": "a \\ud800 \\u0000\\n"}\n\n{"text": ["b", null], "x": 1e999}\n',
        [],
    ),
    "tsv": (b"1\ta b\t\n\n2\t\tx\n", ["--column", "2"]),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records(compiled_bundle: Path, name: str) -> None:
    rng = random.Random(SEED)
    whole, flags = RECORDS[name]
    arguments = ["translate", "--bundle", str(compiled_bundle), "--input-format", name, *flags]
    arguments += ["--max-length", "4", "--threads", "1", "--workers", "1"]
    codes = []
    for changes in (0, *[1] * 20, *[9] * 5):
        data = bytearray(whole)
        for _ in range(changes):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(2)] = rng.choice((b"\t", b"\n", b'"', b"{", b"\xff", b""))
        result = CliRunner().invoke(main, arguments, input=bytes(data))
        case = (bytes(data), result.output, result.exception)
        codes.append(result.exit_code)
        assert result.exception is None or isinstance(result.exception, SystemExit), case
        if result.exit_code:
            assert "standard input, line " in result.stderr, case
            assert result.stdout == "", case
        else:
            assert result.stdout.count("\n") == data.count(b"\n") + (data[-1:] != b"\n"), case
    assert set(codes) == {0, 1}
