"""String catalogues of Xcode."""

import json

import pytest
from support.file_damage import read_damaged
from support.file_texts import capitals, rendered, texts

from translate_trt.runtime.errors import InputError


def unit(value: str, state: str = "translated") -> dict[str, dict[str, str]]:
    return {"stringUnit": {"state": state, "value": value}}


PLURAL = {"variations": {"plural": {"one": unit("%lld day"), "other": unit("%lld days")}}}
STRINGS = {
    "": {},
    "Bare": {},
    "Fixed": {"shouldTranslate": False},
    "days": {"comment": "c", "localizations": {"en": PLURAL, "fr": unit("jours")}},
    "done": {"localizations": {"de": unit("Fertig"), "en": unit("Done")}},
}


def catalogue(strings: object = STRINGS) -> bytes:
    value = {"sourceLanguage": "en", "strings": strings, "version": "1.0"}
    return json.dumps(value, indent=2, separators=(",", " : ")).encode()


def test_language_is_added() -> None:
    content = catalogue()
    found = rendered(content, "a.xcstrings", capitals, target_language="deu_Latn")
    plural = {"variations": {"plural": {
        "one": unit("%LLD DAY", "needs_review"), "other": unit("%LLD DAYS", "needs_review"),
    }}}  # fmt: skip
    assert found == catalogue({
        **STRINGS,
        "Bare": {"localizations": {"de": unit("BARE", "needs_review")}},
        "days": {"comment": "c", "localizations": {
            "de": plural, "en": PLURAL, "fr": unit("jours"),
        }},
    })  # fmt: skip
    assert rendered(found, "a.xcstrings", capitals, target_language="de") == found
    windows = content.replace(b"\n", b"\r\n")
    windows = rendered(windows, "a.xcstrings", capitals, target_language="de")
    assert windows == found.replace(b"\n", b"\r\n")


def test_translations_are_overwritten() -> None:
    found = rendered(catalogue(), "a.xcstrings", capitals, target_language="de", overwrite=True)
    done = json.loads(found)["strings"]["done"]["localizations"]
    assert done == {"de": unit("DONE", "needs_review"), "en": unit("Done")}


def test_damaged_files_are_refused() -> None:
    assert read_damaged(catalogue(), "a.xcstrings") > 20
    for content in (b"{}", catalogue()):
        with pytest.raises(InputError):
            texts(content, "a.xcstrings")
