"""`serve`: the views in a browser, on this machine only (extra `[web]`)."""

from __future__ import annotations

import sys
import time

from commands.context import Context, say
from commands.flags import Args, Command, Flag
from ledger.errors import GatebookError, MissingExecutor, Unavailable, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.access import Ledger

PORT = 8001
REST = 10  # times as long as catching up took: a cluster that is away is not waited for by every page
MOST_REST = 30.0


def _keeping_up(ledger: Ledger, context: Context) -> Callable[[], None]:
    """How a fleet's replica follows while it is served; whatever hinders that is said, and the replica shown."""
    if not ledger.store.url:
        return lambda: None
    from commands.sync import Follower

    follower = Follower(ledger, context)
    said: set[str] = set()
    rested = 0.0

    def catch_up() -> None:
        nonlocal rested
        began = time.monotonic()
        if began < rested:
            return
        try:
            follower.catch_up()
        except (GatebookError, OSError) as error:
            if str(error) not in said:
                said.add(str(error))
                context.log().warning(str(error))
        ended = time.monotonic()
        rested = ended + min(REST * (ended - began), MOST_REST)

    return catch_up


def run(args: Args, context: Context) -> int:
    """Serve until interrupted; prints the URL once requests are answered."""
    import socket

    port = PORT if args.port is None else args.port
    if port > 65535:
        raise Usage(f"--port: {port} is over 65535")
    ledger = context.ledger()
    try:
        import uvicorn

        from commands.audit.web import application
    except ImportError:
        raise MissingExecutor("serve needs Datasette: pip install 'gatebook[web]'") from None
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        raise Unavailable(f"port {port}: {error.strerror}; give another with --port (0: any)") from None
    app = application(ledger, _keeping_up(ledger, context))
    listening.listen(64)
    say(f"http://127.0.0.1:{listening.getsockname()[1]}/")
    sys.stdout.flush()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass  # uvicorn has shut down in order and hands the signal on
    return 0


COMMANDS = {
    "serve": Command(
        run,
        "Serves the views with Datasette: events with facets and full-text search, the named queries, why an event was\n"
        "allowed, the timeline. Read-only, 127.0.0.1 only; whoever can log in to this machine can read it while it runs.",
        flags=(Flag("--port", "P", f"the port (default {PORT}; 0: any that is free)", number=True),),
        example="gatebook serve --port 8001",
    )
}
