"""The named forensic queries on whole stories: each finds what it is named for, and nothing else."""

from __future__ import annotations

import json
import sqlite3

import pytest
import stories

from commands.audit.queries import NAMED
from ledger.clock import parse_us
from projections.views import utc

T = "2026-11-30T09:{:02d}:{:02d}.000000Z"


class Log:
    """The view `events` with rows as the tests want them, a second apart unless told otherwise."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:")
        self.db.row_factory = sqlite3.Row
        self.db.create_function("utc", 1, utc)
        self.db.execute(
            "CREATE TABLE events (seq INTEGER PRIMARY KEY, stream TEXT, kind TEXT, version INTEGER, type TEXT, v INTEGER, "
            "recorded_at TEXT, clock_us INTEGER, clock_behind INTEGER, actor TEXT, via TEXT, correlation TEXT, causation INTEGER, data TEXT, "
            "content TEXT, redacted INTEGER, hash TEXT)"
        )
        self.seq = 0
        self.versions: dict[str, int] = {}
        self.record("ledger", "ledger.opened", {"format": 1})

    def record(
        self,
        stream: str,
        type: str,
        data: dict | None = None,
        content: str | None = None,
        *,
        actor="cli:anna",
        at=None,
        behind=0,
        correlation=None,
    ) -> int:  # noqa: E501
        self.seq += 1
        self.versions[stream] = self.versions.get(stream, 0) + 1
        when = at or T.format(self.seq // 60, self.seq % 60)
        row = (
            self.seq,
            stream,
            stream.split("/", maxsplit=1)[0],
            self.versions[stream],
            type,
            1,
            when,
            parse_us(when) - behind,
            behind,
            actor,
            "test",
            correlation,
            None,
            json.dumps(data or {}, separators=(",", ":")),
            content,
            0,
            "",
        )
        self.db.execute(f"INSERT INTO events VALUES ({','.join('?' * 17)})", row)
        return self.seq

    def ask(self, name: str, **params) -> list[dict]:
        query = NAMED[name]
        assert set(params) <= set(query.params)
        return [dict(row) for row in self.db.execute(query.sql, query.params | params)]


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def told(log):
    """All stories in one log."""
    log.run = stories.plan_run(log)
    log.session = stories.review(log)
    log.request = stories.dispatch(log)
    return log


def test_there_are_enough_and_each_has_an_example_that_calls_it():
    assert len(NAMED) >= 12
    for name, query in NAMED.items():
        assert query.example.startswith(f"gatebook query {name}")
        assert query.text


@pytest.mark.parametrize("name", sorted(NAMED))
def test_each_runs_on_an_empty_and_on_a_full_log(log, told, name):
    assert isinstance(log.ask(name), list)
    assert isinstance(Log().ask(name), list)


def test_each_stays_quick_on_long_streams(log):
    """25,000 events in one stream, none of which ends anything: no query compares each with each."""
    import time

    kinds = {
        "session/s": (
            "session.locked",
            "round.started",
            "stage.minted",
            "delivery.blocked",
            "drift.detected",
        ),
        "run/r": ("plan.proposed", "marker.claimed", "item.handed_off"),
        "receipt/r": ("receipt.issued", "receipt.consumed"),
        "dispatch/d": ("dispatch.requested", "dispatch.attempted"),
    }
    log.db.execute("CREATE INDEX by_stream ON events (stream)")
    log.db.execute("CREATE INDEX by_type ON events (type)")
    for stream, types in kinds.items():
        for n in range(25_000):
            log.record(stream, types[n % len(types)], {"executor": True}, at="2026-11-30T09:00:00.000000Z")
    for name in NAMED:
        start = time.perf_counter()
        log.ask(name)
        assert time.perf_counter() - start < 10, name


def test_approvals_name_who_what_and_when(told):
    rows = told.ask("approvals")
    assert [row["seq"] for row in rows] == [
        told.run["approved"],
        told.run["issued"],
        told.request["approved"],
    ]
    assert all(row["actor"] == "cli:anna" for row in rows)
    assert json.loads(rows[0]["scope"])["3"] == "defer"
    assert json.loads(rows[1]["scope"]) == ["assignment.submit_text"]


def test_unused_receipts_are_those_neither_consumed_nor_revoked(told):
    assert told.ask("unused-receipts") == []
    spare = told.record(
        "receipt/r-2", "receipt.issued", {"receipt_id": "r-2", "expires_at": "2026-11-30T12:00:00Z"}
    )
    told.record("receipt/r-3", "receipt.issued", {"receipt_id": "r-3", "expires_at": "2026-11-30T12:00:00Z"})
    told.record("receipt/r-3", "receipt.revoked", {"receipt_id": "r-3"})
    (before,) = told.ask("unused-receipts", now="2026-11-30T11:59:59Z")
    (after,) = told.ask("unused-receipts", now="2026-11-30T12:00:00Z")
    assert (before["seq"], before["receipt"], before["expired"], after["expired"]) == (spare, "r-2", 0, 1)
    told.record("ledger", "ledger.restored", {"after": spare})
    assert told.ask("unused-receipts", now="2026-11-30T11:59:59Z")[0]["expired"] == 1


def test_denials_are_counted_by_reason(told):
    for _ in range(2):
        told.record(
            "refusal/2026-11-30",
            "receipt.denied",
            {"type": "receipt.consumed", "stream": "receipt/r-9", "reason": "expired", "suppressed": 3},
        )
    (row,) = told.ask("denials")
    assert (row["refused"], row["reason"], row["stream"], row["times"], row["only_counted"]) == (
        "receipt.consumed",
        "expired",
        "receipt/r-9",
        3,
        6,
    )


def test_endpoints_are_ordered_by_failures_of_each_reason(told):
    for reason in ("rate_limit", "rate_limit"):
        told.record("circuit/a|b", "circuit.opened", {"provider": "a", "executor": "b", "reason": reason})
    told.record("circuit/a|b", "circuit.closed", {"provider": "a", "executor": "b"})
    first, second = told.ask("endpoint-failures")
    assert (
        first["provider"],
        first["failures"],
        first["rate_limit"],
        first["quota"],
        first["recoveries"],
        first["last_event"],
    ) == ("a", 2, 2, 0, 1, "circuit.closed")
    assert (second["provider"], second["quota"], second["last_event"]) == ("openai", 1, "circuit.opened")


def test_failed_attempts_count_for_their_endpoint_wherever_its_circuit_is_recorded(told):
    for number, reason in ((1, "rate_limit"), (2, "test_failure"), (3, "quota")):
        named = {"attempt": number, "provider": "far", "executor": "cli"}
        told.record("dispatch/d-7", "dispatch.attempted", named)
        told.record("dispatch/d-7", "dispatch.returned", {"attempt": number, "reason": reason})
    rows = [row for row in told.ask("endpoint-failures") if row["provider"] == "far"]
    assert [(row["failures"], row["failed_attempts"], row["last_event"]) for row in rows] == [(0, 2, None)]


def test_runs_that_were_never_finalised_show_how_far_they_got(told):
    assert told.ask("unfinished-runs") == []
    told.record("run/2-2026-12-01", "plan.approved", {})
    told.record("run/2-2026-12-01", "marker.claimed", {"nonce": "m"})
    told.record("run/2-2026-12-01", "item.handed_off", {})
    (row,) = told.ask("unfinished-runs")
    assert (row["stream"], row["claims"], row["handed_off"], row["results"]) == ("run/2-2026-12-01", 1, 1, 0)


def test_deliveries_after_accepted_drift_name_who_accepted_it(told):
    assert told.ask("delivered-after-drift") == []
    accepted = told.record("session/s", "drift.accepted", {"reason": "external-head", "answered_by": "flag"})
    assert told.ask("delivered-after-drift") == []
    delivered = told.record("session/s", "delivery.completed", {})
    (row,) = told.ask("delivered-after-drift")
    assert (row["accepted_seq"], row["delivered_seq"], row["reason"], row["answered_by"]) == (
        accepted,
        delivered,
        "external-head",
        "flag",
    )


def test_work_after_expiry_says_how_late(told):
    assert told.ask("late-work") == []
    told.record("receipt/r-4", "receipt.issued", {"expires_at": "2026-11-30T09:30:00Z"})
    used = told.record("receipt/r-4", "receipt.consumed", {}, at="2026-11-30T09:30:02.500000Z")
    (row,) = told.ask("late-work")
    assert (row["seq"], row["allowed_type"], row["seconds_late"]) == (used, "receipt.issued", 2.5)


def test_work_under_a_plan_that_had_expired_is_late_though_its_approval_names_no_expiry(told):
    plan = '{"expires_at": "2026-11-30T02:30:00-07:00"}'
    proposed = told.record("run/7-2026-11-30", "plan.proposed", {}, plan)
    told.record("run/7-2026-11-30", "plan.approved", {})
    told.record("run/7-2026-11-30", "item.handed_off", {}, at="2026-11-30T09:29:59.000000Z")
    late = told.record("run/7-2026-11-30", "result.recorded", {}, at="2026-11-30T09:30:01.000000Z")
    told.record("run/8-2026-11-30", "plan.proposed", {}, "no JSON")
    told.record("run/8-2026-11-30", "item.handed_off", {}, at="2026-11-30T09:40:00.000000Z")
    (row,) = told.ask("late-work")
    assert (row["seq"], row["allowed_by"], row["allowed_type"]) == (late, proposed, "plan.proposed")
    assert (row["expired_at"], row["seconds_late"]) == ("2026-11-30T02:30:00-07:00", 1.0)


@pytest.mark.parametrize("end", ["20261130t093000z", "2026-11-30T0930+0000", "2026-11-30 02:30:00,0-0700", "2026-11-30T09:29:60Z"])  # fmt: skip
def test_lateness_is_told_in_every_form_of_time_that_a_plan_may_have(told, end):
    told.record("run/7-2026-11-30", "plan.proposed", {}, json.dumps({"expires_at": end}))
    late = told.record("run/7-2026-11-30", "result.recorded", {}, at="2026-11-30T09:30:01.000000Z")
    lawful = utc(end) is not None
    assert [row["seq"] for row in told.ask("late-work")] == ([late] if lawful else [])
    assert lawful is not end.endswith(":60Z")


def test_clock_anomalies_are_set_back_clocks_long_rests_and_given_times(told):
    assert told.ask("clock-anomalies") == []
    back = told.record("x-a/1", "x.a", behind=5_000_000, at="2026-11-30T10:00:00.000000Z")
    small = told.record("x-a/1", "x.a", behind=900, at="2026-11-30T10:00:00.000001Z")
    given = told.record(
        "circuit/a|b",
        "circuit.opened",
        {"at": "2026-11-01T00:00:00Z", "at_given": True},
        at="2026-11-30T10:00:01.000000Z",
    )
    rested = told.record("x-a/1", "x.a", at="2026-12-02T10:00:00.000000Z")
    assert [row["seq"] for row in told.ask("clock-anomalies")] == [back, given, rested]
    assert small in [row["seq"] for row in told.ask("clock-anomalies", least=0)]


def test_actors_seen_once_stand_out(told):
    once = told.record("x-a/1", "x.a", actor="cli:ana")
    assert [row["actor"] for row in told.ask("lonely-actors")] == ["cli:ana"]
    assert told.ask("lonely-actors")[0]["seq"] == once


def test_holds_are_ordered_by_length_and_open_ones_say_so(told):
    told.record("session/s", "session.locked", {}, at="2026-11-30T10:00:00.000000Z")
    told.record("session/s", "session.unlocked", {}, at="2026-11-30T10:01:00.000000Z")
    told.record("x-a/1", "x.a", at="2026-11-30T10:02:00.000000Z")
    rows = told.ask("longest-holds", limit=3)
    assert rows[0]["stream"] == "session/0b0e7a52-6f0c-4b6e-8f5f-0d6a3a1f4c11"
    assert rows[0]["still_held"] == 1
    assert (rows[1]["stream"], rows[1]["seconds"], rows[1]["still_held"]) == ("session/s", 60.0, 0)
    assert len(told.ask("longest-holds", limit=1)) == 1


def test_a_hold_ends_where_a_restore_voided_it(log):
    log.record("run/1-2026-11-30", "marker.claimed", at="2026-11-30T09:00:00.000000Z")
    assert log.ask("longest-holds")[0]["still_held"] == 1
    log.record("ledger", "ledger.restored", at="2026-11-30T09:00:10.000000Z")
    log.record("run/1-2026-11-30", "marker.claimed", at="2026-11-30T09:00:20.000000Z")
    log.record("run/1-2026-11-30", "marker.released", at="2026-11-30T09:00:50.000000Z")
    found = [(row["seconds"], row["still_held"]) for row in log.ask("longest-holds")]
    assert found == [(30.0, 0), (10.0, 0)]


def test_attempts_without_an_end_come_before_slow_ones(told):
    assert told.ask("attempt-gaps") == []
    slow = told.record("dispatch/d-2", "dispatch.attempted", {}, at="2026-11-30T10:00:00.000000Z")
    told.record("dispatch/d-2", "dispatch.returned", {}, at="2026-11-30T10:20:00.000000Z")
    lost = told.record("dispatch/d-3", "dispatch.attempted", {}, at="2026-11-30T10:30:00.000000Z")
    assert [(row["seq"], row["seconds"]) for row in told.ask("attempt-gaps")] == [
        (lost, None),
        (slow, 1200.0),
    ]


def test_stages_say_whether_they_stand_and_why_they_were_lost(told):
    assert {row["outcome"] for row in told.ask("minted-stages")} == {"stands"}
    told.record("session/s", "stage.minted", {"stage": "exec", "fingerprint": "f"})
    told.record("session/s", "stages.cleared", {"reason": "executor-round"})
    lost = told.ask("minted-stages")[-1]
    assert (lost["session"], lost["stage"], lost["outcome"]) == ("session/s", "exec", "executor-round")


def test_what_was_never_decided_is_found_by_kind(told):
    assert told.ask("unanswered") == []
    plan = told.record("run/2-2026-12-01", "plan.proposed", {})
    request = told.record("dispatch/d-9", "dispatch.requested", {})
    drift = told.record("session/s", "drift.detected", {})
    assert [row["seq"] for row in told.ask("unanswered")] == [plan, request, drift]
    told.record("dispatch/d-9", "dispatch.blocked", {})
    told.record("session/s", "drift.aborted", {})
    assert [row["seq"] for row in told.ask("unanswered")] == [plan]


def test_mutations_lead_to_their_results(told):
    (row,) = told.ask("mutations")
    assert (row["seq"], row["receipt"], row["result_seq"]) == (
        told.run["consumed"],
        "receipt/r-1",
        told.run["result2"],
    )


def test_rejected_reports_are_counted_by_reason(told):
    seqs = [
        told.record("session/s", "round.rejected", {"role": "reviewer", "reason": "bad-verdict"})
        for _ in range(2)
    ]
    (row,) = told.ask("rejected-reports")
    assert (row["role"], row["reason"], row["times"], row["seqs"]) == (
        "reviewer",
        "bad-verdict",
        2,
        f"{seqs[0]} {seqs[1]}",
    )


def test_blocked_deliveries_name_who_let_them_go_on(told):
    told.record("session/s", "delivery.blocked", {"by": "docs", "reason": "cap"})
    assert told.ask("blocked-deliveries")[0]["unblocked_seq"] is None
    lifted = told.record("session/s", "delivery.unblocked", {"was": "docs", "answered_by": "person"})
    (row,) = told.ask("blocked-deliveries")
    assert (row["blocked_by"], row["unblocked_seq"], row["answered_by"]) == ("docs", lifted, "person")


def test_redactions_name_each_event(told):
    told.db.execute(
        "UPDATE events SET redacted = 1 WHERE type IN ('plan.approved', 'result.recorded', 'receipt.issued')"
    )
    redaction = told.record(
        "ledger", "ledger.redacted", {"events": [told.run["approved"], told.run["result1"]]}
    )
    rows = told.ask("redactions")
    assert [(row["redaction"], row["event"], row["type"]) for row in rows] == [
        (redaction, told.run["approved"], "plan.approved"),
        (redaction, told.run["result1"], "result.recorded"),
    ]


def test_each_answers_on_the_command_line(cli):
    import json

    stories.plan_run(cli)
    stories.review(cli)
    stories.dispatch(cli)
    listed = cli.ok("query", "--list")
    for name, query in NAMED.items():
        assert name in listed
        assert isinstance(json.loads(cli.ok("query", name, "--format", "json")), list)
        assert cli(*query.example.split()[1:])[0] == 0


def test_takeovers_are_listed(told):
    assert told.ask("recoveries") == []
    taken = told.record("session/s", "session.lock_recovered", {"answered_by": "flag"})
    adopted = told.record("run/3-2026-12-01", "marker.claimed", {"session_id": "t"})
    assert [row["seq"] for row in told.ask("recoveries")] == [taken, adopted]


def test_every_field_that_a_query_reads_exists_in_the_vocabulary():
    import re

    from projections.registry import TYPES, aggregate

    fields: set[str] = set()
    for name, (kind, _) in TYPES.items():
        fields |= set(aggregate(kind).EVENTS[name].__struct_fields__)
    for name, query in NAMED.items():
        read = set(re.findall(r"data, '\$\.(\w+)'", query.sql))
        assert read <= fields, name


def test_the_full_text_is_asked_by_sql_and_stays_read_only(cli):
    cli.ok("append", "--stream", "x-notes/1", "--type", "x.note", "--content", "a rare zanzibar word")
    sql = "SELECT rowid FROM events_fts WHERE events_fts MATCH 'zanzib*'"
    assert cli.json("query", sql, "--format", "json") == [{"rowid": 2}]
    code, _, err = cli("query", "INSERT INTO events_fts(events_fts) VALUES ('delete-all')")
    assert (code, "only reading is allowed" in err) == (1, True)


@pytest.mark.parametrize(
    ("name", "param"),
    [
        ("longest-holds", "limit=x"),
        ("longest-holds", "limit=nan"),
        ("attempt-gaps", "seconds=inf"),
        ("unused-receipts", "now=yesterday"),
    ],
)
def test_a_parameter_that_is_no_number_or_time_is_a_usage_error(cli, name, param):
    code, out, err = cli("query", name, "--param", param)
    assert (code, out) == (2, "")
    assert "--param" in err


def _seqs(cli, *words):
    return [row["seq"] for row in cli.json("query", *words, "--format", "json")]


def test_a_number_given_on_the_command_line_is_compared_as_a_number(cli):
    """A user's parameter is text, which SQLite holds to be more than any number."""
    stories.plan_run(cli)
    with_default = _seqs(cli, "attempt-gaps")
    assert set(_seqs(cli, "attempt-gaps", "--param", "seconds=0")) > set(with_default)
    assert _seqs(cli, "attempt-gaps", "--param", "seconds=600.0") == with_default
    often = {row["actor"]: row["n"] for row in cli.json("query", "SELECT actor, count(*) AS n FROM events GROUP BY 1", "--format", "json")}  # fmt: skip
    for most in (1, 2, 5, 1000):
        found = cli.json("query", "lonely-actors", "--param", f"most={most}", "--format", "json")
        assert {row["actor"] for row in found} == {actor for actor, n in often.items() if n <= most}
    assert len(_seqs(cli, "longest-holds", "--param", "limit=1.5")) == 1


def test_every_number_is_cast_where_it_is_compared():
    for name, query in NAMED.items():
        for given, default in query.params.items():
            if isinstance(default, int):
                assert query.sql.count(f":{given}") == query.sql.count(f"CAST(:{given} AS "), name


def test_what_a_lonely_actor_did_is_one_event(told):
    for row in told.ask("lonely-actors", most=1000):
        event = told.db.execute("SELECT * FROM events WHERE seq = ?", [row["seq"]]).fetchone()
        assert all(row[name] == event[name] for name in ("actor", "recorded_at", "type", "stream", "via"))


def test_a_time_is_taken_in_every_form_that_gatebook_reads(cli):
    stories.plan_run(cli)
    plain = cli.json("query", "unused-receipts", "--param", "now=2026-12-01T00:00:00Z", "--format", "json")
    odd = cli.json("query", "unused-receipts", "--param", "now=20261201t020000+0200", "--format", "json")
    assert odd == plain


def test_json_names_each_column_once_and_has_a_word_for_infinity(cli):
    sql = "SELECT 1 AS a, 2 AS a, 9e999 AS b, NULL AS c"
    row = {"a": 1, "a_2": 2, "b": "inf", "c": None}
    assert cli.json("query", sql, "--format", "json") == [row]
    assert cli.json("query", sql, "--format", "nl") == row


def test_sql_on_lines_of_its_own_and_the_columns_of_a_table(cli):
    assert cli.json("query", "SELECT\n1\nAS\nn", "--format", "json") == [{"n": 1}]
    columns = cli.json("query", "PRAGMA table_info(circuits)", "--format", "json")
    assert "stream" in [column["name"] for column in columns]


def test_an_endless_query_hears_ctrl_c(cli):
    import signal
    import threading

    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
    threading.Timer(1.0, signal.raise_signal, [signal.SIGINT]).start()
    code, out, err = cli("query", endless)
    assert (code, out, err) == (130, "", "gatebook: interrupted\n")
