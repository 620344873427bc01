# Sourced by the scripts that train on Tatoeba.

# shellcheck shell=bash

# Writes train, valid and test .en and .de: DATA's test sets are sorted by length, so that 1,000 lines for
# validation and 2,000 for testing are drawn from them at random. Training pairs stay in their order.
split_tatoeba() { # DATA OUT
    mkdir -p "$2"
    python - "$1" "$2" <<'PYTHON'
import random
import sys
from pathlib import Path

data, out = map(Path, sys.argv[1:])


def read(name):
    texts = ((data / f"tatoeba-{name}.en-de.{side}").read_text("utf-8") for side in ("en", "de"))
    return [*zip(*(text.split("\n")[:-1] for text in texts), strict=True)]


pairs = [*dict(reversed(read("testsets-union"))).items()]  # one German sentence per English one
random.Random(1).shuffle(pairs)
for part, some in (("train", read("train-minus-testsets")), ("valid", pairs[:1000]), ("test", pairs[1000:3000])):
    for side, texts in zip(("en", "de"), zip(*some), strict=True):
        (out / f"{part}.{side}").write_text("".join(f"{text}\n" for text in texts), "utf-8")
PYTHON
}
