"""String catalogues of Xcode (.xcstrings): the target language is added beside the others.

Translations have the state "needs_review". Strings that have one in the target language keep it,
unless `overwrite`; an untranslated source is its key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.json_resources import JsonNode, JsonSource
from translate_trt.runtime.files.message_text import Message, read_message, render_each
from translate_trt.runtime.files.resources import Values
from translate_trt.runtime.files.segments import FileText, ReadOptions
from translate_trt.runtime.text.languages import public_code


def read(content: bytes, options: ReadOptions) -> FileText:
    """Read a catalogue: the strings without a translation, or all to overwrite them."""
    source = JsonSource(content, options)
    language, strings = source.root.get("sourceLanguage"), source.root.get("strings")
    if language is None or language.text is None or strings is None:
        raise InputError("is no catalogue of Xcode: it lacks sourceLanguage or strings.")
    if options.target_language is None:
        raise InputError("needs the target language, for which it gets translations.")
    target, values = public_code(options.target_language), Values(options)
    for key, entry in strings.children:
        flag = entry.get("shouldTranslate")
        is_fixed = flag is not None and source.text[flag.start : flag.end] == "false"
        old = entry.get("localizations", target)
        if is_fixed or not entry.is_object or not values.selects(key):
            continue
        if old is None or options.overwrite or not any(node.text for node in _values(old)):
            original = entry.get("localizations", language.text)
            message = _message(source, key, original)
            if message.segments:
                values.add_message(message, _writer(source, entry, old, target))
    return values.file_text(source.render)


def _values(localization: JsonNode) -> list[JsonNode]:
    return [node for path, node in localization.strings()
            if path.endswith("stringUnit.value")]  # fmt: skip


def _message(source: JsonSource, key: str, original: JsonNode | None) -> Message:
    """Return the message whose translation is the JSON of a localization."""
    if original is None:
        whole = read_message(key, key)
        return Message(
            whole.segments,
            lambda translations: json.dumps(
                {"stringUnit": {"state": "needs_review", "value": whole.render(translations)}},
                ensure_ascii=False, indent=2, separators=(",", " : "),
            ),
        )  # fmt: skip
    nodes = _values(original)
    messages = [read_message(node.text or "", key) for node in nodes]
    states = [node for path, node in original.strings() if path.endswith("stringUnit.state")]

    def render(translations: Sequence[str]) -> str:
        edits = [(node, "needs_review") for node in states]
        edits += zip(nodes, render_each(messages, translations), strict=True)
        written, at = "", original.start
        for node, text in sorted(edits, key=lambda edit: edit[0].start):
            written += source.text[at : node.start] + source.written(text)
            at = node.end
        return written + source.text[at : original.end]

    return Message([one for message in messages for one in message.segments], render)


def _writer(
    source: JsonSource, entry: JsonNode, old: JsonNode | None, target: str
) -> Callable[[str], None]:
    def put(localization: str) -> None:
        localizations = entry.get("localizations")
        localization = localization.replace("\r\n", "\n")
        if old is not None:
            source.replace(old.start, old.end, localization.replace("\n", source.line_end))
        elif localizations is not None:
            _insert(source, localizations, target, localization)
        else:
            inner = "\n".join(
                line if not number else f"  {line}"
                for number, line in enumerate(localization.split("\n"))
            )
            _insert(source, entry, "localizations", f'{{\n  "{target}" : {inner}\n}}')

    return put


def _insert(source: JsonSource, node: JsonNode, name: str, value: str) -> None:
    """Insert a member into an object, in the order of the names, as Xcode writes them."""
    line = source.text[source.text.rfind("\n", 0, node.start) + 1 : node.start]
    margin = line[: len(line) - len(line.lstrip())]
    inner = f"\n{margin}  "
    if "\n" in value and not value.split("\n")[-1].startswith(margin + "  "):
        value = value.replace("\n", inner)
    member = f'{inner}"{name}" : {value}'.replace("\n", source.line_end)
    before = [child for key, child in node.children if key < name]
    if before:
        source.replace(before[-1].end, before[-1].end, "," + member)
    elif node.children:
        source.replace(node.start + 1, node.start + 1, member + ",")
    else:
        source.replace(node.start + 1, node.end - 1, f"{member}{source.line_end}{margin}")
