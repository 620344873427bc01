"""Comparison of an imported Marian model with marian-decoder, whose translations are given here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from support.importing import tokenizer_of
from support.marian_files import OPTIONS, random_weights, save

from translate_trt.export.importers.marian.model import import_marian_model
from translate_trt.train.config import END, START
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search

TEXT = ["s1 s2 s3", "s5 s4", "s9 s8 s7 s6"]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Model, source vocabulary, target vocabulary and text."""
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in TEXT), encoding="utf-8")
    return [*map(str, save(tmp_path, OPTIONS, random_weights(OPTIONS))), str(text)]


def load(files: list[str]) -> Transformer:
    return import_marian_model(*map(Path, files[:3])).model


@torch.inference_mode()
def step_scores(model: Transformer, source: list[int], prefix: list[int]) -> torch.Tensor:
    """Log-probabilities of the next token, from the incremental decoder."""
    cache = model.start_cache(torch.tensor([[*source, END]]), torch.tensor([len(source) + 1]))
    for token in [START, *prefix]:
        scores = model.decode_next(torch.tensor([token]), cache).log_softmax(-1)[0]
    return scores


@pytest.mark.parametrize(
    ("ours", "theirs", "place", "tokens"),
    [([7, 8, 9], [7, 9], 2, (8, 9)), ([7], [7, 8], 2, (END, 8)), ([], [5], 1, (END, 5))],
)
def test_tokens_and_scores_of_a_difference(
    ours: list[int], theirs: list[int], place: int, tokens: tuple[int, int], files: list[str]
) -> None:
    from compare_marian import compare

    model, source = load(files), [5, 6, 7]
    found = compare(model, 4, source, ours, theirs)
    assert found is not None
    assert (found.line, found.place, found.tokens) == (4, place, tokens)
    scores = step_scores(model, source, ours[: place - 1])[list(tokens)]
    assert found.log_probabilities == pytest.approx(scores.tolist(), abs=1e-4)
    assert found.margin == pytest.approx(abs(float(scores[0] - scores[1])), abs=1e-4)
    for score, translation in zip(found.scores, (ours, theirs), strict=True):
        path = [*translation, END]
        each = [float(step_scores(model, source, path[:i])[t]) for i, t in enumerate(path)]
        assert score == pytest.approx(sum(each) / len(path), abs=1e-4)


@pytest.mark.nightly
def test_exit_code(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script fails if Marian's translation is improbable, and not if the limit allows it."""
    import compare_marian

    imported = import_marian_model(*map(Path, files[:3]))
    tokenizer = tokenizer_of(imported.tokenizers)
    sources = [tokenizer.encode_source(line) for line in TEXT]
    found = beam_search(imported.model, sources, compare_marian.SEARCH)
    translations = [  # Marian prints the words of such a vocabulary
        [
            piece.removeprefix("▁")
            for piece in tokenizer.target_pieces([t for t in best.tokens if t != END])
        ]
        for [best] in found
    ]
    given = [list(one) for one in translations]
    monkeypatch.setattr(compare_marian, "marian_translations", lambda *_: given)
    model, source_file, target_file, text = files
    command = ["", model, source_file, text, "--target-vocabulary", target_file]
    monkeypatch.setattr(sys, "argv", command)
    assert compare_marian.main() == 0
    assert "| model.npz | onnx-fp32 | 3 | 3 | 0 | 0 | - |" in capsys.readouterr().out

    given[1] = ["t3", "t4", *given[1]]
    assert compare_marian.main() == 1
    shown = capsys.readouterr().out
    assert "| model.npz | onnx-fp32 | 3 | 2 | 0 | 1 |" in shown
    assert "| onnx-fp32 | 2 | 1 | " in shown
    assert "NO near tie" in shown

    monkeypatch.setattr(sys, "argv", [*command, "--limit", "1000"])
    assert compare_marian.main() == 0
