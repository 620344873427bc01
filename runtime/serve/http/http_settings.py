"""Settings of the HTTP server."""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass, fields
from pathlib import Path

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.options import described

# What browsers send as Origin: no path, and no slash at the end.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")

#: APIs beside LibreTranslate's.
APIS = ("deepl", "google", "openai")


@dataclass(frozen=True)
class HttpSettings:
    """Settings of the server, which do not affect translations.

    Raises:
        OptionError: A value is out of range.
    """

    host: str = described(
        "127.0.0.1", "Address to listen on; 0.0.0.0 for all interfaces, :: for all with IPv6."
    )
    port: int = described(5000, "Port; 0 for any free one.", least=0)

    # ---- bundles ----
    target: str | None = None  # target of every bundle; None: the first of each
    shortlist: bool = False  # use the targets' shortlist variants
    workers: int | None = described(
        None, "Batches translated at once per bundle. [one per core, 2 on a GPU]"
    )
    threads: int | None = described(None, "CPU threads per worker. [1]")
    batch_tokens: int | None = None  # source tokens per batch; None: the translator's default
    cache_mib: int = 0  # memory per bundle for results of earlier sentences
    device: str | None = None  # None: a GPU if the target is made for one
    trust_code: bool = False  # allow a version-compatible engine to run the code it contains
    pivot: str = described(
        "en", "Language to translate through where no bundle joins two languages; others are used "
        "if it does not join them. Empty: none.",
    )  # fmt: skip
    watch_interval: float = described(
        0, "Seconds between looks at the manifests: a bundle is reloaded when its own changes. 0: "
        "only on SIGHUP and POST /admin/reload.",
    )  # fmt: skip

    # ---- limits of a request ----
    max_characters: int = described(20_000, "Maximum number of characters of a request.")
    max_texts: int = described(1_000, "Maximum number of texts of a request.")
    max_body_bytes: int = described(1 << 20, "Maximum size of a request's body.")
    max_file_bytes: int = described(16 << 20, "Maximum size of the body of a request with a file.")
    max_file_characters: int = described(
        400_000, "Maximum number of characters of the text of a file."
    )
    # Memory grows with the beam size: one request could exhaust it.
    max_beam_size: int = described(
        16, "Maximum beam size, and number of alternatives; requests for more are refused."
    )
    timeout: float = described(
        60, "Seconds to answer a request in, and to read or render a file in."
    )
    file_timeout: float = described(600, "Seconds to translate a file in.")
    body_timeout: float = described(
        10, "Seconds to receive a request's head in, and then its body."
    )

    # ---- limits of all requests ----
    max_requests: int = described(
        1024, "Maximum number of requests that are translated at the same time; further ones are "
        "refused with 429.",
    )  # fmt: skip
    max_cost: int = described(
        4_000_000, "Maximum sum of characters times beams of all requests that are translated."
    )
    max_connections: int = described(4096, "Maximum number of open connections.")
    requests_per_minute: int = described(
        0, "Requests per minute of an API key or, without one, an address; 0: any number."
    )

    # ---- access ----
    api_keys: Path | None = described(None, "TOML file of hashes of API keys, and their limits.")
    require_api_key: bool = described(False, "Refuse requests without an API key.")
    protect_metrics: bool = described(False, "Let only administrators' keys read /metrics.")
    cors_origins: tuple[str, ...] = described(
        (), "Origin whose pages may use the server, such as https://example.com; may be repeated; "
        "'*' for all.", flag="--cors-origin",
    )  # fmt: skip
    trusted_proxies: str | None = described(
        None, "Addresses or networks, separated by commas, whose X-Forwarded-For and -Proto are "
        "believed; '*' for all.",
    )  # fmt: skip
    page: bool = described(True, "Serve the web page at /. [yes]", flag="--page/--no-page")
    apis: tuple[str, ...] = described(
        (), "Further API to answer, beside LibreTranslate's; may be repeated.",
        flag="--api", choices=APIS,
    )  # fmt: skip

    # ---- life of the process ----
    keep_alive: float = described(30, "Seconds that an idle connection stays open.", least=0)
    health_timeout: float = described(5, "Seconds in which /health must have translated a word.")
    drain_delay: float = described(
        0, "Seconds after SIGTERM in which new requests are still answered, for load balancers "
        "that notice the shutdown late.",
    )  # fmt: skip
    drain_timeout: float = described(
        60, "Seconds to answer the requests in flight in, after --drain-delay."
    )

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = field.metadata.get("least", 0 if field.default == 0 else 1)
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
