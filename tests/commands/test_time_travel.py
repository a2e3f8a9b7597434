"""Time travel over a long stream: each moment is the fold's own, at the cost of one snapshot's distance."""

from __future__ import annotations

import pytest
import stories

from ledger.access import open_ledger
from ledger.event import Origin
from projections import circuit
from projections.engine import SNAPSHOT_EVERY, Proposal, submit
from projections.times import DAY, SECOND, print_time

COUNT = 3000
STREAM = "circuit/openai|codex"


@pytest.fixture
def long(cli):
    """One circuit that failed `COUNT` times: event seq = failure_count + 1."""
    ledger = open_ledger(cli.ledger)
    for start in range(0, COUNT, 1000):

        def decide(world, start=start):
            now = world.clock - world.clock % SECOND
            return [
                Proposal(
                    STREAM,
                    "circuit.opened",
                    circuit.Opened("openai", "codex", "quota", print_time(now), n + 1, print_time(now + DAY)),
                )
                for n in range(start, start + 1000)
            ]

        submit(ledger, Origin("cli:x", "test"), decide)
    ledger.close()
    return cli


@pytest.fixture
def folded(monkeypatch):
    """How many events were folded since."""
    calls = []
    evolve = circuit.evolve
    monkeypatch.setattr(circuit, "evolve", lambda state, fact: calls.append(fact.seq) or evolve(state, fact))
    return calls


@pytest.mark.parametrize("at", [2, 3, SNAPSHOT_EVERY + 1, SNAPSHOT_EVERY + 2, 1500, COUNT, COUNT + 1])
def test_a_moment_is_the_fold_up_to_it_and_costs_no_more_than_a_snapshots_distance(long, folded, at):
    found = long.json("state", "circuits", "openai|codex", "--at", str(at), "--json")
    assert found["state"]["failure_count"] == at - 1
    assert found["seq"] == at
    assert found["hash"] == long.plain(f"SELECT lower(hex(hash)) FROM events WHERE seq = {at}")[0][0]
    assert found["fold"] == circuit.FOLD
    assert len(folded) < SNAPSHOT_EVERY


def test_a_snapshot_that_was_changed_is_not_used(long, folded):
    long.sql("UPDATE snapshots SET state = CAST(replace(CAST(state AS TEXT), 'quota', 'rumor') AS BLOB)")
    found = long.json("state", "circuits", "openai|codex", "--at", "2000", "--json")
    assert (found["state"]["reason"], found["state"]["failure_count"]) == ("quota", 1999)
    assert len(folded) == 1999


def test_a_difference_names_the_fields_and_the_events_that_changed_them(long, folded):
    found = long.json("diff", "circuits", "openai|codex", "--from", "1400", "--to", "1403", "--json")
    assert {"field": "failure_count", "from": 1399, "to": 1402} in found["changes"]
    assert found["events"] == [1401, 1402, 1403]
    assert len(folded) < 3 * SNAPSHOT_EVERY


def test_replay_says_how_fast_it_went_and_that_the_views_agree(long):
    long.ok("query", "SELECT count(*) FROM events")
    assert "events/s" in long.ok("replay", "--rate")


def test_only_events_that_changed_what_is_shown_are_named_and_lists_are_compared_item_by_item(cli):
    import stories

    seqs = stories.plan_run(cli)
    key = stories.RUN.partition("/")[2]
    found = cli.json(
        "diff", "plan", key, "--from", str(seqs["proposed"]), "--to", str(seqs["finalized"]), "--json"
    )
    assert seqs["approved"] in found["events"]
    assert seqs["prepared"] not in found["events"]
    assert seqs["result1"] not in found["events"]
    text = cli.ok("diff", "marker", key, "--from", str(seqs["approved"]), "--to", str(seqs["claimed"]))
    assert "  marker: null -> {" in text


def test_one_item_of_a_list_is_named_by_its_place():
    from commands.state import _changes

    old, new = {"items": [{"d": None}, {"d": 1}]}, {"items": [{"d": "approve"}, {"d": 1}]}
    assert list(_changes(old, new)) == [{"field": "items[0].d", "from": None, "to": "approve"}]
    assert [change["field"] for change in _changes({"a": [1]}, {"a": [1, 2]})] == ["a"]


def test_text_says_that_a_key_has_no_event_and_that_a_moment_is_before_the_first(cli):
    assert "(no event of run/nosuch in this ledger)" in cli.ok("state", "plan", "nosuch")
    assert "(no event of run/nosuch in this ledger)" in cli.ok(
        "diff", "plan", "run/nosuch", "--from", "0", "--to", "1"
    )
    assert cli.ok("state", "plan", "--at", "0").startswith("plan before the first event")


def test_a_restored_probe_and_lock_are_nobodys():
    from projections import session

    probed = circuit.State("quota", 1, SECOND, DAY, probe_claimed_at=DAY, probe_seq=5)
    assert circuit.show(STREAM, circuit.voided(probed, 6))["probe_claimed_at"] is None
    assert circuit.voided(probed, 5) == probed
    lock = session.Lock("n", "t", True, 7, "s", "b", "ns", "h", "delivery", "codex", False, 5, 0)
    held = session.State(fence=1, lock=lock)
    assert session.STATES["sessions"]("session/x", session.voided(held, 6))["locked_by"] is None
    assert session.voided(held, 5) == held


class _UntilConsumed:
    """Records a story up to the use of its receipt: everything in it is open then."""

    def __init__(self, cli):
        self.cli, self.done = cli, False

    def record(self, stream, type, *words, **more):
        self.done = self.done or type == "receipt.consumed"
        return 0 if self.done else self.cli.record(stream, type, *words, **more)


@pytest.fixture
def restored(cli):
    """A run, a receipt, a lock and a probe that are open; `head`, and after it a restore."""
    stories.plan_run(_UntilConsumed(cli))
    stories.review(cli)
    for type in ("circuit.opened", "circuit.probed"):
        data = {"provider": "openai", "executor": "codex", "at": "2026-11-30T09:00:00Z"}
        more = {"reason": "quota", "failure_count": 1, "unavailable_until": "2026-11-30T09:10:00Z"}
        data |= more if type == "circuit.opened" else {}
        cli.head = cli.record(STREAM, type, data)
    cli.ok("rebuild")
    cli.record("ledger", "ledger.restored", {"after": cli.head, "after_hash": "0" * 64})
    return cli


@pytest.mark.parametrize(
    ("name", "key", "field", "void"),
    [
        ("marker", "1-2026-11-30", None, None),
        ("runs", "1-2026-11-30", "state", "proposed"),
        ("receipts", "r-1", "closed", "voided by the restore at event {}"),
        ("sessions", stories.SESSION[8:], "locked_by", None),
        ("circuits", "openai|codex", "probe_claimed_at", None),
    ],
)
def test_what_a_restore_voided_is_not_shown_as_open(restored, name, key, field, void):
    def found(at):
        state = restored.json("state", name, key, "--at", str(at), "--json")["state"]
        return state if field is None else state[field]

    void = void.format(restored.head + 1) if void else None
    assert found(restored.head) != void
    assert found(restored.head + 1) == void
    here, there = str(restored.head), str(restored.head + 1)
    changed = restored.json("diff", name, key, "--from", here, "--to", there, "--json")
    assert changed["events"] == [restored.head + 1]
    assert changed["changes"]


def test_the_views_that_caught_up_with_a_restore_are_those_made_anew(restored):
    assert restored.json("query", "SELECT * FROM markers", "--format", "json") == []
    assert restored.json("query", "SELECT closed FROM receipts", "--format", "json") == [
        {"closed": f"voided by the restore at event {restored.head + 1}"}
    ]
    assert restored.json("rebuild", "--check")["ok"] is True
    assert restored.json("query", "longest-holds", "--format", "json")[0]["still_held"] == 0
    assert restored.json("query", "unused-receipts", "--format", "json")[0]["expired"] == 1


def test_a_hold_ends_in_the_picture_where_a_restore_voided_it(restored):
    from commands.timeline.command import picture

    ledger = open_ledger(restored.ledger)
    for name in (None, stories.RUN):
        items, _ = picture(ledger, name)
        holds = [item for item in items if item.lane == "marker 1-2026-11-30"]
        assert [item.detail.endswith("voided by a restore") for item in holds] == [True]
    ledger.close()
