"""``tidelog serve``: serve the keyed logs of a location over HTTP."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.cli.command import AsJson, location_url
from tidelog.cli.keyed.arguments import check_keyed
from tidelog.cli.output import say, show
from tidelog.errors import NoSuchLog, UsageError
from tidelog.store.wrappers.read_only import told_read_only

if TYPE_CHECKING:
    from tidelog.server.app import ServerState
    from tidelog.server.limits import ServerLimits
    from tidelog.server.serving import ServerTls

_HERE: Final = ("localhost", "127.0.0.1", "::1")

Log = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="NAME",
        help="The keyed log at the paths /api/v1/log/... Each keyed log is at "
        "/api/v1/keyed/NAME/... as well.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File of bearer tokens, one per line; ' read' after a token makes it read-only. "
        "Default: no authentication.",
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The server's certificate chain (PEM); needs --tls-key. Default: HTTP without TLS.",
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The private key of --tls-cert (PEM), without a password."),
]
TlsClientCa = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Accept only clients with a certificate of this authority (PEM). Default: any client.",
    ),
]
BodyBytes = Annotated[
    str,
    typer.Option(
        metavar="BYTES",
        help="The largest body of a request, such as 512KiB; a larger one gets status 413.",
    ),
]
Followers = Annotated[
    int, typer.Option(min=1, metavar="N", help="At most N requests wait for records at a time.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The address of the server, and the logs that it serves."""

    host: str
    port: int
    log: str | None
    read_only: bool
    visibility: str
    as_json: bool


def serve(
    context: typer.Context,
    *,
    log: Log = None,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to listen at.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, metavar="PORT", help="The port; 0 is any free port.")
    ] = 8080,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse appends, and write nothing to the location.")
    ] = False,
    visibility: Annotated[
        str,
        typer.Option(
            metavar="durable|memory",
            help="durable: reads return only stored records. memory: also records that are not "
            "stored yet.",
        ),
    ] = "durable",
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    max_body: BodyBytes = "16MiB",
    max_followers: Followers = 1_000,
    as_json: AsJson = False,
) -> None:
    """Serve the keyed logs of a location over HTTP.

    Ctrl-C or SIGTERM ends the server. It first answers the requests in progress, and writes the
    appended records. A request that waits for records gets those that exist. /openapi.json
    describes the routes.
    """
    from tidelog.cli.ingest import parse_size

    url = location_url(context)
    if log is not None:
        check_keyed(log)
    if visibility not in ("durable", "memory"):
        raise UsageError(f"--visibility must be durable or memory, not {visibility[:200]!r}")
    body_bytes = parse_size(max_body, "--max-body")
    _check_installed()
    from tidelog.server.app import ServerState
    from tidelog.server.limits import ServerLimits
    from tidelog.server.tokens import Tokens, load_tokens

    limits = _fitted(
        replace(ServerLimits(), body_bytes_max=body_bytes, followers_max=max_followers)
    )
    tls = _tls(tls_cert, tls_key, tls_client_ca)
    tokens = Tokens() if token_file is None else load_tokens(token_file)
    if not tokens.known and host not in _HERE and tls_client_ca is None:
        say(
            f"warning: no authentication on {host}: anyone who can connect can read and append; "
            "use --token-file"
        )
    options = ServeOptions(
        host=host,
        port=port,
        log=log,
        read_only=read_only or told_read_only(None),
        visibility=visibility,
        as_json=as_json,
    )
    if asyncio.run(_serve(url, options, ServerState(limits=limits, tokens=tokens), tls)):
        raise KeyboardInterrupt


def _fitted(limits: ServerLimits) -> ServerLimits:
    """Return limits that fit the process's limit of open files; warn if they are lower."""
    from tidelog.server.limits import fit_open_files
    from tidelog.server.serving import raise_open_files

    files = raise_open_files(limits)
    fitted = fit_open_files(limits, files)
    if fitted != limits:
        say(
            f"warning: the process may open {files:,} files: at most {fitted.connections_max:,} "
            f"connections and {fitted.followers_max:,} followers; raise the hard limit (ulimit -Hn)"
        )
    return fitted


def _check_installed() -> None:
    try:
        import_module("tidelog.server.serving")
    except ImportError as error:
        raise UsageError(
            f"the server is not installed ({error}): pip install 'tidelog[server]'"
        ) from error


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise UsageError("TLS needs both: --tls-cert FILE and --tls-key FILE")
    from tidelog.server.serving import ServerTls

    return ServerTls(certificate=certificate, key=key, client_ca=client_ca)


async def _serve(
    url: str, options: ServeOptions, state: ServerState, tls: ServerTls | None
) -> bool:
    """Run the server; return True if Ctrl-C ended it."""
    from tidelog import __version__
    from tidelog.location import open_location
    from tidelog.server.app import make_app
    from tidelog.server.keyed_router import routers_of
    from tidelog.server.serving import make_server
    from tidelog.server.serving import serve as serve_app

    # Uvicorn logs a warning for each invalid request, and any client can send a flood of them.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    place = await open_location(url, read_only=options.read_only or None)
    if options.log is not None and options.log not in await place.keyed.list():
        raise NoSuchLog(
            f"no keyed log named {options.log!r}: create it first (tidelog keyed create "
            f"{options.log})"
        )
    routers = routers_of(
        place.keyed,
        state,
        log=options.log,
        is_read_only=options.read_only,
        visibility=options.visibility,
    )
    app = make_app(routers, version=__version__, state=state)
    scheme = "http" if tls is None else "https"

    def told(host: str, port: int) -> None:
        where = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        fields = {"url": where, "log": options.log, "read_only": options.read_only}
        show(fields, None, as_json=options.as_json)
        say(f"Serving at {where} until Ctrl-C; its routes: {where}/openapi.json")

    server = make_server(app, state, host=options.host, port=options.port, tls=tls, started=told)
    await serve_app(server, state)
    return server.was_interrupted
