"""`translate-trt serve`: an HTTP server with LibreTranslate's API."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

from translate_trt.runtime.cli.bundle_flags import (
    BUNDLE,
    batch_tokens_flag,
    cache_flag,
    device_flag,
    target_flags,
    trust_code_flag,
)
from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.names import field_option
from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.serve.http.http_settings import APIS, HttpSettings

# Name, directory, and languages that the command line gives.
NamedBundle = tuple[str, Path, tuple[str, str] | None]


def _parse_bundles(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> list[NamedBundle]:
    """Find the bundles, and call each by its name as an installed model or by its directory's."""
    from translate_trt.runtime.serve.http.served_bundle import split_languages

    found: list[NamedBundle] = []
    for one in given:
        languages, bundle = split_languages(one)
        path = BUNDLE.convert(bundle, param, ctx)
        found.append(
            (bundle if not Path(bundle).exists() else path.resolve().name, path, languages)
        )
    return found


_setting = functools.partial(field_option, HttpSettings)


@click.command(cls=Command)
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, callback=_parse_bundles)
@target_flags
@click.option(
    "--argos",
    metavar="[DIR]",
    is_flag=False,
    flag_value="",
    help="Also serve the packages of Argos Translate in DIR, which the first start converts. "
    "[$ARGOS_PACKAGES_DIR, or ~/.local/share/argos-translate/packages]",
)
@_setting("host", "Address to listen on; 0.0.0.0 for all interfaces, :: for all with IPv6.")
@_setting("port", "Port; 0 for any free one.")
@_setting("workers", "Batches translated at once per bundle. [one per core, 2 on a GPU]")
@_setting("threads", "CPU threads per worker. [1]")
@batch_tokens_flag
@cache_flag
@device_flag
@trust_code_flag
@_setting(
    "pivot",
    "Language to translate through where no bundle joins two languages; others are used if it does "
    "not join them. Empty: none.",
)
@_setting(
    "watch_interval",
    "Seconds between looks at the manifests: a bundle is reloaded when its own changes. 0: only on "
    "SIGHUP and POST /admin/reload.",
)
@_setting("max_characters", "Maximum number of characters of a request.")
@_setting("max_texts", "Maximum number of texts of a request.")
@_setting("max_body_bytes", "Maximum size of a request's body.")
@_setting("max_file_bytes", "Maximum size of the body of a request with a file.")
@_setting("max_file_characters", "Maximum number of characters of the text of a file.")
@_setting(
    "max_beam_size",
    "Maximum beam size, and number of alternatives; requests for more are refused.",
)
@_setting("timeout", "Seconds to answer a request in, and to read or render a file in.")
@_setting("file_timeout", "Seconds to translate a file in.")
@_setting("body_timeout", "Seconds to receive a request's head in, and then its body.")
@_setting(
    "max_requests",
    "Maximum number of requests that are translated at the same time; further ones are refused "
    "with 429.",
)
@_setting("max_cost", "Maximum sum of characters times beams of all requests that are translated.")
@_setting("max_connections", "Maximum number of open connections.")
@_setting(
    "requests_per_minute",
    "Requests per minute of an API key or, without one, an address; 0: any number.",
)
@_setting("api_keys", "TOML file of hashes of API keys, and their limits.")
@_setting("require_api_key", "Refuse requests without an API key.")
@_setting("protect_metrics", "Let only administrators' keys read /metrics.")
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    help="Origin whose pages may use the server, such as https://example.com; may be repeated; '*' "
    "for all.",
)
@_setting(
    "trusted_proxies",
    "Addresses or networks, separated by commas, whose X-Forwarded-For and -Proto are believed; "
    "'*' for all.",
)
@click.option(
    "--api",
    "apis",
    multiple=True,
    type=click.Choice(APIS),
    help="Further API to answer, beside LibreTranslate's; may be repeated.",
)
@click.option("--page/--no-page", default=True, help="Serve the web page at /. [yes]")
@_setting("keep_alive", "Seconds that an idle connection stays open.")
@_setting("health_timeout", "Seconds in which /health must have translated a word.")
@_setting(
    "drain_delay",
    "Seconds after SIGTERM in which new requests are still answered, for load balancers that "
    "notice the shutdown late.",
)
@_setting("drain_timeout", "Seconds to answer the requests in flight in, after --drain-delay.")
@click.option(
    "--log-format",
    type=click.Choice(["json", "text"]),
    default="json",
    show_default=True,
    help="Format of the log on stderr.",
)
def serve(bundles: list[NamedBundle], argos: str | None, log_format: str, **flags: Any) -> None:
    """Serve translations over HTTP with LibreTranslate's API.

    Each BUNDLE is a directory written by translate-trt export, or the name of a model of
    translate-trt get. Languages go before a bundle that does not name its own, or that is to be
    limited to a pair: en-de=BUNDLE. The server listens on
    the loopback interface unless --host says otherwise, and has no TLS: put a proxy in front of it
    before others can reach it.

    SIGTERM ends the server once all requests are answered; SIGHUP loads the bundles again.
    """
    from translate_trt.runtime.argos_packages import bundles_of_packages, default_directory
    from translate_trt.runtime.process import return_large_blocks
    from translate_trt.runtime.serve.http.lifecycle import HttpServer
    from translate_trt.runtime.serve.http.request_log import log_as
    from translate_trt.runtime.serve.http.served_bundle import named_sources

    settings = HttpSettings(**flags)
    if argos is None and not bundles:
        raise click.UsageError("Missing argument 'BUNDLE...', or --argos.")
    return_large_blocks()
    with log_as(log_format):
        if argos is not None:
            directory = Path(argos) if argos else default_directory()
            tell = functools.partial(click.echo, err=True)
            packages = bundles_of_packages(directory, settings.target, tell)
            bundles += [(name, path, None) for name, path in packages]
        server = HttpServer(
            named_sources(bundles), settings, lambda url: click.echo(f"listening on {url}")
        )
        server.serve_until_stopped()
    if server.unfinished:
        raise TranslateTrtError(
            f"not answered within --drain-timeout and cancelled: {server.unfinished} requests."
        )
