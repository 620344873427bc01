"""`translate-trt serve`: an HTTP server with LibreTranslate's API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.cli.bundle_flags import BATCH_TOKENS_HELP, BUNDLE, target_flags
from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.names import PATH
from translate_trt.runtime.errors import TranslateTrtError

if TYPE_CHECKING:
    from translate_trt.runtime.serve.http.served_bundle import BundleSource


def _parse_bundles(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> list[BundleSource]:
    """Find the bundles, and call each by its name as an installed model or by its directory's."""
    from translate_trt.runtime.serve.http.served_bundle import named_sources, split_languages

    found = []
    for one in given:
        languages, bundle = split_languages(one)
        path = BUNDLE.convert(bundle, param, ctx)
        found.append(
            (bundle if not Path(bundle).exists() else path.resolve().name, path, languages)
        )
    return named_sources(found)


@click.command(cls=Command)
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True, callback=_parse_bundles)
@target_flags
@click.option(
    "--host", default="127.0.0.1", show_default=True,
    help="Address to listen on; 0.0.0.0 for all interfaces, :: for all with IPv6.",
)  # fmt: skip
@click.option(
    "--port", type=int, default=5000, show_default=True, help="Port; 0 for any free one."
)  # fmt: skip
@click.option(
    "--workers", type=int, help="Batches translated at once per bundle. [one per core, 2 on a GPU]"
)
@click.option("--threads", type=int, help="CPU threads per worker. [1]")
@click.option("--batch-tokens", type=int, help=BATCH_TOKENS_HELP)
@click.option("--device", help="cpu, cuda, cuda:1 or xpu. [a GPU if the target is made for one]")
@click.option(
    "--trust-code",
    is_flag=True,
    help="Allow version-compatible engines to run the machine code that they contain.",
)
@click.option(
    "--pivot", default="en", show_default=True,
    help="Language to translate through where no bundle joins two languages; others are used if "
    "it does not join them. Empty: none.",
)  # fmt: skip
@click.option(
    "--watch-interval", type=float, default=0.0, show_default=True,
    help="Seconds between looks at the manifests: a bundle is reloaded when its own changes. "
    "0: only on SIGHUP and POST /admin/reload.",
)  # fmt: skip
@click.option(
    "--max-characters", type=int, default=20_000, show_default=True,
    help="Maximum number of characters of a request.",
)  # fmt: skip
@click.option(
    "--max-texts", type=int, default=1_000, show_default=True,
    help="Maximum number of texts of a request.",
)  # fmt: skip
@click.option(
    "--max-body-bytes", type=int, default=1 << 20, show_default=True,
    help="Maximum size of a request's body.",
)  # fmt: skip
@click.option(
    "--max-beam-size", type=int, default=16, show_default=True,
    help="Maximum beam size, and number of alternatives; requests for more are refused.",
)  # fmt: skip
@click.option(
    "--timeout", type=float, default=60.0, show_default=True,
    help="Seconds to answer a request in.",
)  # fmt: skip
@click.option(
    "--body-timeout", type=float, default=10.0, show_default=True,
    help="Seconds to receive a request's head in, and then its body.",
)  # fmt: skip
@click.option(
    "--max-requests", type=int, default=1024, show_default=True,
    help="Maximum number of requests that are translated at the same time; further ones are "
    "refused with 429.",
)  # fmt: skip
@click.option(
    "--max-cost", type=int, default=4_000_000, show_default=True,
    help="Maximum sum of characters times beams of all requests that are translated.",
)  # fmt: skip
@click.option(
    "--max-connections", type=int, default=4096, show_default=True,
    help="Maximum number of open connections.",
)  # fmt: skip
@click.option(
    "--requests-per-minute", type=int, default=0, show_default=True,
    help="Requests per minute of an API key or, without one, an address; 0: any number.",
)  # fmt: skip
@click.option("--api-keys", type=PATH, help="TOML file of hashes of API keys, and their limits.")
@click.option("--require-api-key", is_flag=True, help="Refuse requests without an API key.")
@click.option(
    "--protect-metrics", is_flag=True, help="Let only administrators' keys read /metrics."
)
@click.option(
    "--cors-origin", "cors_origins", multiple=True,
    help="Origin whose pages may use the server, such as https://example.com; may be repeated; '*' "
    "for all.",
)  # fmt: skip
@click.option(
    "--trusted-proxies",
    help="Addresses or networks, separated by commas, whose X-Forwarded-For and -Proto are "
    "believed; '*' for all.",
)  # fmt: skip
@click.option("--page/--no-page", default=True, help="Serve the web page at /. [yes]")
@click.option(
    "--keep-alive", type=float, default=30.0, show_default=True,
    help="Seconds that an idle connection stays open.",
)  # fmt: skip
@click.option(
    "--health-timeout", type=float, default=5.0, show_default=True,
    help="Seconds in which /health must have translated a word.",
)  # fmt: skip
@click.option(
    "--drain-delay", type=float, default=0.0, show_default=True,
    help="Seconds after SIGTERM in which new requests are still answered, for load balancers that "
    "notice the shutdown late.",
)  # fmt: skip
@click.option(
    "--drain-timeout", type=float, default=60.0, show_default=True,
    help="Seconds to answer the requests in flight in, after --drain-delay.",
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(["json", "text"]), default="json", show_default=True,
    help="Format of the log on stderr.",
)  # fmt: skip
def serve(
    bundles: list[BundleSource],
    log_format: str,
    **flags: Any,
) -> None:
    """Serve translations over HTTP with LibreTranslate's API.

    Each BUNDLE is a directory written by translate-trt export, or the name of a model of
    translate-trt get. Languages go before a bundle that does not name its own, or that is to be
    limited to a pair: en-de=BUNDLE. The server listens on
    the loopback interface unless --host says otherwise, and has no TLS: put a proxy in front of it
    before others can reach it.

    SIGTERM ends the server once all requests are answered; SIGHUP loads the bundles again.
    """
    from translate_trt.runtime.process import return_large_blocks
    from translate_trt.runtime.serve.http.http_settings import HttpSettings
    from translate_trt.runtime.serve.http.lifecycle import HttpServer
    from translate_trt.runtime.serve.http.request_log import log_as

    settings = HttpSettings(**flags)
    return_large_blocks()
    with log_as(log_format):
        server = HttpServer(bundles, settings, lambda url: click.echo(f"listening on {url}"))
        server.serve_until_stopped()
    if server.unfinished:
        raise TranslateTrtError(
            f"not answered within --drain-timeout and cancelled: {server.unfinished} requests."
        )
