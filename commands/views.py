"""`rebuild` and `query`: the read models and read-only SQL over them (contract page ledger)."""

from __future__ import annotations

import os
import sqlite3
import sys
from math import isfinite

from commands.context import Context, dumps, emit, say
from commands.flags import Args, Command, Flag, Word
from ledger.errors import Invalid, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from commands.audit.queries import Query
    from ledger.access import Ledger

STEPS = 1_000_000  # of SQLite's machine, some milliseconds: how often an endless query looks whether it was interrupted
LOOKS = ("table_info", "table_xinfo", "table_list", "index_list", "index_info")


def rebuild(args: Args, context: Context) -> int:
    """Make the views from nothing; with `--check` only compare (exit 3 on a difference)."""
    import time

    from commands.progress import Bar
    from projections.views import build, locked, path_of

    ledger = context.ledger()
    path = path_of(ledger)
    bar = Bar("rebuilding")
    began = time.monotonic()
    try:
        if not args.check:
            with locked(ledger):
                events = build(ledger, path, bar)
            emit({"events": events, "path": path, "seconds": round(time.monotonic() - began, 3)})
            return 0
        standing = os.path.exists(path)
        events, found = check(ledger, bar)
    finally:
        bar.close()
    verdict = "views-differ" if found else "ok"
    emit({"ok": not found, "verdict": verdict, "events": events, "differences": found, "standing": standing})
    return 3 if found else 0


def check(ledger: Ledger, progress: Callable[[int, int], None] | None = None) -> tuple[int, list[str]]:
    """(events, differences) between the standing views, brought up to the head, and ones made from nothing.

    Both up to the head as it was when this began: others go on writing.
    """
    from ledger.leftovers import CHECK, remove_database
    from projections.views import build, differences, locked, path_of

    path = path_of(ledger)
    fresh = path + CHECK
    with locked(ledger):
        head = ledger.store.head().seq
        try:
            events = build(ledger, fresh, progress, head)
            if not os.path.exists(path):
                return events, []
            _catch_up_first(path, ledger, head)
            return events, differences(path, fresh)
        finally:
            remove_database(fresh)


def _catch_up_first(path: str, ledger: Ledger, head: int) -> None:
    """Views that only lag are not different: bring them up, unless they are damaged (then the comparison says so)."""
    from projections.views import bring_up, connect

    try:
        database = connect(path)
        bring_up(ledger, database, upto=head)
        database.close()
    except sqlite3.Error:
        return


def _allowed(
    action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None
) -> int:
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and second not in ("load_extension", "fts3_tokenizer"):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and (first in LOOKS or (first == "data_version" and second is None)):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _named() -> dict[str, Query]:
    from commands.audit.queries import NAMED

    return NAMED


def _parameters(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise Usage(f"--param {pair}: must be NAME=VALUE")
        found[name] = value
    return found


def _statement(text: str, given: dict[str, str]) -> tuple[str, dict[str, object]]:
    named = _named()
    if text not in named:
        if len(text.split()) < 2:
            raise Usage(f"no query is called {text!r}; `gatebook query --list` shows them, or give SQL")
        return text, dict(given)
    query = named[text]
    unknown = sorted(set(given) - set(query.params))
    if unknown:
        raise Usage(
            f"query {text} has no parameter {unknown[0]}; it takes {', '.join(query.params) or 'none'}"
        )
    values: dict[str, object] = {**query.params, **given}
    for name, default in query.params.items():
        if isinstance(default, int):
            try:
                finite = isfinite(float(str(values[name])))
            except ValueError:
                finite = False
            if not finite:
                raise Usage(f"query {text}: --param {name}={values[name]} must be a number")
    if "now" in values and values["now"] != query.params["now"]:
        from projections.times import parse_time

        try:
            parse_time(str(values["now"]), "--param now")
        except Invalid as error:
            raise Usage(str(error)) from None
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise Usage(f"query {text} needs --param {missing[0]}=…")
    return query.sql, values


def _list(as_json: bool) -> None:
    if as_json:
        emit([{"name": name, "text": query.text, "params": query.params} for name, query in _named().items()])
        return
    for name, query in _named().items():
        takes = "".join(f" [{key}={'' if value is None else value}]" for key, value in query.params.items())
        say(f"{name:<28} {query.text}{takes}")


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = value.hex() if isinstance(value, bytes) else str(value)
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _value(value: object) -> object:
    """A cell for JSON: bytes as hex, infinities as text, for JSON has no number for them and null is another value."""
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _distinct(names: list[str]) -> list[str]:
    """Columns' names as an object's: the second `seq` of a join is `seq_2`, so that none hides another."""
    found: list[str] = []
    for name in names:
        number, chosen = 1, name
        while chosen in found or (number > 1 and chosen in names):
            number += 1
            chosen = f"{name}_{number}"
        found.append(chosen)
    return found


def _objects(names: list[str], rows: Iterable[tuple[object, ...]]) -> Iterator[dict[str, object]]:
    names = _distinct(names)
    return (dict(zip(names, map(_value, row), strict=True)) for row in rows)


def _print(names: list[str], rows: Iterable[tuple[object, ...]], how: str) -> None:
    if how == "nl":
        for found in _objects(names, rows):
            say(dumps(found))
    elif how == "json":
        emit(list(_objects(names, rows)))
    elif how == "csv":
        import csv

        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows(
            ["" if v is None else v.hex() if isinstance(v, bytes) else v for v in row] for row in rows
        )
    else:
        _table(names, list(rows))


def _table(names: list[str], rows: list[tuple[object, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        table.add_column(_escape(_cell(name)), overflow="fold")
    for row in rows:
        table.add_row(*(_escape(_cell(value)) for value in row))
    Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 200).print(table)
    say(f"{len(rows)} row{'' if len(rows) == 1 else 's'}")


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def query(args: Args, context: Context) -> int:
    """Run a named query, or read-only SQL, over the views at the head of the ledger."""
    if args.list:
        _list(args.format == "json")
        return 0
    if args.sql is None:
        raise Usage("query needs SQL or the NAME of a query; `gatebook query --list` shows them")
    from projections.views import open_views

    sql, values = _statement(args.sql, _parameters(args.param))
    with open_views(context.ledger()) as database:
        connection = database.conn
        connection.execute("PRAGMA query_only=ON")
        # Virtual tables are made, and the full text's looked at, when first used, which the authorizer would deny.
        connection.execute(
            "SELECT 1 FROM json_each('[]') UNION SELECT 1 FROM json_tree('[]') "
            "UNION SELECT 1 FROM (SELECT rowid FROM events_fts LIMIT 1)"
        ).fetchall()
        connection.set_authorizer(_allowed)
        connection.set_progress_handler(lambda: 0, STEPS)  # in which Ctrl-C is heard; SQLite alone would not
        try:
            cursor = connection.execute(sql, values)
            if cursor.description is None:
                raise Invalid("query: the statement returns no rows; only SELECT is allowed")
            names = [column[0] for column in cursor.description]
            _print(names, cursor, args.format or "table")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                raise KeyboardInterrupt from None
            denied = "not authorized" in str(error) or "prohibited" in str(error)
            raise Invalid(f"query: {'only reading is allowed' if denied else error}") from None
        except sqlite3.Warning as error:
            raise Invalid(f"query: {error}") from None
        finally:
            connection.set_authorizer(None)
    return 0


COMMANDS = {
    "rebuild": Command(
        rebuild,
        "Makes the read models from nothing. With --check nothing is changed: a second set is made and compared with the\n"
        "one that stands; exit 3 (views-differ) on a difference.",
        flags=(Flag("--check", None, "only compare"),),
        example="gatebook rebuild",
    ),
    "query": Command(
        query,
        "Read-only SQL over the views (tables events, events_fts, circuits, …), or one of the named forensic queries.\n"
        "'PRAGMA table_list' names the tables, 'PRAGMA table_info(circuits)' a table's columns.",
        words=(Word("SQL", "a SELECT, or the name of a query", optional=True, offers=_named),),
        flags=(
            Flag("--param", "K=V", "a parameter, :K in the SQL, as text", many=True),
            Flag("--format", "F", "how rows are printed", choices=("table", "json", "csv", "nl")),
            Flag("--list", None, "the named queries"),
        ),
        example='gatebook query "SELECT type, count(*) AS n FROM events GROUP BY type ORDER BY n DESC"',
    ),
}
