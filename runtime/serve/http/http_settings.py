"""Settings of the HTTP server."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.settings import check_settings, setting

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

    host: str = setting(
        "127.0.0.1", "Address to listen on; 0.0.0.0 for all interfaces, :: for all with IPv6."
    )
    port: int = setting(5000, "Port; 0 for any free one.", least=0, most=65_535)

    # ---- bundles ----
    target: str | None = None  # target of every bundle; None: the first of each
    shortlist: bool = False  # use the targets' shortlist variants
    workers: int | None = setting(
        None, "Batches translated at once per bundle. [one per core, 2 on a GPU]", least=1
    )
    threads: int | None = setting(None, "CPU threads per worker. [1]", least=1)
    batch_tokens: int | None = None  # source tokens per batch; None: the translator's default
    cache_mib: int = 0  # memory per bundle for results of earlier sentences
    device: str | None = None  # None: a GPU if the target is made for one
    trust_code: bool = False  # allow a version-compatible engine to run the code it contains
    pivot: str = setting(
        "en", "Language to translate through where no bundle joins two languages; others are used "
        "if it does not join them. Empty: none.",
    )  # fmt: skip
    watch_interval: float = setting(
        0, "Seconds between looks at the manifests: a bundle is reloaded when its own changes. 0: "
        "only on SIGHUP and POST /admin/reload.", least=0,
    )  # fmt: skip

    # ---- limits of a request ----
    max_characters: int = setting(20_000, "Maximum number of characters of a request.", least=1)
    max_texts: int = setting(1_000, "Maximum number of texts of a request.", least=1)
    max_body_bytes: int = setting(1 << 20, "Maximum size of a request's body.", least=1)
    max_file_bytes: int = setting(
        16 << 20, "Maximum size of the body of a request with a file.", least=1
    )
    max_file_characters: int = setting(
        400_000, "Maximum number of characters of the text of a file.", least=1
    )
    # Memory grows with the beam size: one request could exhaust it.
    max_beam_size: int = setting(
        16, "Maximum beam size, and number of alternatives; requests for more are refused.", least=1
    )
    timeout: float = setting(
        60, "Seconds to answer a request in, and to read or render a file in.", above=0
    )
    file_timeout: float = setting(600, "Seconds to translate a file in.", above=0)
    body_timeout: float = setting(
        10, "Seconds to receive a request's head in, and then its body.", above=0
    )

    # ---- limits of all requests ----
    max_requests: int = setting(
        1024, "Maximum number of requests that are translated at the same time; further ones are "
        "refused with 429.", least=1,
    )  # fmt: skip
    max_cost: int = setting(
        4_000_000, "Maximum sum of characters times beams of all requests that are translated.",
        least=1,
    )  # fmt: skip
    max_connections: int = setting(4096, "Maximum number of open connections.", least=1)
    requests_per_minute: int = setting(
        0, "Requests per minute of an API key or, without one, an address; 0: any number.", least=0
    )

    # ---- access ----
    api_keys: Path | None = setting(None, "TOML file of hashes of API keys, and their limits.")
    require_api_key: bool = setting(False, "Refuse requests without an API key.")
    protect_metrics: bool = setting(False, "Let only administrators' keys read /metrics.")
    cors_origins: tuple[str, ...] = setting(
        (), "Origin whose pages may use the server, such as https://example.com; may be repeated; "
        "'*' for all.", flag="--cors-origin",
    )  # fmt: skip
    trusted_proxies: str | None = setting(
        None, "Addresses or networks, separated by commas, whose X-Forwarded-For and -Proto are "
        "believed; '*' for all.",
    )  # fmt: skip
    page: bool = setting(True, "Serve the web page at /. [yes]", flag="--page/--no-page")
    apis: tuple[str, ...] = setting(
        (), "Further API to answer, beside LibreTranslate's; may be repeated.",
        flag="--api", choices=APIS,
    )  # fmt: skip

    # ---- life of the process ----
    keep_alive: float = setting(30, "Seconds that an idle connection stays open.", least=0)
    health_timeout: float = setting(
        5, "Seconds in which /health must have translated a word.", above=0
    )
    drain_delay: float = setting(
        0, "Seconds after SIGTERM in which new requests are still answered, for load balancers "
        "that notice the shutdown late.", least=0,
    )  # fmt: skip
    drain_timeout: float = setting(
        60, "Seconds to answer the requests in flight in, after --drain-delay.", above=0
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.require_api_key and self.api_keys is None:
            raise OptionError("require_api_key needs the keys: name their file with api_keys.")
        if self.protect_metrics and self.api_keys is None:
            raise OptionError("protect_metrics needs the keys: name their file with api_keys.")
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
