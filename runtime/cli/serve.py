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
from translate_trt.runtime.cli.names import described_options
from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.serve.http.http_settings import HttpSettings

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
@described_options(HttpSettings)
@batch_tokens_flag
@cache_flag
@device_flag
@trust_code_flag
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
