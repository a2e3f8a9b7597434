"""The session aggregate: what may follow what. No event of a lawful log can be left out, forged or moved."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections import session_events as e
from projections.fact import Fact, Law, Unlawful
from projections.ledger_stream import initial as ledger_state
from projections.session import State, admit, evolve, initial
from projections.session_rules import STAGES, STEPS, missing_stage

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
D = "d" * 64
PINNED = e.Pinned(["docs/**"], skip_quality_polish=False, soft_limit_exec=3)


def tree(mark="a", head="1" * 40):
    return e.Tree(head, mark * 64, mark * 64)


def locked(fence=1, **more):
    fields = {"stop_after": "delivery", "runtime": "claude", "entry_point": "execute-from-plan", **more}
    return e.Locked(fence, UUID, "n", D, True, 7, "1", "b", "ns", "h", **fields)


def started(number, mark, *, executor=True, kind="exec", source="user-supplied"):
    return e.RoundStarted(1, number, kind, executor, source, source, D, tree(mark))


def executed(number, mark, attempt=1, count=1):
    return e.RoundExecuted(1, number, attempt, D, 9, D, count, count == 0, tree(mark))


def reviewed(number, mark, *criticals, attempt=1):
    verdict = "REQUEST_CHANGES" if criticals else "APPROVE"
    return e.RoundReviewed(1, number, attempt, D, 9, verdict, mark * 64, list(criticals), 0)


def gate(mark, verdict="APPROVE", convergence=1, reason=""):
    return e.GateReturned(1, convergence, verdict, mark * 64, D, reason)


def minted(stage, mark):
    return e.Minted(1, stage, mark * 64, "test")


def step(stage, name, mark, *, outcome="clean", paths=(), tools=1, eligible=False):
    return e.StepRecorded(
        1, stage, name, "agent", tools, outcome, tree(mark), list(paths), D if paths else "", eligible
    )


def scanned(mark, outcome="clean", flagged=0):
    return e.Scanned(1, outcome, tree(mark), flagged)


TYPES = {struct: name for name, struct in e.EVENTS.items()}


def opening(source="user-supplied"):
    return [locked(), e.Opened(1, UUID, "execute-from-plan", source, tree("a"), PINNED)]


def to_exec(mark="b"):
    return [
        *opening(),
        started(1, "a"),
        executed(1, mark),
        reviewed(1, mark),
        gate(mark),
        minted("exec", mark),
    ]


def rounds(*criticals):
    """One executor round after the other, each with another finding."""
    log = opening()
    for number, critical in enumerate(criticals, 1):
        now, then = "abcdef"[number - 1 : number + 1]
        log += [started(number, now), executed(number, then), reviewed(number, then, critical)]
    return log


def discarded():
    return step("polish", "static-analysis", "b", outcome="discarded", tools=0)


def to_docs(mark="b"):
    log = to_exec(mark)
    for stage, names in STEPS.items():
        log += [step(stage, name, mark) for name in names] + [minted(stage, mark)]
    return log


def to_delivery(mark="b"):
    return [*to_docs(mark), scanned(mark), minted("security", mark), e.Completed(1, mark * 64, D)]


def fold(events, *, law=None):
    """Admit and fold; returns the state."""
    state = initial(f"session/{UUID}")
    law = law or Law(lambda _stream: ledger_state("ledger"))
    for seq, data in enumerate(events, 1):
        fact = Fact(seq, f"session/{UUID}", seq, TYPES[type(data)], data, seq * 1_000_000, "cli:t", "test")
        admit(state, fact, law)
        state = evolve(state, fact)
    return state


def refused(events, reason="may not follow"):
    with pytest.raises(Unlawful, match=reason):
        fold(events)


def test_a_whole_session_is_lawful_and_its_state_survives_a_snapshot():
    state = fold(to_delivery())
    assert state.delivered
    assert list(state.stages) == list(STAGES)
    assert msgspec.json.decode(msgspec.json.encode(state), type=State) == state


@given(st.data())
def test_no_event_of_a_lawful_log_can_be_left_out(data):
    log = to_delivery()
    place = data.draw(st.integers(0, len(log) - 2))
    refused(log[:place] + log[place + 1 :])


@given(st.data())
@settings(max_examples=200)
def test_no_two_neighbours_of_a_lawful_log_can_be_swapped(data):
    log = to_delivery()
    place = data.draw(st.integers(0, len(log) - 2))
    refused([*log[:place], log[place + 1], log[place], *log[place + 2 :]])


@given(st.data())
def test_no_event_can_stand_twice(data):
    log = to_delivery()
    place = data.draw(st.integers(0, len(log) - 1))
    refused([*log[: place + 1], log[place], *log[place + 1 :]])


@given(st.data())
def test_another_fence_writes_nothing(data):
    log = to_delivery()
    place = data.draw(st.integers(1, len(log) - 1))
    fence = data.draw(st.sampled_from([0, 2]))
    refused([*log[:place], msgspec.structs.replace(log[place], fence=fence)], "fence")


@given(st.data())
def test_no_stage_stands_for_a_tree_that_nobody_approved(data):
    """Whatever lawful mix of events there was, delivery needs all stages for one and the same tree."""
    moves = [
        started(1, "a"), started(2, "b"), started(2, "a"), executed(1, "b"), executed(1, "a", count=0), executed(2, "c"),
        reviewed(1, "b"), reviewed(1, "a"), reviewed(1, "b", "x"), reviewed(2, "c"), gate("b"), gate("a"),
        gate("b", "REQUEST_CHANGES"), gate("b", "SKIP", reason="runtime-error"), gate("c", convergence=2),
        *(minted(stage, mark) for stage in STAGES for mark in "abc"),
        *(step(stage, name, mark) for stage, names in STEPS.items() for name in names for mark in "ab"),
        scanned("a"), scanned("b"), e.Cleared(1, "x"), e.Verified(1, tree("b")), e.Completed(1, "b" * 64, D), e.Completed(1, "a" * 64, D),
    ]  # fmt: skip
    state = fold(opening())
    law = Law(lambda _stream: ledger_state("ledger"))
    approved = set()
    for seq in range(3, data.draw(st.integers(4, 30))):
        lawful = []
        for move in moves:
            fact = Fact(seq, f"session/{UUID}", seq, TYPES[type(move)], move, seq, "cli:t", "test")
            try:
                admit(state, fact, law)
            except Unlawful:
                continue
            lawful.append(fact)
        if not lawful:
            return
        fact = data.draw(st.sampled_from(lawful))
        state = evolve(state, fact)
        if fact.type == "round.reviewed" and fact.data.verdict == "APPROVE":
            approved.add(fact.data.fingerprint)
        if fact.type == "stage.minted":
            assert fact.data.fingerprint in approved
            assert set(state.stages.values()) == {fact.data.fingerprint}
        if fact.type == "delivery.completed":
            assert missing_stage(state.stages, fact.data.fingerprint) is None


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([locked(2)], "rise by one"),
        ([locked(), locked(2)], "locked already"),
        ([locked(stop_after="never")], "unknown"),
        ([*opening(), started(2, "a")], "one by one"),
        ([*opening(), started(1, "b")], "last known"),
        ([*opening(), started(1, "a", source="review-only")], "prompt block"),
        ([*opening(), started(1, "a", executor=False)], "first round of a review-only"),
        ([*opening("review-only"), started(1, "a", source="review-only")], "first round of a review-only"),
        ([*opening(), started(1, "a"), reviewed(1, "a")], "waits for executor"),
        ([*opening(), started(1, "a"), executed(1, "b", attempt=2)], "attempts"),
        (
            [*opening(), started(1, "a"), e.RoundExecuted(1, 1, 1, D, 9, D, 1, False, tree("b", "2" * 40))],
            "moved HEAD",
        ),
        ([*opening(), started(1, "a"), executed(1, "b"), reviewed(1, "c")], "changed since"),
        ([*to_exec(), started(2, "b")], "clears the stages first"),
        ([*to_exec(), gate("b")], "once"),
        ([*to_exec(), step("docs", "project-docs", "b")], "not due"),
        ([*to_exec(), step("polish", "simplify", "b")], "next step is static-analysis"),
        ([*to_exec(), step("polish", "static-analysis", "c")], "do not fit the tree"),
        ([*to_exec(), step("polish", "static-analysis", "b", tools=0)], "no tool"),
        (
            [
                *to_exec(),
                step("polish", "static-analysis", "c", outcome="written", paths=["x"], eligible=True),
            ],
            "can be eligible",
        ),
        ([*to_exec(), scanned("b")], "follows docs"),
        ([*to_docs(), scanned("b", "clean", 1)], "halt"),
        ([*to_docs(), e.Carried(1, "b" * 64, "c" * 64, D, 1)], "fast replay"),
        ([*to_docs(), e.Completed(1, "b" * 64, D)], "do not stand"),
        ([*to_exec(), e.Blocked(1, "lunch", "x")], "unknown block"),
        ([*to_exec(), e.Unblocked(1, "exec", "flag")], "nothing is blocked"),
        ([*to_exec(), e.DriftAccepted(1, "newly-dirty", "flag", tree("c"), PINNED)], "was not found"),
        ([*to_exec(), e.DriftDetected(1, "mood", tree("c"))], "unknown reason"),
        (
            [
                *to_exec(),
                e.DriftDetected(1, "newly-dirty", tree("c")),
                step("polish", "static-analysis", "b"),
            ],
            "not answered",
        ),
        ([*to_exec(), e.Blocked(1, "polish", "x"), step("polish", "static-analysis", "b")], "blocked"),
        ([*rounds("x", "y", "z"), started(4, "d")], "soft_limit_exec: 3"),
        ([*opening(), started(1, "a"), executed(1, "a")], "what the trees say"),
        ([*opening(), started(1, "a"), executed(1, "b", count=0)], "what the trees say"),
        ([*opening(), started(1, "a"), e.RoundRejected(1, 1, "judge", 1, "x", D)], "unknown role"),
        ([*opening(), e.Cleared(1, "x")], "no stage and no write"),
        ([*to_exec()[:-2], e.Cleared(1, "x")], "no stage and no write"),
        ([*to_delivery(), e.Cleared(1, "x")], "delivered"),
        ([*to_exec()[:-2], gate("b", "SKIP", reason="late")], "unknown reason to skip"),
        ([*to_exec()[:-2], e.Verified(1, tree("c")), gate("b")], "approved"),
        ([*to_exec()[:-1], e.Verified(1, tree("c")), minted("exec", "b")], "last known"),
        ([*to_exec(), discarded(), discarded()], "discarded once"),
        ([*to_exec(), step("polish", "static-analysis", "b", outcome="skipped")], "no agent's work"),
        ([*to_exec(), step("polish", "static-analysis", "b", tools=-1)], "no agent's work"),
        ([*to_exec(), step("polish", "static-analysis", "b", outcome="reverted")], "only simplify"),
        ([*to_exec(), e.DriftDetected(1, "newly-dirty", tree("c")), e.DriftAccepted(1, "newly-dirty", "handsfree", tree("c"), PINNED)], "unknown answer"),
        ([*to_exec(), e.LockRecovered(1, "nobody")], "unknown answer"),
        ([*to_docs(), scanned("b"), minted("security", "b"), e.Committed(1, "2" * 40, "1" * 40, D, 0, tree("b"))], "no commit"),
        ([*to_exec(), e.Stopped(1, "before-polish")], "not the lock's"),
        ([*to_exec(), e.Stopped(1, "delivery")], "not the lock's"),
        ([locked(stop_after="before-docs"), *to_exec()[1:], e.Stopped(1, "before-docs")], "not reached"),
        ([locked(stop_after="exec-round"), *opening()[1:], started(1, "a"), e.Stopped(1, "exec-round")], "not reached"),
        ([locked(), e.Imported(1, UUID, "plan", "user-supplied", D, 9, "1" * 40, "1" * 40, tree("a"), PINNED, stages=["exec"], missing=["base_head"])], "no stages"),
        ([*to_exec(), e.Unlocked(1, "x"), step("polish", "static-analysis", "b")], "not locked"),
    ],
)  # fmt: skip
def test_what_may_not_follow(events, reason):
    refused(events, reason)


def test_the_gates_findings_need_a_later_approval():
    log = [*opening(), started(1, "a"), executed(1, "b"), reviewed(1, "b"), gate("b", "REQUEST_CHANGES")]
    refused([*log, minted("exec", "b")], "not repaired")
    repaired = [*log, started(2, "b"), executed(2, "c"), reviewed(2, "c")]
    refused([*repaired, gate("c")], "once")
    assert fold([*repaired, minted("exec", "c")]).stages == {"exec": "c" * 64}


def test_a_write_clears_and_a_new_convergence_has_its_own_gate():
    log = [*to_exec(), step("polish", "static-analysis", "c", outcome="written", paths=["x"])]
    refused([*log, step("polish", "code-review", "c")], "not settled")
    log += [e.Cleared(1, "a write"), started(2, "c"), executed(2, "c", count=0), reviewed(2, "c")]
    refused([*log, minted("exec", "c")], "gate has not run")
    state = fold([*log, gate("c", convergence=2), minted("exec", "c")])
    assert (state.stages, state.steps, state.step_writes) == ({"exec": "c" * 64}, [], {"static-analysis": 1})


def test_an_eligible_write_is_carried_by_the_approval_directly_before():
    log = to_exec()
    for name in STEPS["polish"]:
        log.append(step("polish", name, "b"))
    log += [
        minted("polish", "b"),
        step("docs", "project-docs", "c", outcome="written", paths=["R.md"], eligible=True),
    ]
    refused([*log, minted("docs", "c")])
    log += [started(2, "c", executor=False, kind="carry"), reviewed(2, "c")]
    carried = e.Carried(1, "b" * 64, "c" * 64, D, len(log))
    asked = [*log[:-1], reviewed(2, "c", "x")]
    refused([*asked, started(3, "c", executor=False, kind="carry")], "asked for changes")
    refused([*log, e.Verified(1, tree("c")), carried], "directly before")
    refused([*log, msgspec.structs.replace(carried, review=1)], "another")
    refused([*log, msgspec.structs.replace(carried, new="e" * 64)], "not those of the write")
    assert fold([*log, carried]).stages == {"exec": "c" * 64, "polish": "c" * 64}


def test_gitignore_is_written_only_after_it_was_planned_and_clears_the_stages():
    written = e.Scanned(1, "written", tree("c"), added=["logs"])
    refused([*to_docs(), written], "planned")
    refused([*to_docs(), e.Scanned(1, "planned", tree("b"))], "names what it will write")
    planned = e.Scanned(1, "planned", tree("b"), added=["logs"], planned=f"100644 {'1' * 40}")
    log = [*to_docs(), planned, written]
    refused([*log, scanned("c")], "follows docs")
    log.append(e.Cleared(1, "x"))
    assert fold(log).stages == {}
    log += [
        started(2, "c"),
        executed(2, "c", count=0),
        reviewed(2, "c"),
        gate("c", convergence=2),
        minted("exec", "c"),
    ]
    for stage, names in STEPS.items():
        log += [step(stage, name, "c") for name in names] + [minted(stage, "c")]
    again = e.Scanned(1, "planned", tree("c"), added=["logs"], planned=f"100644 {'2' * 40}")
    refused([*log, again], "cap")
    fold([*log, scanned("c")])


def test_a_step_that_was_started_is_recorded_once_it_ran():
    log = [*to_exec(), step("polish", "static-analysis", "b", outcome="started", tools=0)]
    assert fold(log).running == "static-analysis"
    state = fold([*log, step("polish", "static-analysis", "b")])
    assert (state.running, state.steps) == ("", ["static-analysis"])


def test_a_recovered_lock_raises_the_fence_and_a_restore_voids_it():
    log = [*to_exec(), e.LockRecovered(1, "flag"), locked(2)]
    state = fold(log)
    assert (state.fence, state.stages) == (2, {"exec": "b" * 64})
    refused([*log, step("polish", "static-analysis", "b")], "fence 1")
    with pytest.raises(Unlawful, match="not locked"):
        fold(to_exec(), law=Law(lambda _stream: ledger_state("ledger"), void_before=100))


def test_the_same_critical_is_counted_in_a_row():
    log = opening()
    marks = "abcde"
    for number in (1, 2, 3):
        log += [
            started(number, marks[number - 1]),
            executed(number, marks[number]),
            reviewed(number, marks[number], "x"),
        ]
    state = fold(log)
    assert (state.review.repeats, state.exec_rounds) == (3, 3)
    refused([*log, started(4, "d")], "3 rounds in a row")
    refused([*log, e.Blocked(1, "exec", "x"), e.Unblocked(1, "exec", "nobody")], "unknown answer")
    log += [
        e.Blocked(1, "exec", "x"),
        e.Unblocked(1, "exec", "person"),
        started(4, "d"),
        executed(4, "e"),
        reviewed(4, "e", "y"),
    ]
    assert fold(log).review.repeats == 1


def test_other_criticals_that_overlap_from_round_to_round_are_not_the_same_one():
    log = opening()
    for number, found in ((1, "ab"), (2, "bc"), (3, "cd")):
        now, then = "abcd"[number - 1], "abcd"[number]
        log += [started(number, now), executed(number, then), reviewed(number, then, *found)]
    assert fold(log).review.repeats == 2


def test_an_accepted_drift_clears_everything_and_counts_anew():
    log = [
        *to_docs(),
        e.DriftDetected(1, "newly-dirty", tree("c")),
        e.DriftAccepted(1, "newly-dirty", "flag", tree("c"), PINNED),
    ]
    state = fold(log)
    assert (state.stages, state.exec_rounds, state.known.fingerprint) == ({}, 0, "c" * 64)
    assert state.base == state.verified == state.known
