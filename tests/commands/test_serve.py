"""`serve`: the views in a real browser, on this machine only, read-only, and never behind the log."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from types import SimpleNamespace

import pytest
import stories
from auditing import Cli
from browser import Browser

from commands.audit.queries import NAMED
from commands.audit.web import FRESH_SECONDS, application, canned
from commands.serve import _keeping_up
from ledger.access import open_ledger
from ledger.errors import Unavailable

pytestmark = pytest.mark.xdist_group("browser")


class Server:
    """`gatebook serve` as a process over one ledger that holds all stories."""

    def __init__(self, cli) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "commands", "--ledger", cli.ledger, "serve", "--port", "0"],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()},
        )  # fmt: skip
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:")

    def get(
        self, path: str, method: str = "GET", host: str | None = None, data: bytes | None = None
    ) -> tuple[int, str]:
        request = urllib.request.Request(
            self.url + path.lstrip("/"), method=method, data=data, headers={"Host": host} if host else {}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def json(self, path: str):
        status, body = self.get(path)
        assert status == 200, body
        return json.loads(body)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        here = os.getcwd()

        class Quiet:
            def readouterr(self):
                return "", ""

        cli = Cli(folder, Quiet(), patch)
        cli("init")
        cli.seqs = (
            stories.plan_run(cli)
            | {f"s-{k}": v for k, v in stories.review(cli).items()}
            | {f"d-{k}": v for k, v in stories.dispatch(cli).items()}
        )
        patch.chdir(here)
        server = Server(cli)
        server.cli = cli
        yield server
        server.process.terminate()
        server.process.wait(timeout=20)


@pytest.fixture(scope="module")
def browser():
    opened = Browser()
    yield opened
    opened.close()


def test_it_listens_on_the_loopback_address_only(served):
    port = int(served.url.rsplit(":", 1)[1].strip("/"))
    with open("/proc/net/tcp", encoding="ascii") as file:
        listening = [line.split()[1] for line in file if line.split()[3] == "0A"]
    assert [place for place in listening if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_every_event_is_there(served):
    assert served.json("/views/events.json?_shape=array&_size=1&_nofacet=1&_nocount=0")
    assert served.json("/views.json?sql=select+count(*)+as+n+from+events&_shape=array") == [
        {"n": len(served.cli.sql("SELECT seq FROM events"))}
    ]


@pytest.mark.parametrize("name", sorted(NAMED))
def test_each_named_query_answers_with_its_defaults_and_says_what_it_is(served, name):
    assert isinstance(served.json(f"/views/{name}.json?_shape=array"), list)
    status, body = served.get(f"/views/{name}")
    assert status == 200
    assert NAMED[name].text.split(",")[0].split(":")[0] in body.replace("&#x27;", "'")


def test_named_queries_give_the_same_rows_as_on_the_command_line(served):
    rows = served.json("/views/approvals.json?_shape=array")
    assert [row["seq"] for row in rows] == [served.cli.seqs[n] for n in ("approved", "issued", "d-approved")]
    assert len(served.json("/views/longest-holds.json?_shape=array&limit=1")) == 1


def test_defaults_stand_in_for_what_a_form_leaves_empty():
    assert canned("x < :least AND y = :now", {"least": 1, "now": "n'w"}) == (
        "x < coalesce(nullif(:least, ''), 1) AND y = coalesce(nullif(:now, ''), 'n''w')"
    )


def test_full_text_and_facets_find_events(served):
    found = served.json("/views/events.json?_shape=array&_search=APPROVE")
    assert served.cli.seqs["s-reviewed"] in [row["seq"] for row in found]
    facets = served.json("/views/events.json?_size=1")["facet_results"]
    assert {"kind", "type", "actor", "redacted"} <= set(facets)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM events",
        "UPDATE events SET actor='x'",
        "DROP TABLE events",
        "ATTACH '/tmp/x' AS y",
        "PRAGMA journal_mode=WAL",
    ],
)
def test_nothing_can_be_written(served, sql):
    before = served.json("/views.json?sql=select+count(*)+as+n+from+events&_shape=array")
    status, _ = served.get("/views.json?" + urllib.parse.urlencode({"sql": sql}))
    assert status >= 400
    assert served.json("/views.json?sql=select+count(*)+as+n+from+events&_shape=array") == before


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_only_reading_requests_are_answered(served, method):
    assert served.get("/views", method=method, data=b"")[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example"])
def test_a_name_that_points_here_from_elsewhere_is_refused(served, host):
    assert served.get("/", host=host)[0] == 403


def test_the_views_file_cannot_be_downloaded(served):
    assert served.get("/views.db")[0] in (403, 404)


def test_a_browser_walks_from_an_event_to_what_allowed_it(served, browser):
    browser.errors.clear()
    seq = served.cli.seqs["result2"]
    browser.open(f"{served.url}views/events/{seq}")
    browser.run(f"document.querySelector('a[href=\"/-/trace/{seq}\"]').click()")
    wait_for(browser, f"location.pathname === '/-/trace/{seq}' && document.readyState === 'complete'")
    assert "approve 1-2; defer 3" in browser.run("document.body.textContent")
    approval = served.cli.seqs["approved"]
    browser.run(f"document.querySelector('a[href=\"/views/events/{approval}\"]').click()")
    wait_for(
        browser, f"location.pathname === '/views/events/{approval}' && document.readyState === 'complete'"
    )
    assert "plan.approved" in browser.run("document.body.textContent")
    assert [error for error in browser.errors if "favicon" not in error] == []


def wait_for(browser, code: str) -> None:
    until = time.monotonic() + 20
    while not browser.run(code):
        assert time.monotonic() < until, code
        time.sleep(0.05)


def test_the_timeline_page_links_to_its_events(served, browser):
    browser.errors.clear()
    browser.open(f"{served.url}-/timeline?of={urllib.parse.quote(stories.RUN)}".replace("%2F", "/"))
    assert browser.run("document.querySelectorAll('.mark').length") > 5
    browser.run("document.getElementById('picture').focus()")
    browser.key("ArrowRight")
    assert browser.run("document.querySelector('#said a').getAttribute('href')").startswith("/views/events/")
    assert served.get("/-/timeline?of=nobody")[0] == 404
    assert browser.errors == []


def test_a_named_query_is_a_form_in_the_browser(served, browser):
    browser.open(f"{served.url}views/longest-holds")
    browser.run(
        "document.querySelector('input[name=limit]').value = '1'; document.querySelector('form.sql').submit()"
    )
    wait_for(browser, "location.search.includes('limit=1') && document.readyState === 'complete'")
    assert browser.run("document.querySelectorAll('table.rows-and-columns tbody tr').length") == 1


def test_unknown_things_are_not_found(served):
    assert served.get("/-/trace/99999")[0] == 404
    assert served.get("/views/events/99999")[0] == 404


def test_events_that_come_while_serving_are_shown(served):
    seq = served.cli.record("x-late/1", "x.late", {"n": 1}, "a late note about zebras")
    time.sleep(1.1)
    served.get("/")
    assert [row["seq"] for row in served.json("/views/events.json?_shape=array&_search=zebras")] == [seq]


def test_content_redacted_while_serving_is_gone_and_said_to_be(served):
    from commands.entry import run

    seq = served.cli.record("x-late/1", "x.late", {"n": 2}, "a secret about giraffes")
    time.sleep(1.1)
    assert served.json("/views/events.json?_shape=array&_search=giraffes")
    assert run(["--ledger", served.cli.ledger, "redact", str(seq), "--reason", "asked to"]) == 0
    time.sleep(1.1)
    served.get("/")
    assert served.json("/views/events.json?_shape=array&_search=giraffes") == []
    assert "<em>redacted</em>" in served.get(f"/views/events/{seq}")[1]


def test_requests_that_come_together_wait_for_one_catching_up(cli):
    """With the cluster away each waited for its own, one after the other."""
    cli("init")
    calls, answers = [], []
    ledger = open_ledger(cli.ledger)

    def slow():
        calls.append(1)
        time.sleep(0.3)

    async def send(message):
        answers.append(message.get("status"))

    async def ask(app):
        scope = {
            "type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"",
            "headers": [(b"host", b"localhost")], "scheme": "http", "http_version": "1.1",
        }  # fmt: skip
        await app(scope, lambda: asyncio.sleep(0, {"type": "http.request"}), send)

    async def together():
        app = application(ledger, slow)
        await asyncio.sleep(FRESH_SECONDS + 0.1)
        await asyncio.gather(*(ask(app) for _ in range(5)))

    asyncio.run(together())
    ledger.close()
    assert answers.count(200) == 5
    assert len(calls) == 1


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), Unavailable("away"), None])
def test_what_hinders_following_is_said_once_and_not_waited_for_by_every_page(monkeypatch, problem):
    calls, said = [], []

    class Follower:
        def __init__(self, *_):
            pass

        def catch_up(self):
            calls.append(1)
            time.sleep(0.05)
            if problem is not None:
                raise problem

    monkeypatch.setattr("commands.sync.Follower", Follower)
    ledger = SimpleNamespace(store=SimpleNamespace(url="nats://host:1/books"))
    context = SimpleNamespace(log=lambda: SimpleNamespace(warning=said.append))
    catch_up = _keeping_up(ledger, context)
    for _ in range(3):
        catch_up()
    assert len(calls) == 1
    deadline = time.monotonic() + 20
    while len(calls) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        catch_up()
    assert len(calls) == 2
    assert said == ([] if problem is None else [str(problem)])


def test_a_port_in_use_and_a_wrong_one_say_so(cli):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, _, err = cli("serve", "--port", taken.getsockname()[1])
    assert code == 75
    assert "--port" in err
    assert cli("serve", "--port", "65536")[0] == 2


def test_no_named_query_hides_a_table_of_the_same_name(cli):
    from projections.views import open_views

    ledger = open_ledger(cli.ledger)
    with open_views(ledger) as views:
        assert not set(NAMED) & set(views.table_names())
    ledger.close()
