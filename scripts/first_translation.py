"""Time from `pip install` of a wheel to the server's page translating, in a new environment.

python scripts/first_translation.py --wheel WHEEL --bundle BUNDLE --text TEXT [--output FILE]
python scripts/first_translation.py --wheel WHEEL --get NAME --text TEXT [--output FILE]

With --get, `translate-trt get` downloads the model (HF_ENDPOINT names another hub); a repository
with a bundle needs no torch. Packages are downloaded without pip's cache. The page is opened in a
headless Chromium where this environment has playwright and a Chromium (named by CHROMIUM, or
found on the PATH); otherwise the requests of the page are sent. The result, printed as JSON, has
the seconds of each step.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chromium import find_chromium

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "cpu,serve,detect,hub"


class Clock:
    """Seconds of the steps so far."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a step."""
        begun = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - begun, 1)


def open_page(url: str, text: str) -> tuple[str, str]:
    """Return the translation that the page shows, and what opened it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium's own sandbox does not run as root.
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(url)
        page.wait_for_selector("#target-language option", state="attached")
        page.fill("#source", text)
        page.wait_for_selector("#target[aria-busy=false] .sentence:not(.stale)")
        found = page.locator("#target").inner_text()
        browser.close()
    return found, "Chromium"


def ask_like_the_page(url: str, text: str) -> tuple[str, str]:
    """Return the translation that the page would show, and what asked for it."""
    for path in ("", "main.js", "frontend/settings"):
        urllib.request.urlopen(url + path).read()
    (first, *_) = json.load(urllib.request.urlopen(url + "languages"))
    query = {"q": text, "source": first["code"], "target": first["targets"][0]}
    request = urllib.request.Request(
        url + "translate/stream", json.dumps(query).encode(), {"Content-Type": "application/json"}
    )
    found = ""
    for event in urllib.request.urlopen(request).read().decode().split("\n\n"):
        data = json.loads(event.partition("data: ")[2] or "{}")
        found += data.get("before", "") + data.get("text", "") + data.get("after", "")
    return found, "requests"


def has_browser() -> bool:
    """Return whether the page can be opened."""
    try:
        import playwright.sync_api  # noqa: F401
    except ModuleNotFoundError:
        return False
    return find_chromium() is not None


def measure(wheel: Path, bundle: str | None, name: str | None, text: str) -> dict[str, object]:
    """Return the result."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        environment, programs = Path(folder, "environment"), Path(folder, "environment/bin")
        clean = {key: value for key, value in os.environ.items()
                 if key not in ("PYTHONPATH", "VIRTUAL_ENV")} | {
            "XDG_CACHE_HOME": folder, "XDG_DATA_HOME": folder, "HF_HOME": f"{folder}/hub"
        }  # fmt: skip
        with clock.step("environment"):
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        with clock.step("pip install"):
            subprocess.run(
                [programs / "pip", "install", "--quiet", "--no-cache-dir", "--constraint",
                 ROOT / "constraints.txt", f"{wheel}[{EXTRAS}]"],
                check=True, env=clean, cwd=folder,
            )  # fmt: skip
        if name is not None:
            with clock.step("get"):
                subprocess.run([programs / "translate-trt", "get", name], check=True, env=clean)
        served = str(Path(bundle).resolve()) if bundle is not None else name
        command = [programs / "translate-trt", "serve", "--port", "0", "--log-format", "text",
                   str(served)]  # fmt: skip
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=clean, cwd=folder
        ) as server:
            try:
                with clock.step("serve"):
                    assert server.stdout is not None
                    url = server.stdout.readline().removeprefix("listening on ").strip()
                    if not url:
                        raise SystemExit("The server has not started; see its messages above.")
                    url = url.rstrip("/") + "/"
                with clock.step("page"):
                    found, by = (open_page if has_browser() else ask_like_the_page)(url, text)
            finally:
                server.terminate()
        size = sum(file.stat().st_size for file in environment.rglob("*") if file.is_file())
    return {
        "seconds": round(sum(clock.seconds.values()), 1), "steps": clock.seconds, "page by": by,
        "text": text, "translation": found, "wheel": wheel.name, "extras": EXTRAS,
        "environment MB": round(size / 1e6), "cores": os.cpu_count(), "machine": processor(),
        "python": platform.python_version(),
    }  # fmt: skip


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheel", type=Path, required=True, help="wheel to install")
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--bundle", help="directory of a bundle")
    model.add_argument("--get", metavar="NAME", help="model to download")
    parser.add_argument("--text", required=True, help="text to translate")
    parser.add_argument("--output", type=Path, help="file to write the result to")
    given = parser.parse_args()
    result = measure(given.wheel.resolve(), given.bundle, given.get, given.text)
    text = json.dumps(result, ensure_ascii=False, indent=1)
    print(text)
    if given.output is not None:
        given.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
