"""Recorded activation scales of Bergamot's models: kept on request, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.marian_files import OPTIONS, OTHER, SSRU, random_weights, save, save_binary

from translate_trt.export.importers.marian.model import import_marian_model
from translate_trt.export.importers.marian.recorded_scales import read_magnitudes
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import InputError
from translate_trt.train.activation_scales import matmul_weights
from translate_trt.train.checkpoint import open_checkpoint

TIED = SSRU | {"dec-depth": 3, "transformer-tied-layers": [1, 1, 3]}


def write(
    directory: Path, name: str = "intgemm8", bergamot: bool = True
) -> tuple[Path, list[Path]]:
    """Write a model and its vocabularies; return their paths."""
    weights, path = random_weights(OPTIONS), directory / "model.bin"
    save_binary(path, OPTIONS, weights, name, bergamot)
    _, *vocabularies = save(directory, OPTIONS, weights)
    return path, vocabularies


@pytest.mark.parametrize(
    "options", [OPTIONS, OPTIONS | OTHER, OPTIONS | TIED],
    ids=["attention", "untied output", "tied layers of an SSRU"],
)  # fmt: skip
def test_each_matmul_has_the_scale_of_its_matrix(options: dict[str, Any], tmp_path: Path) -> None:
    """Each matrix has another scale, which is found by the contents of the matrix."""
    weights, path = random_weights(options), tmp_path / "model.bin"
    names = [name for name in weights if weights[name].shape[0] > 1 and "_ln_" not in name]
    multipliers = {name: 2.0 + index / 3 for index, name in enumerate(names)}
    stands_for = save_binary(path, options, weights, "intgemm8", True, multipliers)
    _, *vocabularies = save(tmp_path, options, weights)
    found = import_marian_model(path, *vocabularies, recorded_scales=True)
    magnitudes, ours = found.activation_scales, matmul_weights(found.model)
    assert magnitudes is not None
    assert magnitudes.keys() == ours.keys()
    by_content = {
        stands_for[name].T.tobytes(): multiplier for name, multiplier in multipliers.items()
    }
    for name in ours.keys() - {"projection"}:
        content = ours[name].detach().numpy().tobytes()
        assert magnitudes[name] == 127 / np.float64(np.float32(by_content[content])), name
    assert magnitudes["projection"] == 127 / 19.5  # none_QuantMultA


def test_an_output_matrix_that_no_shortlist_selected_from(tmp_path: Path) -> None:
    names = {"a": ["a_W"], "projection": ["none", "decoder_ff_logit_out_W", "Wemb"]}
    arrays = {"a_W_QuantMultA": np.float32([[2.0]]), "Wemb_QuantMultA": np.float32([8.0])}
    assert read_magnitudes(tmp_path, arrays, names) == {"a": 63.5, "projection": 15.875}
    arrays["decoder_ff_logit_out_W_QuantMultA"] = np.float32([[4.0]])
    assert read_magnitudes(tmp_path, arrays, names)["projection"] == 31.75


@pytest.mark.parametrize(
    "values", [[0.0], [-25.5], [np.nan], [np.inf], [1e-39], [1.0, 1.0]], ids=str
)
def test_scales_that_are_no_numbers(values: list[float], tmp_path: Path) -> None:
    arrays = {"a_W_QuantMultA": np.array(values, np.float32)}
    with pytest.raises(InputError, match="a_W_QuantMultA is "):
        read_magnitudes(tmp_path, arrays, {"a": ["a_W"]})


@pytest.mark.parametrize(
    ("name", "bergamot", "message"),
    [
        ("float32", False, "intgemm8"),
        ("intgemm16", True, r"intgemm16.*intgemm8"),
        ("intgemm8", False, "encoder_l1_self_Wq_QuantMultA"),
    ],
)
def test_binaries_without_scales(name: str, bergamot: bool, message: str, tmp_path: Path) -> None:
    path, vocabularies = write(tmp_path, name, bergamot)
    with pytest.raises(InputError, match=message) as raised:
        import_marian_model(path, *vocabularies, recorded_scales=True)
    assert "--recorded-activation-scales" in str(raised.value)


def test_the_command_stores_scales_in_the_checkpoint(tmp_path: Path) -> None:
    path, (source, target) = write(tmp_path)
    checkpoint = tmp_path / "checkpoint"
    arguments = [
        "import", "marian", str(path), "--vocab", str(source), "--target-vocab", str(target),
        "--output", str(checkpoint),
    ]  # fmt: skip
    done = CliRunner().invoke(main, [*arguments, "--recorded-activation-scales"])
    assert done.exit_code == 0, done.output
    assert "with its activation scales" in done.output
    opened = open_checkpoint(checkpoint)
    found = opened.load_activation_scales(opened.load_model())
    assert found is not None
    assert set(found.values()) == {127 / 25.5, 127 / 19.5}
    # Without the option, a replaced checkpoint keeps nothing of the former one.
    done = CliRunner().invoke(main, [*arguments, "--force"])
    assert done.exit_code == 0, done.output
    assert opened.load_activation_scales(opened.load_model()) is None


def test_archives_have_no_scales(tmp_path: Path) -> None:
    npz, *vocabularies = save(tmp_path, OPTIONS, random_weights(OPTIONS))
    with pytest.raises(InputError, match="is no int8 model"):
        import_marian_model(npz, *vocabularies, recorded_scales=True)
