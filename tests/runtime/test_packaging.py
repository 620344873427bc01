"""Contents of an installation, and directions of imports."""

from __future__ import annotations

import ast
import graphlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.paths import ROOT

import translate_trt.runtime as runtime
from translate_trt.runtime import errors
from translate_trt.runtime.cli import main
from translate_trt.train.checkpoint import Checkpoint

pytestmark = pytest.mark.slow

FOLDERS = ("train", "export", "runtime")


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(path: Path, everywhere: bool) -> set[str]:
    """Return the modules that a file imports, and names, at module level or anywhere."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                found.add(child.module or "")
                found.update(f"{child.module}.{alias.name}" for alias in child.names)
            later = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            types_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            if everywhere or not (later or types_only):
                visit(child)

    visit(tree)
    return found


def breaches(folder: str, forbidden: tuple[str, ...], everywhere: bool) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in python_files(folder)
        for module in imports(path, everywhere)
        if module.startswith(forbidden)
    ]


def test_the_runtime_knows_neither_torch_nor_how_bundles_are_made() -> None:
    forbidden = ("torch", "onnx.", "onnx_ir", "onnxscript", "safetensors", "sacrebleu")
    forbidden += ("translate_trt.train", "translate_trt.export")
    found = breaches("runtime", forbidden, everywhere=True)
    # The backend of torch targets and its kernels, which nothing else imports: `backends` loads it
    # by name.
    backend = "runtime/backends/pytorch/", "runtime/gpu/"
    assert [one for one in found if not one.startswith(backend)] == []
    assert {one.partition(" imports ")[2].partition(".")[0] for one in found} <= {"torch", "onnx"}
    packages = "translate_trt.runtime.backends.pytorch", "translate_trt.runtime.gpu"
    own = breaches("runtime", packages, everywhere=True)
    assert [one for one in own if not one.startswith(backend)] == []


def test_every_file_name_of_a_package_is_its_own() -> None:
    for folder in FOLDERS:
        names = [path.stem for path in python_files(folder) if not path.stem.startswith("__")]
        assert len(names) == len(set(names)), sorted({n for n in names if names.count(n) > 1})


def test_training_knows_nothing_of_export_or_of_backends() -> None:
    forbidden = ("translate_trt.export", "translate_trt.runtime.backends", "onnx")
    assert breaches("train", forbidden, everywhere=True) == []


def test_modules_are_not_imported_in_circles() -> None:
    names = {
        ".".join(("translate_trt", *path.relative_to(ROOT).with_suffix("").parts)): path
        for path in python_files(*FOLDERS)
    }
    graph = {name: imports(path, everywhere=True) & set(names) for name, path in names.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises an error that has the circle


def test_headers_of_the_library_include_lower_folders_alone() -> None:
    order = (
        "base", "text", "bundle", "backends", "executor", "engines", "cuda", "tensorrt", "core",
        "api",
    )  # fmt: skip
    source = ROOT / "runtime/cpp/src"
    assert {path.name for path in source.iterdir()} == set(order)
    for path in source.glob("*/*"):
        for folder in re.findall(r'^#include "(\w+)/', path.read_text(), re.MULTILINE):
            if folder in order:
                assert order.index(folder) <= order.index(path.parent.name), path


def test_nothing_is_loaded_by_pickle_or_run_by_a_shell() -> None:
    for path in python_files(*FOLDERS, "scripts", "benchmarks"):
        assert not imports(path, everywhere=True) & {"pickle", "marshal", "shelve", "dill"}
        text = path.read_text(encoding="utf-8")
        # Which runs nothing (tests/export/importers/test_marian.py tries).
        text = re.sub(r"torch\.load\([^()]*, weights_only=True\)", "", text)
        text = text.replace("allow_pickle=False", "")
        if path.name == "render.py":  # evaluates tables.toml, which is code of this repository
            text = text.replace("return eval(expression, ", "")
        for word in ("torch.load(", "shell=True", "os.system(", "eval(", "exec(", "allow_pickle"):
            assert word not in text.replace(".eval(", ""), f"{path}: {word}"


def test_the_public_names() -> None:
    assert runtime.__all__ == [
        "BackendError", "BundleError", "CapacityError", "CheckpointError", "DownloadError",
        "Glossary", "Hypothesis", "InputError", "OptionError", "OutputError", "Parse", "Parser",
        "SearchOptions", "Term", "TextHypothesis", "TranslateTrtError", "Translation",
        "TranslationService", "Translator", "Word", "__version__", "installed_bundle",
    ]  # fmt: skip
    for name in set(runtime.__all__) - {"__version__"}:
        assert getattr(runtime, name).__name__ == name
    assert runtime.__version__ == importlib.metadata.version("translate-trt")
    of_errors = {name for name, one in vars(errors).items() if isinstance(one, type)}
    assert of_errors <= set(runtime.__all__)
    with pytest.raises(AttributeError, match="'translate'"):
        runtime.translate  # noqa: B018


WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "onnx", "onnx_ir", "safetensors", "sacrebleu"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
from translate_trt.runtime import Translator
print(Translator(sys.argv[1], threads=1).translate(["the cat runs."])[0].text)
from translate_trt.runtime.cli import main
main(sys.argv[2:])
"""


def run_without_torch(bundle: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(bundle), *arguments],
        input="the cat runs.\n", capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_it_runs_where_torch_cannot_be_imported(compiled_bundle: Path, tmp_path: Path) -> None:
    done = run_without_torch(compiled_bundle, "translate", "--bundle", str(compiled_bundle))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert lines[0] == lines[1] != ""
    refused = run_without_torch(
        compiled_bundle, "export", str(tmp_path / "run"), "--output", str(tmp_path / "b")
    )
    assert refused.returncode == 1
    assert "'translate-trt[export]'" in refused.stderr


@pytest.mark.parametrize("command", ["translate", "verify"])
def test_without_onnx_runtime_the_extras_are_named(
    compiled_bundle: Path,
    checkpoint: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    verify = "translate_trt.export.verify"
    for name in (
        "onnxruntime", "translate_trt.runtime.backends.onnxruntime",
        f"{verify}.layers", f"{verify}.cpu_emulation", f"{verify}.parity",
    ):  # fmt: skip
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # makes its import fail
    monkeypatch.setenv("TRANSLATE_TRT_LIBRARY", "none")  # the library runs these graphs without it
    lines = tmp_path / "lines"
    lines.write_text("the cat runs.\n")
    arguments = {
        "translate": ["--bundle", str(compiled_bundle), str(lines)],
        "verify": [str(compiled_bundle), "--checkpoint", str(checkpoint.path), "--source",
                   str(lines), "--reference", str(lines)],
    }  # fmt: skip
    done = CliRunner().invoke(main, [command, *arguments[command]])
    assert done.exit_code == 1
    assert "pip install 'translate-trt[cpu]'" in done.stderr
    assert "pip install 'translate-trt[gpu]'" in done.stderr


def test_the_packages_of_onnx_runtime_are_never_installed_together() -> None:
    metadata = importlib.metadata.requires("translate-trt") or []
    plain = [line for line in metadata if "extra ==" not in line]
    assert not [line for line in plain if "onnxruntime" in line]
    cpu, gpu = (
        [line for line in metadata if re.search(f"extra == .{extra}.", line)]
        for extra in ("cpu", "gpu")
    )
    assert [line.startswith("onnxruntime>=") for line in cpu] == [True]
    assert [line.startswith("onnxruntime-gpu[cuda,cudnn]>=") for line in gpu] == [True]


def copy_tree(tree: Path) -> Path:
    """Copy the files that git tracks, without build folders."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in names:
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)
    return tree


def build_wheel(tree: Path, out: Path) -> Path:
    """Include the libraries of the tree and no others."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, tree],
        env={**os.environ, "TRANSLATE_TRT_LIBRARY": "none"}, check=True,
    )  # fmt: skip
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(copy_tree(tmp_path_factory.mktemp("tree")), tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {f"translate_trt/{path.relative_to(ROOT)}" for path in python_files(*FOLDERS)}
    expected -= {"translate_trt/runtime/namespace/__main__.py"}
    expected |= {"translate_trt/__main__.py"}
    expected |= {f"translate_trt/{folder}/py.typed" for folder in FOLDERS}
    for folder in ("export/fused_ops/bodies", "export/hub/samples", "runtime/serve/http/page"):
        data = (path for path in (ROOT / folder).iterdir() if path.is_file())
        expected |= {f"translate_trt/{path.relative_to(ROOT)}" for path in data}
    assert names == expected
    assert wheel.name.endswith("-py3-none-any.whl")


# In place of scripts/build_library.sh, which takes minutes.
BUILD_SCRIPT = """
[ "$TRANSLATE_TRT_VENV" = none ] || exit 4
[ {code} != 0 ] || echo "a library" >runtime/native/libtranslate_trt.so
echo "it was called" >&2
exit {code}
"""
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"


def build_with_scripts(tree: Path, code: int, out: Path) -> subprocess.CompletedProcess[str]:
    """Build a wheel of a tree whose build scripts end with that code."""
    for name in ("build_library.sh", "build_kernels.sh"):
        (tree / "scripts" / name).write_text(BUILD_SCRIPT.format(code=code))
    return subprocess.run(
        [sys.executable, "-c", BUILD, out], cwd=tree, capture_output=True, text=True, check=False
    )


@pytest.mark.nightly
@pytest.mark.parametrize(("code", "platform"), [(0, r"(?!any)\w+"), (3, "any")])
def test_a_wheel_brings_what_can_be_built(tmp_path: Path, code: int, platform: str) -> None:
    done = build_with_scripts(copy_tree(tmp_path / "tree"), code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("it was called") == (1 if code == 0 else 2)
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(rf"translate_trt-[\d.]+-py3-none-{platform}\.whl", wheel.name)
    files = zipfile.ZipFile(wheel)
    names = files.namelist()
    assert ("translate_trt/runtime/native/libtranslate_trt.so" in names) == (code == 0)
    (about,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
    assert (b"Root-Is-Purelib: false" in files.read(about)) == (code == 0)
    assert not [name for name in names if "/cpp/" in name or ".data/" in name]


@pytest.mark.nightly
def test_no_wheel_without_a_library_whose_build_fails(tmp_path: Path) -> None:
    done = build_with_scripts(copy_tree(tmp_path / "tree"), 1, tmp_path)
    assert done.returncode == 1
    assert "TRANSLATE_TRT_LIBRARY=none" in done.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_the_source_distribution_holds_what_builds_the_libraries(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree")
    (tree / "runtime/kernels/libtranslate_trt_kernels.so").write_text("a library")
    program = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, tmp_path], cwd=tree, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "runtime/cpp").rglob("*.*")}
    assert names >= sources | {"scripts/build_library.sh", "scripts/environment.sh", "setup.py"}
    assert not [name for name in names if name.endswith(".so")]


@pytest.mark.nightly
def test_an_installation_without_torch_translates(
    wheel: Path, compiled_bundle: Path, tmp_path: Path
) -> None:
    place = tmp_path / "environment"
    venv.create(place, with_pip=True)
    binaries = place / "bin"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run(
        [binaries / "python", "-m", "pip", "install", "--quiet", "--constraint",
         ROOT / "constraints.txt", f"{wheel}[cpu]"],
        check=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    no_torch = subprocess.run(
        [binaries / "python", "-c", "import torch"], capture_output=True, check=False, cwd=tmp_path
    )
    assert no_torch.returncode != 0
    done = subprocess.run(
        [binaries / "translate-trt", "translate", "--bundle", compiled_bundle],
        input="the cat runs.\n\nHaus\n", capture_output=True, text=True, check=True, cwd=tmp_path,
        env=environment,
    )  # fmt: skip
    for module in ("translate_trt", "translate_trt.runtime"):
        done_again = subprocess.run(
            [binaries / "python", "-m", module, "--version"],
            capture_output=True, text=True, check=True, cwd=tmp_path, env=environment,
        )  # fmt: skip
        assert done_again.stdout.startswith("translate-trt, version ")
    lines = done.stdout.split("\n")
    assert len(lines) == 4
    assert lines[0]
    assert lines[1] == ""
    refused = subprocess.run(
        [binaries / "translate-trt", "verify", compiled_bundle, "--checkpoint", "x",
         "--source", "x", "--reference", "x"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert refused.returncode == 1
    assert "translate-trt[export]" in refused.stderr
