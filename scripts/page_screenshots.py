"""Screenshots of the server's web page: light, dark, and on a phone.

python scripts/page_screenshots.py --bundle BUNDLE --text TEXT --word WORD --out DIR

Starts a server with the bundle, and a headless Chromium (named by CHROMIUM, or found on the PATH).
The menu of alternatives of WORD, a word of the translation, is open in the dark picture and on the
phone; in the light one the pointer is on it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from chromium import find_chromium
from playwright.sync_api import sync_playwright

PICTURES: dict[str, dict[str, Any]] = {
    "page-light": {"color_scheme": "light", "viewport": {"width": 1120, "height": 480}},
    "page-dark": {"color_scheme": "dark", "viewport": {"width": 1120, "height": 540}},
    "page-phone": {
        "color_scheme": "light", "viewport": {"width": 390, "height": 780}, "has_touch": True,
        "is_mobile": True, "device_scale_factor": 2,
    },
}  # fmt: skip


def chromium() -> str:
    """Return the path of Chromium."""
    found = find_chromium()
    if found is None:
        raise SystemExit("There is no Chromium: install it, or name its program with CHROMIUM.")
    return found


def draw(browser: Any, url: str, text: str, word: str, path: Path, options: dict[str, Any]) -> None:
    """Make a picture of the translated text."""
    context = browser.new_context(**options, locale="en")
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("#target-language option", state="attached")
    page.fill("#source", text)
    page.wait_for_selector("#target[aria-busy=false] .sentence:not(.stale)")
    chosen = page.locator("#target .word", has_text=word).first
    chosen.hover()
    if path.stem != "page-light":
        chosen.click()
        page.wait_for_selector(".choice")
    page.screenshot(path=path)
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bundle", required=True, help="bundle exported with --attention")
    parser.add_argument("--text", required=True, help="text to translate")
    parser.add_argument("--word", required=True, help="word of the translation")
    parser.add_argument("--out", type=Path, required=True, help="directory of the pictures")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "translate_trt", "serve", "--port", "0", given.bundle]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().removeprefix("listening on ").strip()
            if not url:
                raise SystemExit("The server has not started; see its messages above.")
            with sync_playwright() as playwright:
                # Chromium's own sandbox does not run as root.
                browser = playwright.chromium.launch(
                    executable_path=chromium(), args=["--no-sandbox"]
                )
                for name, options in PICTURES.items():
                    path = given.out / f"{name}.png"
                    draw(browser, url, given.text, given.word, path, options)
                    print(path)
                browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
