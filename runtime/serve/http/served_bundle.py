"""A loaded bundle of the server, its languages, and the requests that use it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from translate_trt.runtime.backends import has_worker_per_core
from translate_trt.runtime.bundle.manifest import Manifest, read_manifest
from translate_trt.runtime.cores import available_cores
from translate_trt.runtime.errors import BundleError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.serve.http.http_settings import HttpSettings
from translate_trt.runtime.service import TranslationService
from translate_trt.runtime.text.languages import match_code, public_code
from translate_trt.runtime.translator import Translator

log = logging.getLogger("translate_trt")

# Languages before the path of a bundle, as in "en-de=bundle/" and "en-zh_Hant=bundle/".
_WITH_LANGUAGES = re.compile(r"(?P<source>[A-Za-z]{2,3}(_\w+)?)-(?P<target>[A-Za-z]{2,3}(_\w+)?)=")
#: Text of the first translation, after which memory is allocated, and of health checks.
WORD = "a"


def split_languages(argument: str) -> tuple[tuple[str, str] | None, str]:
    """Split an argument such as "en-de=bundle/" into its languages, if any, and the rest."""
    found = _WITH_LANGUAGES.match(argument)
    if found is None:
        return None, argument
    return (found["source"], found["target"]), argument[found.end() :]


@dataclass(frozen=True)
class BundleSource:
    """Location of a bundle and its name in the server.

    Attributes:
        path: Directory of the bundle.
        name: Name in answers, metrics and logs.
        languages: Source and target language, which the bundle does not name or is limited to.
    """

    path: Path
    name: str
    languages: tuple[str, str] | None = None


def named_sources(
    given: Iterable[tuple[str, Path, tuple[str, str] | None]],
) -> list[BundleSource]:
    """Return the bundles of names, paths and languages; a number tells those of one name apart."""
    sources: list[BundleSource] = []
    for wanted, path, languages in given:
        name, number = wanted, 1
        while any(name == one.name for one in sources):
            number += 1
            name = f"{wanted}-{number}"
        sources.append(BundleSource(path, name, languages))
    return sources


@dataclass(frozen=True)
class BundleLanguages:
    """Languages of a bundle: public codes with the model's own, None where it takes none."""

    sources: dict[str, str | None]
    targets: dict[str, str | None]

    def options(self, defaults: SearchOptions, source: str, target: str) -> SearchOptions:
        """Return search options for a pair of public codes."""
        return replace(
            defaults, source_language=self.sources[source], target_language=self.targets[target]
        )

    @property
    def first_pair(self) -> tuple[str, str]:
        """Return a pair of different languages, if there is one."""
        source = next(iter(self.sources))
        return source, next((one for one in self.targets if one != source), source)


def bundle_languages(source: BundleSource, manifest: Manifest) -> BundleLanguages:
    """Return the languages that a bundle translates between.

    Raises:
        BundleError: The bundle does not name its languages, and the user does not, either.
        OptionError: The bundle does not have a language that the user named.
    """
    prompt = manifest.prompt
    sides = (
        (prompt.source_languages, manifest.source_language, "source"),
        (prompt.target_languages, manifest.target_language, "target"),
    )
    found: list[dict[str, str | None]] = []
    for number, (tokens, own, side) in enumerate(sides):
        named = None if source.languages is None else source.languages[number]
        codes: dict[str, str | None] = {public_code(code): code for code in sorted(tokens)}
        if codes and named is not None:
            code = named if named in tokens else match_code(public_code(named), tuple(codes))
            if code is None:
                raise OptionError(f"{source.path} has no {side} language {named!r}.")
            codes = {public_code(code): code if code in tokens else codes[code]}
        elif not codes:
            code = named or own
            if code is None:
                raise BundleError(
                    f"{source.path} does not name its {side} language; write the languages before "
                    f"it, as in en-de={source.path}."
                )
            codes = {public_code(code): None}
        found.append(codes)
    return BundleLanguages(*found)


class ServedBundle:
    """A loaded bundle and its service. Belongs to one event loop.

    Attributes:
        source: Location of the bundle.
        languages: Languages that it translates between.
        translator: The loaded target.
        service: Service that all requests share.
        phrases: Translations of single phrases, by search options and phrase.
    """

    def __init__(
        self, source: BundleSource, languages: BundleLanguages, translator: Translator
    ) -> None:
        self.source, self.languages, self.translator = source, languages, translator
        self.service = TranslationService(translator)
        self.phrases: dict[tuple[SearchOptions, str], str] = {}
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    @property
    def name(self) -> str:
        """Name in answers, metrics and logs."""
        return self.source.name

    @contextmanager
    def used(self) -> Iterator[ServedBundle]:
        """Keep the bundle loaded while a request uses it."""
        self._users += 1
        self._unused.clear()
        try:
            yield self
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    async def retire(self) -> None:
        """Wait for the last request that uses the bundle, then free its memory."""
        await self._unused.wait()
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Cancel what is left and free the memory."""
        self.service.close(cancel_futures=True)
        self.translator.close()


def open_translator(source: BundleSource, settings: HttpSettings) -> Translator:
    """Load a bundle and translate a word with it, so that the first request finds it warm.

    A bundle without cross-attention gets a warning: many clients always send HTML.

    Raises:
        TranslateTrtError: The bundle cannot be loaded, or does not translate.
    """
    entry = read_manifest(source.path).target(settings.target, settings.shortlist)
    if not entry.contract.attention:
        log.warning(
            "%s refuses format html and alignments: it has no cross-attention; export it with "
            "--attention", source.name,
        )  # fmt: skip
    threads, workers = settings.threads, settings.workers
    if has_worker_per_core(entry, settings.device):
        threads = threads or 1
        workers = workers or max(1, available_cores() // threads)
    made = partial(Translator, source.path, settings.target, shortlist=settings.shortlist)
    translator = made(
        threads=threads, workers=workers, batch_tokens=settings.batch_tokens,
        cache_mib=settings.cache_mib, device=settings.device, trust_code=settings.trust_code,
    )  # fmt: skip
    try:
        languages = bundle_languages(source, translator.manifest)
        defaults = translator.default_options
        translator.translate(WORD, languages.options(defaults, *languages.first_pair))
    except BaseException:
        translator.close()
        raise
    return translator
