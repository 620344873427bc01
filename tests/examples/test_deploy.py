"""examples/deploy and docs/deploy.md agree with the command line, the server and Kubernetes."""

from __future__ import annotations

import fnmatch
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from support.paths import ROOT

from translate_trt.runtime.cli import main

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
from translate_trt.runtime.serve.http import operations
from translate_trt.runtime.serve.http.http_metrics import HttpMetrics
from translate_trt.runtime.serve.http.http_settings import HttpSettings

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

FILES = ROOT / "examples/deploy"
MANIFESTS = FILES / "kubernetes"
PAGES = [ROOT / "docs/deploy.md", FILES / "README.md"]
# Resources of operators, and values of a chart: not in the kustomization.
OPTIONAL = {"servicemonitor.yaml", "prometheus-adapter.yaml"}
SERVER_USER = 10001


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


DEPLOYMENT = read(MANIFESTS / "deployment.yaml")
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
COMPOSE = read(FILES / "compose.yaml")["services"]["translate"]


def unit(name: str) -> str:
    """A setting of the systemd unit."""
    text = (FILES / "translate-trt.service").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)
    return str(found)


def dockerfile_command(name: str) -> list[str]:
    text = (FILES / name).read_text(encoding="utf-8")
    return list(yaml.safe_load(text.rpartition("\nCMD ")[2]))


def parse(arguments: list[str]) -> dict[str, Any]:
    """Flags of a command line of translate-trt; an unknown one is an error."""
    context = click.Context(main)
    command = main.get_command(context, arguments[0])
    assert command is not None, arguments
    own = click.Context(command, parent=context, info_name=arguments[0])
    options, rest, _ = command.make_parser(own).parse_args(list(arguments[1:]))
    assert not rest, arguments
    return options


SERVERS = {
    "cpu.Dockerfile": dockerfile_command("cpu.Dockerfile"),
    "compose.yaml": COMPOSE["command"],
    "deployment.yaml": CONTAINER["args"],
    "translate-trt.service": shlex.split(unit("ExecStart"))[1:],
}


@pytest.mark.parametrize("name", SERVERS)
def test_servers_are_started_with_flags_that_exist(name: str) -> None:
    options = parse(SERVERS[name])
    assert options["port"] == "5000"
    # In a container the loopback interface is that of the container.
    assert options.get("host") == (None if name.endswith(".service") else "0.0.0.0")
    assert len(options["bundles"]) == 1


def commands_of(page: Path) -> list[list[str]]:
    """Commands of translate-trt in a page."""
    text = page.read_text(encoding="utf-8")
    lines = "".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    lines = lines.replace("\\\n", " ")
    return [
        shlex.split(line)[1:] for line in lines.splitlines() if line.startswith("translate-trt ")
    ]


def test_pages_have_commands_flags_and_files_that_exist() -> None:
    flags = {flag for option in serve_options() for flag in option.opts}
    for page in PAGES:
        for command in commands_of(page):
            parse(command)
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"examples/deploy/[\w./-]+\w", text):
            assert (ROOT / path).exists(), path
        for flag in re.findall(r"`(--[a-z-]+)", text):
            if flag not in ("--build-arg", "--gpus"):  # of docker
                assert flag in flags, flag
    assert len(commands_of(PAGES[0])) == 3


def serve_options() -> list[click.Parameter]:
    command = main.get_command(click.Context(main), "serve")
    assert command is not None
    return command.params


def test_nothing_is_killed_before_it_has_drained() -> None:
    defaults = HttpSettings()
    for name, seconds in (
        ("deployment.yaml", POD["terminationGracePeriodSeconds"]),
        ("compose.yaml", int(COMPOSE["stop_grace_period"].removesuffix("s"))),
        ("translate-trt.service", int(unit("TimeoutStopSec"))),
    ):
        options = parse(SERVERS[name])
        delay = float(options.get("drain_delay", defaults.drain_delay))
        assert seconds > delay + float(options.get("drain_timeout", defaults.drain_timeout)), name


def test_probes_ask_what_the_server_answers() -> None:
    paths = {route.path for route in operations.router.routes}  # type: ignore[attr-defined]
    kinds = {"startupProbe": "/ready", "readinessProbe": "/ready", "livenessProbe": "/health"}
    ports = {one["name"]: one["containerPort"] for one in CONTAINER["ports"]}
    assert ports["http"] == int(parse(CONTAINER["args"])["port"])
    for kind, path in kinds.items():
        asked = CONTAINER[kind]["httpGet"]
        assert asked == {"path": path, "port": "http"}
        assert path in paths
    assert CONTAINER["livenessProbe"]["timeoutSeconds"] > HttpSettings().health_timeout
    check = re.search(r"HEALTHCHECK.*?(/\w+)'", cpu_image(), re.DOTALL)
    assert check is not None
    assert check[1] == "/health"
    (service,) = read(MANIFESTS / "service.yaml")["spec"]["ports"]
    assert service["targetPort"] == "http"


def test_the_metrics_that_are_used_are_those_of_the_server() -> None:
    exported = set(re.findall(r"^# TYPE (\w+)", HttpMetrics(list).render().decode(), re.M))
    scaler = read(MANIFESTS / "horizontalpodautoscaler.yaml")["spec"]
    (metric,) = scaler["metrics"]
    (rule,) = read(MANIFESTS / "prometheus-adapter.yaml")["rules"]["custom"]
    name = metric["pods"]["metric"]["name"]
    assert name == rule["name"]["as"] == rule["seriesQuery"].partition("{")[0]
    assert name in exported
    for page in PAGES:
        named = re.findall(r"`(translate_trt_\w+)`", page.read_text(encoding="utf-8"))
        assert set(named) <= exported
    (endpoint,) = read(MANIFESTS / "servicemonitor.yaml")["spec"]["endpoints"]
    assert endpoint["path"] in {route.path for route in operations.router.routes}  # type: ignore[attr-defined]
    assert scaler["scaleTargetRef"]["name"] == DEPLOYMENT["metadata"]["name"]


def cpu_image() -> str:
    return (FILES / "cpu.Dockerfile").read_text(encoding="utf-8")


def test_servers_have_no_rights_that_they_do_not_need() -> None:
    for image in FILES.glob("*.Dockerfile"):
        assert f"\nUSER {SERVER_USER}:{SERVER_USER}\n" in image.read_text(encoding="utf-8")
    assert POD["securityContext"]["runAsUser"] == SERVER_USER
    assert POD["securityContext"]["runAsNonRoot"]
    assert not POD["automountServiceAccountToken"]
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(one["readOnly"] for one in CONTAINER["volumeMounts"] if one["name"] == "models")
    assert COMPOSE["read_only"]
    assert COMPOSE["cap_drop"] == ["ALL"]
    assert COMPOSE["ports"] == ["127.0.0.1:5000:5000"]


def test_the_manifests_belong_together() -> None:
    listed = set(read(MANIFESTS / "kustomization.yaml")["resources"])
    files = {path.name for path in MANIFESTS.glob("*.yaml")}
    assert listed | OPTIONAL | {"kustomization.yaml"} == files
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    budget = read(MANIFESTS / "poddisruptionbudget.yaml")["spec"]["selector"]["matchLabels"]
    assert labels == DEPLOYMENT["spec"]["selector"]["matchLabels"] == budget
    assert labels == read(MANIFESTS / "service.yaml")["spec"]["selector"]
    account = read(MANIFESTS / "serviceaccount.yaml")["metadata"]["name"]
    assert POD["serviceAccountName"] == account
    cpus = CONTAINER["resources"]["requests"]["cpu"]
    assert parse(CONTAINER["args"])["workers"] == cpus


def test_the_manifests_have_the_schemas_of_kubernetes() -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    for name in read(MANIFESTS / "kustomization.yaml")["resources"]:
        validate.validate(read(MANIFESTS / name), "1.37", strict=True)
    wrong = read(MANIFESTS / "deployment.yaml")
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, "1.37", strict=True)


def test_images_are_built_from_the_sources_alone() -> None:
    ignored = [path.read_text(encoding="utf-8") for path in FILES.glob("*.dockerignore")]
    assert len(ignored) == 2
    assert ignored[0] == ignored[1]
    lines = [line for line in ignored[0].splitlines() if line and not line.startswith("#")]
    kept = [line[1:] for line in lines if line.startswith("!")]
    for pattern in kept:
        assert (ROOT / pattern).exists(), pattern
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    needed = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "export", "runtime", "train"}
    needed |= set(re.findall(r"^include ([\w.]+)$", manifest, re.MULTILINE))
    assert needed <= set(kept)
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    left_out = [one.removeprefix("**/") for one in lines if one.startswith("**/")]
    assert left_out
    assert not [name for name in tracked for one in left_out if fnmatch.fnmatch(name, f"*/{one}")]
