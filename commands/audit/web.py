"""The views of a ledger in Datasette: named queries, facets, full text, causes, the timeline; read-only, on loopback.

Datasette opens the views' file only, never the log; every page is brought up to the log's head first, and a
fresh connection is opened for every query, so that nothing of a file deleted by a redaction is shown again.
"""

from __future__ import annotations

import asyncio
import html
import re
import sqlite3
import time

from datasette import hookimpl
from datasette.app import Datasette
from datasette.database import Database
from datasette.utils.asgi import Response

from commands.audit.queries import NAMED
from ledger.errors import Invalid
from projections.views import open_views, path_of, utc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ledger.access import Ledger

NAME = "views"
HOSTS = ("127.0.0.1", "localhost", "[::1]")
FRESH_SECONDS = 1.0
_LINKED = re.compile(r"(?:^|_)seq$|^(?:event|redaction|allowed_by|causation)$")


class Views(Database):  # type: ignore[misc]
    """The views' file, opened anew for every query: whoever replaces it is seen at once."""

    async def execute_fn(self, fn: Callable[[sqlite3.Connection], Any]) -> Any:
        """The result of `fn` with a read-only connection of its own."""

        def in_thread() -> Any:
            connection = self.connect()
            try:
                self.ds._prepare_connection(connection, self.name)  # noqa: SLF001 - as Datasette's own execute_fn does
                return fn(connection)
            finally:
                connection.close()
                self._all_file_connections.remove(connection)

        return await asyncio.get_running_loop().run_in_executor(self.ds.executor, in_thread)


def canned(sql: str, params: dict[str, str | int]) -> str:
    """A named query for Datasette, whose forms send empty text for what is not filled in: then the default holds."""
    for name, default in params.items():
        literal = str(default) if isinstance(default, int) else "'" + default.replace("'", "''") + "'"
        sql = re.sub(rf":{name}\b", f"coalesce(nullif(:{name}, ''), {literal})", sql)
    return sql


def metadata(ledger: Ledger) -> dict[str, Any]:
    """Datasette's metadata: the canned queries, facets and full-text search."""
    queries = {
        name: {"sql": canned(query.sql, query.params), "title": name, "description": query.text}
        for name, query in NAMED.items()
    }
    about = (
        f"The record of ledger {ledger.id}, read-only. <a href='/-/timeline'>Timeline</a> · "
        f"<a href='/{NAME}/events?_sort_desc=seq'>events</a> · named queries below <a href='/{NAME}'>{NAME}</a>. "
        "An event's <em>why</em> leads to what allowed it."
    )
    events = {
        "facets": ["kind", "type", "actor", "redacted"],
        "sort_desc": "seq",
        "size": 50,
        "fts_table": "events_fts",
        "fts_pk": "seq",
        "description": "Every event. Where redacted is 1 the content was erased, on record.",
    }
    return {
        "title": f"gatebook {ledger.id[:12]}",
        "description_html": about,
        "databases": {NAME: {"queries": queries, "tables": {"events": events}, "description_html": about}},
    }


class Pages:
    """Our pages and links, as a Datasette plugin."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.__name__ = "gatebook"  # Datasette lists its plugins by this

    @hookimpl  # type: ignore[untyped-decorator]
    def render_cell(self, row: Any, value: Any, column: str, table: str | None) -> Any:
        """Numbers of events are links; erased content says so."""
        from markupsafe import Markup

        names = row.keys()
        if column == "content" and value is None and "redacted" in names and row["redacted"]:
            return Markup("<em>redacted</em>")
        if isinstance(value, int) and _LINKED.search(column):
            why = f' · <a href="/-/trace/{value}">why</a>' if column == "seq" else ""
            return Markup(f'<a href="/{NAME}/events/{value}">{value}</a>{why}')  # noqa: S704 - only an integer goes in
        if column == "stream" and isinstance(value, str) and table == "events":
            return Markup(f'<a href="/{NAME}/events?stream={{}}">{{}}</a>').format(_quoted(value), value)  # noqa: S704
        return None

    @hookimpl  # type: ignore[untyped-decorator]
    def prepare_connection(self, conn: sqlite3.Connection) -> None:
        """The function that named queries use."""
        conn.create_function("utc", 1, utc, deterministic=True)

    @hookimpl  # type: ignore[untyped-decorator]
    def menu_links(self) -> list[dict[str, str]]:
        """The timeline is in every page's menu."""
        return [{"href": "/-/timeline", "label": "Timeline"}]

    @hookimpl  # type: ignore[untyped-decorator]
    def register_routes(self) -> list[tuple[str, Any]]:
        """`/-/timeline` and `/-/trace/WHAT`."""
        return [(r"^/-/timeline$", self.timeline), (r"^/-/trace/(?P<what>.+)$", self.trace)]

    async def timeline(self, request: Any) -> Response:
        """The timeline page; `?of=` names a correlation or stream."""
        from commands.timeline.command import picture
        from commands.timeline.page import render_page

        def made() -> str:
            items, title = picture(self._ledger, request.args.get("of") or None)
            return render_page(items, title=title, link=f"/{NAME}/events/")

        try:
            return Response.html(await asyncio.to_thread(made))
        except Invalid as error:
            return Response.html(_page("Timeline", f"<p>{html.escape(str(error))}</p>"), status=404)

    async def trace(self, request: Any) -> Response:
        """Why was this allowed, and what followed."""
        from urllib.parse import unquote

        from commands.trace import trace

        what = unquote(request.url_vars["what"])
        try:
            found = await asyncio.to_thread(trace, self._ledger, what)
        except Invalid as error:
            return Response.html(_page(f"Why: {what}", f"<p>{html.escape(str(error))}</p>"), status=404)
        lists = "".join(
            f"<h2>{title}</h2><ul>{''.join(map(_node, found[key]))}</ul>"
            for title, key in (("Why", "causes"), ("What followed", "effects"))
        )
        return Response.html(_page(f"Why: {what}", f"<p>{html.escape(found['answer'])}</p>{lists}"))


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def _node(node: dict[str, Any]) -> str:
    because = ", ".join(
        f"{html.escape(r['relation'])} <a href='/-/trace/{r['seq']}'>{r['seq']}</a>" for r in node["because"]
    )
    words = f" “{html.escape(str(node['words']))}”" if "words" in node else ""
    gone = " <em>content redacted</em>" if node.get("redacted") else ""
    place = " ".join(html.escape(str(node[name])) for name in ("type", "stream", "recorded_at", "actor"))
    return f"<li><a href='/{NAME}/events/{node['seq']}'>{node['seq']}</a> {place}{gone}{words} {because}</li>"


def _page(title: str, body: str) -> str:
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='color-scheme' content='light dark'>"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{html.escape(title)}</title><style>body{{font:15px system-ui,sans-serif;max-width:80rem;margin:1rem auto;padding:0 1rem}}"
        "li{margin:.3rem 0;overflow-wrap:anywhere}</style>"
        f"<p><a href='/'>gatebook</a> · <a href='/-/timeline'>timeline</a></p><h1>{html.escape(title)}</h1>{body}</html>"
    )


def application(ledger: Ledger, catch_up: Callable[[], None]) -> Any:
    """The ASGI application: Datasette over the ledger's views, for requests to this machine by its own name only.

    `catch_up` brings a fleet's replica up to its stream before the views follow the log.
    """
    from datasette import handle_exception
    from datasette.plugins import pm

    # With rich installed Datasette prints a trace with all locals to stdout for every mistyped query.
    handle_exception.rich = None
    pages = Pages(ledger)
    if pm.has_plugin("gatebook"):
        pm.unregister(name="gatebook")
    pm.register(pages, name="gatebook")
    settings = {
        "allow_download": False,
        "sql_time_limit_ms": 5000,
        "default_cache_ttl": 0,
        "facet_time_limit_ms": 2000,
        "allow_csv_stream": True,
    }
    _refresh(ledger)  # opening the ledger has caught up
    served = Datasette([], memory=False, metadata=metadata(ledger), settings=settings)
    served.remove_database("_memory")
    served.add_database(Views(served, path=path_of(ledger), is_mutable=True), name=NAME)
    inner = served.app()
    last = time.monotonic()
    one = asyncio.Lock()

    async def follow() -> None:
        nonlocal last
        async with one:  # a page's many requests wait for one catching up, not each for its own
            if time.monotonic() - last > FRESH_SECONDS:
                await asyncio.to_thread(catch_up)
                await asyncio.to_thread(_refresh, ledger)
                last = time.monotonic()

    async def guarded(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            # A name that somebody else's DNS points here (rebinding) must not read the ledger through a browser.
            host = dict(scope["headers"]).get(b"host", b"").decode("latin-1").rsplit(":", 1)[0]
            if host not in HOSTS or scope["method"] not in ("GET", "HEAD"):
                await Response.text(
                    "gatebook serves this machine only, and only reads", status=403
                ).asgi_send(send)
                return
            await follow()
        await inner(scope, receive, send)

    return guarded


def _refresh(ledger: Ledger) -> None:
    with open_views(ledger):
        pass
