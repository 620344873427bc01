"""examples/deploy and docs/deploy.md agree with the command line, the server and Kubernetes."""

from __future__ import annotations

import re
import shlex
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
