"""The dispatch aggregate: what may follow what, told by admission alone, for every order of events."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections import dispatch
from projections.dispatch import State
from projections.dispatch_events import (
    Approved,
    Attempted,
    Blocked,
    Captured,
    Concluded,
    Needed,
    Passed,
    Recalled,
    Requested,
    Returned,
    Selected,
    Verified,
    mark,
)
from projections.fact import Fact, Law, Unlawful
from projections.ledger_stream import State as LedgerState

NAME = "ab" * 32
STREAM = f"dispatch/{NAME[:32]}"
ZERO = "0" * 64
WHAT = mark(NAME, "push")


class Story:
    """A stream that is told event by event; `seq` counts on, `void` voids what came before it."""

    def __init__(self):
        self.state = dispatch.initial(STREAM)
        self.seq = 1
        self.void = 0

    def tell(self, data, actor="agent:parent", stream=STREAM):
        self.seq += 1
        name = next(name for name, struct in dispatch.EVENTS.items() if type(data) is struct)
        fact = Fact(self.seq, stream, 1, name, data, 1_800_000_000_000_000, actor, "test")
        dispatch.admit(self.state, fact, Law(lambda _stream: LedgerState(), self.void))
        self.state = dispatch.evolve(self.state, fact)
        return self

    def refuses(self, data, reason, **more):
        before = msgspec.json.encode(self.state)
        with pytest.raises(Unlawful) as refusal:
            self.tell(data, **more)
        assert msgspec.json.encode(self.state) == before
        assert reason in refusal.value.reason
        return self


def requested(**more):
    fields = {
        "request": NAME,
        "digest": ZERO,
        "size": 1,
        "route": "taste",
        "context_mode": "fresh",
        "sandbox": "workspace-write",
        "folder": ZERO,
        "oracle": ZERO,
        "paths": ("p",),
    }
    return Requested(**{**fields, **more})


def selected(candidate="a@h", executor="native", **more):
    return Selected(candidate, "anthropic", executor, more.pop("resolution", "primary"), **more)


def attempted(number=1, candidate="a@h", executor="native", **more):
    fields = {
        "sandbox": "workspace-write",
        "worker": "worker:1",
        "packet": ZERO,
        "pins": ZERO,
        "paths": ("p",),
    }
    return Attempted(number, candidate, "anthropic", executor, **{**fields, **more})


def returned(number=1, status="succeeded", **more):
    return Returned(
        number,
        status,
        more.pop("target", ZERO),
        healthy=more.pop("healthy", status in ("succeeded", "failed")),
        **more,
    )


def outage(number=1, reason="quota"):
    return returned(number, "availability_failure", reason=reason)


def verified(number=1, proven=True, **more):
    fields = {"ended": "exit", "target": ZERO, "oracle": ZERO}
    return Verified(number, proven, **{**fields, **more})


def told(*events):
    story = Story()
    for event in events:
        story.tell(event)
    return story


BEGUN = (requested(), selected(), attempted())
BACK = (*BEGUN, returned())


def test_the_lawful_way_to_acceptance():
    story = told(*BACK, verified(), Concluded("accepted", 1), Captured(2))
    assert (story.state.phase, story.state.status, story.state.captured) == ("concluded", "accepted", True)


@pytest.mark.parametrize(
    ("before", "event", "reason"),
    [
        ((), selected(), "not open"),
        ((), attempted(), "not open"),
        ((), returned(), "not open"),
        ((), verified(), "not open"),
        ((), Concluded("abandoned", 0), "not open"),
        ((), Recalled(1, truncated=False), "not open"),
        ((), Captured(1), "only after a proven and accepted"),
        ((), requested(sandbox="everything"), "sandbox"),
        ((), requested(sandbox="read-only"), "sandbox"),
        ((), requested(paths=()), "sandbox"),
        ((), requested(context_mode="stale"), "context mode"),
        ((), requested(digest="x"), "digest"),
        ((), Blocked(NAME, "mood"), "unknown reason"),
        ((requested(),), requested(), "open already"),
        ((requested(),), attempted(), "no candidate is selected"),
        ((requested(),), returned(), "no such attempt"),
        ((requested(),), verified(), "only a returned"),
        ((requested(),), Concluded("accepted", 0), "proof"),
        ((requested(),), Concluded("failed", 0), "nothing has returned"),
        ((requested(),), Concluded("blocked", 0), "dispatch.blocked"),
        ((requested(),), Concluded("done", 0), "unknown status"),
        ((requested(),), Concluded("abandoned", 1), "number of attempts"),
        ((requested(),), selected(resolution="other"), "primary or fallback"),
        ((requested(),), selected(passed=(Passed("b@h", "mood"),)), "pass a candidate over"),
        ((requested(), selected()), attempted(candidate="b@h"), "not the selected"),
        ((requested(), selected()), attempted(executor="codex"), "not the selected"),
        ((requested(), selected()), attempted(2), "counted"),
        ((requested(), selected()), attempted(worker=""), "another actor"),
        ((requested(), selected()), attempted(worker="agent:parent"), "another actor"),
        ((requested(), selected()), attempted(paths=("p", "q")), "wider"),
        ((requested(), selected()), attempted(tools=("t",)), "wider"),
        ((requested(), selected()), attempted(sandbox="danger-full-access"), "wider"),
        ((requested(sandbox="paths"), selected()), attempted(), "wider"),
        ((requested(), selected()), attempted(approvals=(5,)), "approvals"),
        ((requested(approvals=(Needed(WHAT),)), selected()), attempted(), "outstanding"),
        ((requested(approvals=(Needed(WHAT, 7),)), selected()), attempted(), "outstanding"),
        (BEGUN, selected("b@h"), "no end"),
        (BEGUN, attempted(2), "no candidate is selected"),
        (BEGUN, Blocked(NAME, "exhausted"), "no end"),
        (BEGUN, returned(2), "no such attempt"),
        (BEGUN, returned(status="fine"), "unknown ending"),
        (BEGUN, returned(violation="mood"), "unknown ending"),
        (BEGUN, returned(status="availability_failure"), "four reasons"),
        (BEGUN, returned(status="availability_failure", reason="missing_executor"), "four reasons"),
        (BEGUN, returned(reason="quota"), "four reasons"),
        (BEGUN, returned(status="availability_failure", reason="rate_limit", retry_at="2099-01-01T00:00:00Z"), "only quota"),
        (BEGUN, returned(status="killed", healthy=True), "no health"),
        (BEGUN, returned(status="availability_failure", reason="quota", healthy=True), "no health"),
        (BEGUN, verified(), "only a returned"),
        (BACK, selected("b@h"), "only an outage"),
        (BACK, Blocked(NAME, "exhausted"), "concluded, not blocked"),
        (BACK, Concluded("accepted", 1), "proof"),
        (BACK, verified(2), "only a returned"),
        (BACK, verified(exit=1), "what the evidence says"),
        (BACK, verified(contains=False), "what the evidence says"),
        (BACK, verified(withheld=True), "what the evidence says"),
        (BACK, verified(ended="timed out"), "what the evidence says"),
        (BACK, verified(target="1" * 64), "what the evidence says"),
        (BACK, verified(oracle="1" * 64), "what the evidence says"),
        (BACK, verified(proven=False), "what the evidence says"),
        ((*BACK, verified()), selected("b@h"), "only an outage"),
        ((*BACK, verified()), Captured(1), "only after a proven and accepted"),
        ((*BACK, verified(proven=False, exit=1)), Concluded("accepted", 1), "proof"),
        ((*BACK, verified(), Concluded("accepted", 1)), Concluded("accepted", 1), "not open"),
        ((*BACK, verified(), Concluded("failed", 1)), Captured(1), "only after a proven and accepted"),
        ((*BACK, verified(), Concluded("accepted", 1), Captured(1)), Captured(1), "already"),
        ((*BEGUN, returned(violation="commit")), verified(), "inside its authority"),
        ((*BEGUN, returned(unchanged_artifacts=1)), verified(), "inside its authority"),
        ((*BEGUN, returned(status="failed")), verified(), "inside its authority"),
        ((*BEGUN, returned(status="failed")), selected("b@h"), "only an outage"),
        ((*BEGUN, returned(status="killed")), selected("b@h"), "only an outage"),
        ((*BEGUN, outage()), selected(), "is unavailable"),
        ((*BEGUN, returned(status="availability_failure", reason="quota", violation="path")), selected("b@h"), "broke its authority"),
        ((*BEGUN, returned(status="missing_executor")), selected("b@h"), "executor is missing"),
        ((*BEGUN, outage()), Recalled(1, truncated=False), "before the first attempt"),
    ],
)  # fmt: skip
def test_what_may_not_follow_is_refused_and_changes_nothing(before, event, reason):
    told(*before).refuses(event, reason)


def test_an_attempt_after_an_outage_is_never_wider_than_the_one_before():
    story = told(
        requested(paths=("p", "q"), tools=("t",)),
        selected(),
        attempted(paths=("p",), sandbox="paths", tools=()),
        outage(),
        selected("b@h", "codex"),
    )
    for wide in (
        {"paths": ("q",), "sandbox": "paths"},
        {"sandbox": "workspace-write"},
        {"sandbox": "paths", "tools": ("t",)},
    ):
        story.refuses(attempted(2, "b@h", "codex", **wide), "wider")
    story.tell(attempted(2, "b@h", "codex", sandbox="read-only", paths=()))


def test_an_attempt_without_an_end_is_repeated_only_when_the_request_says_so():
    story = told(requested(repeatable=True), selected(), attempted(), selected(), attempted(2))
    assert [attempt.status for attempt in story.state.attempts] == ["lost", ""]
    story.refuses(returned(1), "no such attempt")


def test_the_executor_neither_verifies_nor_accepts_its_own_work():
    story = told(*BACK).refuses(verified(), "own work", actor="worker:1")
    story.tell(verified(), actor="agent:parent").refuses(
        Concluded("accepted", 1), "own work", actor="worker:1"
    )
    story = told(*BEGUN)
    story.tell(returned(), actor="codex:thread").refuses(verified(), "own work", actor="codex:thread")


def test_an_approval_counts_for_its_request_and_its_run():
    story = told(Approved(NAME, WHAT, "run", "n1"), requested(approvals=(Needed(WHAT),)), selected())
    story.refuses(attempted(), "approvals").tell(attempted(approvals=(2,)))
    story.tell(outage()).tell(Blocked(NAME, "exhausted")).tell(requested(approvals=(Needed(WHAT),))).tell(
        selected()
    )
    story.refuses(attempted(approvals=(2,)), "outstanding")
    story.refuses(Approved(NAME, WHAT, "run", "n1"), "nonce").refuses(
        Approved(NAME, WHAT, "always", "n2"), "scope"
    )
    seq = story.tell(Approved(NAME, WHAT, "request", "n2")).seq
    story.tell(attempted(approvals=(seq,))).tell(outage()).tell(Blocked(NAME, "exhausted"))
    story.tell(requested(approvals=(Needed(WHAT, seq),))).tell(selected()).tell(attempted(approvals=(seq,)))


def test_an_approval_that_a_restore_voided_is_shown_as_outstanding():
    story = Story().tell(requested(approvals=(Needed(WHAT),)))
    story.tell(Approved(NAME, WHAT, "request", "n1"))
    assert dispatch.show(STREAM, story.state)["outstanding_approvals"] == 0
    voided = dispatch.voided(story.state, story.seq + 1)
    assert dispatch.show(STREAM, voided)["outstanding_approvals"] == 1
    assert dispatch.voided(story.state, story.seq) == story.state


def test_a_restore_voids_what_was_open():
    story = told(Approved(NAME, WHAT, "request", "n1"), *BEGUN)
    story.void = story.seq + 1
    story.refuses(returned(), "voided").tell(Concluded("abandoned", 1))
    story.tell(requested(approvals=(Needed(WHAT),))).tell(selected())
    story.refuses(attempted(approvals=(2,)), "outstanding")


def test_an_event_in_the_wrong_stream_is_refused():
    for data in (requested(), Blocked(NAME, "malformed"), Approved(NAME, WHAT, "run", "n")):
        Story().refuses(data, "stream", stream="dispatch/" + "c" * 32)


def test_a_blocked_or_concluded_request_can_be_made_anew():
    story = told(
        requested(), Blocked(NAME, "exhausted"), *BACK, verified(), Concluded("accepted", 1), requested()
    )
    assert (story.state.phase, story.state.attempts, story.state.proven) == ("open", [], False)


EVERYTHING = [
    requested(), requested(repeatable=True), requested(approvals=(Needed(WHAT),)), Blocked(NAME, "exhausted"), Approved(NAME, WHAT, "run", "n1"),
    Approved(NAME, WHAT, "request", "n2"), selected(), selected("b@h", "codex", resolution="fallback", reason="quota"), attempted(), attempted(2, "b@h", "codex"),
    attempted(2), returned(), outage(), outage(2), returned(2), returned(status="failed"), returned(status="missing_executor"), verified(), verified(2),
    verified(proven=False, exit=1), Concluded("accepted", 1), Concluded("accepted", 2), Concluded("failed", 1), Concluded("abandoned", 1), Recalled(1, truncated=False),
    Captured(1),
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(EVERYTHING), max_size=40))
def test_whatever_is_tried_acceptance_always_follows_a_proof_and_the_state_survives_a_snapshot(events):
    story, lawful = Story(), []
    for event in events:
        try:
            story.tell(event)
        except Unlawful:
            continue
        lawful.append(event)
        state = story.state
        assert msgspec.json.decode(msgspec.json.encode(state), type=State) == state
        if isinstance(event, Concluded) and event.status == "accepted":
            last = max(i for i, earlier in enumerate(lawful) if isinstance(earlier, Returned))
            assert any(isinstance(later, Verified) and later.proven for later in lawful[last:])
        if isinstance(event, Captured):
            assert state.status == "accepted"
        assert sum(1 for attempt in state.attempts if not attempt.status) <= 1


def test_a_selection_is_the_primary_or_says_what_it_skipped_and_why():
    for wrong in (
        selected(skipped=("b@h",), reason="quota"), selected(resolution="fallback"), selected(resolution="fallback", reason="quota"),
        selected(resolution="fallback", skipped=("b@h",)), selected(reason="quota"),
    ):  # fmt: skip
        told(requested()).refuses(wrong, "skipped and why")
    told(requested(), selected(resolution="fallback", skipped=("b@h",), reason="quota"))


def test_an_independent_route_never_goes_to_who_wrote_the_target():
    told().refuses(requested(route="independent"), "needs the authoring providers")
    authors = requested(route="independent", authoring_providers=("anthropic",))
    told(authors).refuses(selected(), "authoring provider")
    told(requested(route="independent", authoring_providers=("openai",)), selected())
    told(requested(authoring_providers=("anthropic",)), selected())


def test_what_stands_under_half_a_digest_is_of_the_same_request():
    other = NAME[:32] + "0" * 32
    told(requested()).refuses(Blocked(other, "rubric"), "not the stream's")
    told(requested()).refuses(Approved(other, WHAT, "run", "n"), "not the stream's")
