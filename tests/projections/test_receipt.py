"""A receipt's stream: whatever is tried, single use stays single, and nothing follows the end."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections import receipt as r
from projections.fact import Fact, Law, Unlawful
from projections.ledger_stream import State as LedgerState
from projections.receipt_form import issued_digest

ID = "a" * 32
HOUR = 3_600_000_000
ISSUED_AT, EXPIRES_AT = "2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z"
START = 1_796_032_800_000_000


def issued(**more):
    fields = {
        "receipt_id": ID, "version": 1, "issued_at": ISSUED_AT, "expires_at": EXPIRES_AT, "origin": "https://c.edu", "course_id": "1", "target_type": "quiz",
        "target_id": "7", "actions": ("quiz.answer", "quiz.complete", "quiz.retake", "quiz.start"), "session_id": "s", "user": "u",
        "authority_reference": r.Reference("words", "b" * 32, "c" * 64), "nonce": "d" * 32, "signature": "e" * 128, **more,
    }  # fmt: skip
    return r.Issued(**fields)


class Log:
    def __init__(self, first=None, stream=f"receipt/{ID}", others=None):
        self.stream = stream
        self.state = r.initial(stream)
        self.law = Law(
            lambda name: (others or {}).get(name, LedgerState() if name == "ledger" else r.State())
        )
        self.seq = 1
        if first is not None:
            assert self.try_("receipt.issued", first)

    def try_(self, name, data, clock=START):
        self.seq += 1
        fact = Fact(self.seq, self.stream, self.seq, name, data, clock, "cli:t", "t")
        try:
            r.admit(self.state, fact, self.law)
        except Unlawful:
            return False
        self.state = r.evolve(self.state, fact)
        assert msgspec.json.decode(msgspec.json.encode(self.state), type=r.State) == self.state
        return True

    def use(self, action, clock=START, **more):
        from projections.receipt_rules import is_terminal, needs_evidence

        issued_one = self.state.issued
        known = issued_one is not None and action in issued_one.actions
        data = {
            "action": action, "receipt": issued_digest(issued_one) if issued_one else "f" * 64, "count": self.state.uses.get(action, 0) + 1,
            "terminal": known and is_terminal(action, self.state.uses, list(issued_one.actions)), "origin": "https://c.edu", "course_id": "1",
            "target_type": "quiz", "target_id": "7", "session_id": "s", "user": "u", "verification": "0" * 64 if needs_evidence(action) else "", **more,
        }  # fmt: skip
        return self.try_("receipt.consumed", r.Consumed(**data), clock)


def test_the_clock_of_the_tests_is_the_time_of_issue():
    from projections.times import parse_time

    assert parse_time(ISSUED_AT) == START


def test_a_malformed_receipt_is_not_issued():
    for change in (
        {"receipt_id": "b" * 32}, {"version": 2}, {"origin": "https://C.edu"}, {"expires_at": ISSUED_AT}, {"actions": ()}, {"actions": ("quiz.start", "quiz.answer")},
        {"actions": ("assignment.comment",)}, {"actions": ("quiz.*",)}, {"user": ""}, {"synthetic_qa": True}, {"signature": "x"}, {"issued_at": "2026-11-30T10:02:01Z"},
        {"authority_reference": r.Reference("two words", "b" * 32, "c" * 64)}, {"rules": (r.Rule("quiz.start", 5, False),)}, {"expires_at": "2026-11-30T10:00:00.000001Z", "issued_at": "2026-11-30T09:00:00Z", "version": 3},
    ):  # fmt: skip
        assert not Log().try_("receipt.issued", issued(**change)), change
    assert not Log(issued()).try_("receipt.issued", issued())


def test_every_field_of_the_scope_is_the_receipts():
    for change in (
        {"origin": "https://d.edu"},
        {"course_id": "2"},
        {"target_id": "8"},
        {"target_type": "assignment"},
        {"session_id": "t"},
        {"user": "v"},
    ):
        assert not Log(issued()).use("quiz.start", **change)
    assert Log(issued()).use("quiz.start")


def test_counts_and_ends_are_what_the_rules_give():
    assert not Log(issued()).use("quiz.start", count=2)
    assert not Log(issued()).use("quiz.start", terminal=True)
    assert not Log(issued()).use("quiz.answer", verification="")
    assert Log(issued()).use("quiz.answer")


def test_expiry_is_judged_by_the_events_clock():
    assert Log(issued()).use("quiz.start", clock=START + HOUR - 1)
    assert not Log(issued()).use("quiz.start", clock=START + HOUR)


def test_a_restore_of_the_ledger_voids_an_open_receipt():
    log = Log(issued())
    log.law.void_before = log.seq + 1
    assert not log.use("quiz.start")


def test_a_child_is_never_more_than_its_parent():
    template = issued(target_type="automation_template", actions=("assignment.comment", "quiz.start"))
    parent = Log(template)
    child = {"receipt_id": "9" * 32, "parent_id": ID, "actions": ("quiz.start",)}

    def minted(**more):
        return Log(
            stream=f"receipt/{'9' * 32}", others={f"receipt/{ID}": parent.state, "ledger": LedgerState()}
        ).try_("receipt.issued", issued(**{**child, **more}))

    assert minted()
    assert not minted(actions=("quiz.answer", "quiz.start"))
    assert not minted(expires_at="2026-11-30T11:00:01Z")
    assert not minted(target_type="automation_template")
    assert not minted(course_id="2")
    assert parent.try_("receipt.revoked", r.Revoked(ID))
    assert not minted()
    assert not Log(stream=f"receipt/{'9' * 32}", others={f"receipt/{ID}": Log(issued()).state}).try_(
        "receipt.issued", issued(**child)
    )


steps = st.lists(
    st.sampled_from(
        ["quiz.start", "quiz.answer", "quiz.complete", "quiz.retake", "quiz.event", "finalize", "revoke"]
    ),
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_no_order_of_uses_exceeds_a_count_or_follows_the_end(attempts):
    log = Log(issued())
    done, ended = [], False
    for step in attempts:
        if step == "finalize":
            accepted = log.try_("receipt.finalized", r.Finalized(ID))
            assert not accepted or "quiz.complete" in done
        elif step == "revoke":
            accepted = log.try_("receipt.revoked", r.Revoked(ID))
        else:
            accepted = log.use(step)
        if accepted:
            assert not ended
            done.append(step)
            ended = step in ("finalize", "revoke") or bool(log.state.closed)
    assert done.count("quiz.start") <= 1
    assert done.count("quiz.retake") <= 1
    assert done.count("quiz.complete") <= 2
    assert "quiz.event" not in done  # not among this receipt's actions


def refused(log, name, data, clock=START):
    fact = Fact(99, log.stream, 99, name, data, clock, "cli:t", "t")
    with pytest.raises(Unlawful) as error:
        r.admit(log.state, fact, log.law)
    return error.value


def consumed(action="quiz.start", **more):
    fields = {
        "action": action, "receipt": "f" * 64, "count": 1, "terminal": False, "origin": "https://c.edu", "course_id": "1", "target_type": "quiz", "target_id": "7",
        "session_id": "s", "user": "u", **more,
    }  # fmt: skip
    return r.Consumed(**fields)


def test_what_was_never_issued_is_neither_used_nor_closed():
    assert refused(Log(), "receipt.consumed", consumed()).record_as == "receipt.denied"
    assert "no such receipt" in str(refused(Log(), "receipt.revoked", r.Revoked(ID)))
    assert "not the stream's" in str(refused(Log(issued()), "receipt.revoked", r.Revoked("b" * 32)))


def test_a_use_without_evidence_is_denied_by_that_name():
    assert (
        refused(Log(issued()), "receipt.consumed", consumed("quiz.answer")).reason == "verification_missing"
    )


def test_a_child_ends_with_its_parent_and_has_no_rule_of_its_own():
    template = issued(
        target_type="automation_template",
        actions=("quiz.peek", "quiz.start"),
        rules=(r.Rule("quiz.peek", 1, False),),
    )
    parent = Log(template)
    states = {f"receipt/{ID}": parent.state, "ledger": LedgerState()}
    child = issued(
        receipt_id="9" * 32,
        parent_id=ID,
        actions=("quiz.peek", "quiz.start"),
        rules=(r.Rule("quiz.peek", 9, False),),
    )
    assert "no more actions" in str(
        refused(Log(stream=f"receipt/{'9' * 32}", others=states), "receipt.issued", child)
    )
    log = Log(
        issued(receipt_id="9" * 32, parent_id=ID, actions=("quiz.start",)),
        stream=f"receipt/{'9' * 32}",
        others=states,
    )
    assert parent.try_("receipt.revoked", r.Revoked(ID))
    states[f"receipt/{ID}"] = parent.state
    assert "parent was closed" in str(refused(log, "receipt.consumed", consumed()))


def test_a_use_names_the_receipt_that_was_issued_and_no_other():
    assert refused(Log(issued()), "receipt.consumed", consumed()).reason == (
        "the digest is not that of the receipt that was issued"
    )
    assert Log(issued()).try_("receipt.consumed", consumed(receipt=issued_digest(issued())))


def test_an_agent_session_issues_no_receipt_of_its_own_but_may_delegate():
    for actor in ("codex:t-1", "claude:x", "agent:x"):
        fact = Fact(2, f"receipt/{ID}", 1, "receipt.issued", issued(), START, actor, "t")
        with pytest.raises(Unlawful, match="an agent session"):
            r.admit(r.State(), fact, Log().law)
    template = Log(issued(target_type="automation_template", actions=("quiz.start",)))
    law = Log(others={f"receipt/{ID}": template.state, "ledger": LedgerState()}).law
    child = issued(receipt_id="9" * 32, parent_id=ID, actions=("quiz.start",))
    r.admit(r.State(), Fact(3, f"receipt/{'9' * 32}", 1, "receipt.issued", child, START, "codex:t", "t"), law)
    other = issued(
        receipt_id="9" * 32, parent_id=ID, actions=("quiz.start",), authority_reference=r.Reference("else", "b" * 32, "c" * 64)
    )  # fmt: skip
    with pytest.raises(Unlawful, match="its parent's authority"):
        r.admit(
            r.State(), Fact(3, f"receipt/{'9' * 32}", 1, "receipt.issued", other, START, "codex:t", "t"), law
        )
