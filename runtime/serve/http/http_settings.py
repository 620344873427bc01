"""Settings of the HTTP server."""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass, fields
from pathlib import Path

from translate_trt.runtime.errors import OptionError

# What browsers send as Origin: no path, and no slash at the end.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")
# Fields that may be 0, which switches them off.
_MAY_BE_ZERO = (
    "port", "cache_mib", "requests_per_minute", "drain_delay", "watch_interval", "keep_alive",
)  # fmt: skip


#: APIs beside LibreTranslate's.
APIS = ("deepl", "google", "openai")


@dataclass(frozen=True)
class HttpSettings:
    """Settings of the server, which do not affect translations.

    Raises:
        OptionError: A value is out of range.
    """

    host: str = "127.0.0.1"  # address to listen on; 0.0.0.0 for all interfaces
    port: int = 5000  # 0: any free port

    # ---- bundles ----
    target: str | None = None  # target of every bundle; None: the first of each
    shortlist: bool = False  # use the targets' shortlist variants
    workers: int | None = None  # batches at once per bundle; None: one per core, 2 on a GPU
    threads: int | None = None  # CPU threads per worker; None: 1
    batch_tokens: int | None = None  # source tokens per batch; None: the translator's default
    cache_mib: int = 0  # memory per bundle for results of earlier sentences
    device: str | None = None  # None: a GPU if the target is made for one
    trust_code: bool = False  # allow a version-compatible engine to run the code it contains
    pivot: str = "en"  # language between two others that no bundle joins; empty: none
    watch_interval: float = 0  # seconds between looks at the manifests; 0: no reload on change

    # ---- limits of a request ----
    max_characters: int = 20_000  # sum over its texts
    max_texts: int = 1_000  # texts of an array
    max_body_bytes: int = 1 << 20
    max_file_bytes: int = 16 << 20  # of the body of a request with a file
    max_file_characters: int = 400_000  # of the text of a file
    max_beam_size: int = 16  # memory grows with the beam size: one request could exhaust it
    timeout: float = 60  # seconds to answer in, and to read or render a file in
    file_timeout: float = 600  # seconds to translate a file in
    body_timeout: float = 10  # seconds to receive the body in, and before it the head

    # ---- limits of all requests ----
    max_requests: int = 1024  # unanswered requests; further ones are refused
    max_cost: int = 4_000_000  # sum of characters times beams over the unanswered requests
    max_connections: int = 4096
    requests_per_minute: int = 0  # of an API key or, without one, an address; 0: no limit

    # ---- access ----
    api_keys: Path | None = None  # file of key hashes and their limits
    require_api_key: bool = False  # refuse requests without a key
    protect_metrics: bool = False  # /metrics needs the key of an administrator
    cors_origins: tuple[str, ...] = ()  # origins whose pages may use the server; "*": all
    trusted_proxies: str | None = None  # addresses or networks whose X-Forwarded-For is believed
    page: bool = True  # serve the web page at /
    apis: tuple[str, ...] = ()  # further APIs, of `APIS`

    # ---- life of the process ----
    keep_alive: float = 30  # seconds that an idle connection stays open
    health_timeout: float = 5  # seconds to translate a word in
    drain_delay: float = 0  # seconds after SIGTERM in which new requests are still answered
    drain_timeout: float = 60  # seconds to answer the requests in flight in

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if type(value) is int and value < least:
                raise OptionError(f"{field.name} is {value}; it must be at least {least}.")
            is_time = type(value) is float or field.type == "float"
            if is_time and not (math.isfinite(value) and value >= 0 and (value or not least)):
                raise OptionError(f"{field.name} is {value}; it must be a positive number.")
        if self.port > 65_535:
            raise OptionError(f"port is {self.port}; it must be at most 65535.")
        if self.require_api_key and self.api_keys is None:
            raise OptionError("require_api_key needs the keys: name their file with api_keys.")
        if self.protect_metrics and self.api_keys is None:
            raise OptionError("protect_metrics needs the keys: name their file with api_keys.")
        if unknown := {*self.apis} - {*APIS}:
            raise OptionError(f"apis has {min(unknown)!r}; there are {', '.join(APIS)}.")
        for origin in self.cors_origins:
            if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
                raise OptionError(
                    f"cors_origins has {origin!r}, which no browser sends; write an origin as "
                    "https://example.com or http://localhost:8000, without a path, or '*'."
                )
        if self.trusted_proxies is not None and self.trusted_proxies != "*":
            for address in self.trusted_proxies.split(","):
                _check_address(address.strip())


def _check_address(address: str) -> None:
    """Refuse what is no address, which would match no proxy.

    Raises:
        OptionError: The text is neither an address nor a network.
    """
    try:
        ipaddress.ip_network(address)
    except ValueError as error:
        raise OptionError(
            f"trusted_proxies has {address!r}: {error}; write addresses or networks, as 10.0.0.1 "
            "or 10.0.0.0/8, separated by commas."
        ) from error
