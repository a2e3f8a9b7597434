"""The lawful order of a run: whatever is tried in whatever order, what admission lets in keeps the contract's promises."""

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from projections import plan_run as p
from projections import plan_run_events as e
from projections.approval_grammar import AnySkill, parse_approval
from projections.fact import Fact, Law, Unlawful
from projections.ledger_stream import State as LedgerState
from projections.receipt import State as ReceiptState

D = [str(digit) * 64 for digit in range(10)]
NONCES = [f"{number:032x}" for number in range(4)]
ITEMS = tuple(
    e.Item(place, "urgent" if place == 1 else "soon", "1", str(place), "canvas-a") for place in (1, 2, 3)
)
KEYS = [item.key for item in ITEMS]


def law_for(void_before=0):
    states = {"ledger": LedgerState(), "receipt/none": ReceiptState()}
    return Law(lambda stream: states.get(stream, ReceiptState()), void_before)


class Log:
    """A run's stream in memory: `try_` admits and folds one event, or says it was refused."""

    def __init__(self):
        self.state = p.initial("run/1-2026-11-30")
        self.law = law_for()
        self.seq = 1
        self.types = []

    def try_(self, name, data, content=None):
        self.seq += 1
        fact = Fact(
            self.seq,
            "run/1-2026-11-30",
            self.seq,
            name,
            data,
            self.seq,
            "cli:t",
            "t",
            content=content,
            content_digest="x" if content else None,
        )
        try:
            p.admit(self.state, fact, self.law)
        except Unlawful:
            return False
        self.state = p.evolve(self.state, fact)
        self.types.append(name)
        again = msgspec.json.decode(msgspec.json.encode(self.state), type=p.State)
        assert again == self.state  # a snapshot of any state is that state
        return True

    def must(self, name, data, content=None):
        assert self.try_(name, data, content), name


def approval(text, *, before, after=D[2], session="s1", nonce=NONCES[0], decisions=None):
    plan = {"items": [{"index": item.index, "bucket": item.bucket} for item in ITEMS]}
    decided = parse_approval(text, plan, skills=AnySkill())["decisions"] if decisions is None else decisions
    digest = blake3(nonce.encode() + text.encode()).hexdigest()
    return e.Approved(session, decided, before, after, nonce, digest)


def approved(text="1,3"):
    log = Log()
    log.must("plan.proposed", e.Proposed(D[0], D[1], D[0], ITEMS))
    log.must("plan.approved", approval(text, before=D[1]), text.encode())
    return log


def prepared(text="1,3"):
    log = approved(text)
    log.must("marker.claimed", e.Claimed("s1", D[2], "2026-11-30T10:00:00Z", NONCES[1]))
    log.must(
        "marker.prepared",
        e.Prepared("s1", NONCES[1], "2026-11-30T10:00:01Z", 0, tuple(log.state.approved_keys())),
    )
    return log


def handed(place, attempt=1, nonce=NONCES[1]):
    return e.HandedOff(place, KEYS[place - 1], "canvas-a", nonce, attempt)


def recorded(place, status="draft_ready", result=D[3], nonce=NONCES[1], **more):
    evidence = {"draft": D[8], "verification": D[9]} if status == "draft_ready" else {}
    return e.Recorded(place, KEYS[place - 1], nonce, status, result, D[4], **{**evidence, **more})


def not_approved(place, nonce=NONCES[1]):
    return e.Deferred(place, KEYS[place - 1], nonce, e.NOT_APPROVED, D[5], D[6])


def test_a_run_goes_from_plan_to_release():
    log = prepared()
    for step in (
        ("item.deferred", not_approved(2)),
        ("item.handed_off", handed(1)),
        ("result.recorded", recorded(1)),
        ("item.handed_off", handed(3)),
        ("result.recorded", recorded(3, "error")),
    ):
        log.must(*step)
    log.must("run.reported", e.Reported(D[7]))
    counts = {"draft_ready": 1, "skipped": 1, "error": 1}
    assert not log.try_("run.finalized", e.Finalized("s1", NONCES[1], D[2], D[7], {**counts, "error": 2}))
    log.must("run.finalized", e.Finalized("s1", NONCES[1], D[2], D[7], counts))
    log.must("marker.released", e.Released("s1", NONCES[1]))
    assert not log.try_("marker.claimed", e.Claimed("s1", D[2], "2026-11-30T11:00:00Z", NONCES[2]))


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("1", {"decisions": {"1": "approve", "2": "approve", "3": "defer"}}), ("1", {"decisions": {"1": "approve"}}), ("1", {"before": D[9]}), ("1", {"nonce": "x"}),
        ("1 or so", {"decisions": {"1": "approve", "2": "defer", "3": "defer"}}), ("1", {"decisions": {}}), ("1", {"decisions": {"a": "approve"}}), ("1", {"after": "x"}),
    ],
)  # fmt: skip
def test_an_approval_that_does_not_follow_from_its_words_is_unlawful(text, change):
    log = Log()
    log.must("plan.proposed", e.Proposed(D[0], D[1], D[0], ITEMS))
    assert not log.try_("plan.approved", approval(text, **{"before": D[1], **change}), text.encode())


def test_words_that_differ_from_their_digest_or_are_missing_are_unlawful_and_redacted_ones_are_counted():
    log = Log()
    log.must("plan.proposed", e.Proposed(D[0], D[1], D[0], ITEMS))
    data = approval("1", before=D[1])
    assert not log.try_("plan.approved", data, b"1 ")
    assert not log.try_("plan.approved", data, None)
    fact = Fact(
        9,
        "run/1-2026-11-30",
        9,
        "plan.approved",
        data,
        9,
        "cli:t",
        "t",
        content=None,
        content_digest="redacted",
    )
    p.admit(log.state, fact, log.law)
    assert log.law.skipped == 1


def test_while_a_marker_is_held_nothing_is_proposed_or_approved():
    log = prepared()
    assert not log.try_("plan.proposed", e.Proposed(D[0], D[8], D[0], ITEMS))
    assert not log.try_("plan.approved", approval("2", before=D[2], nonce=NONCES[3]), b"2")
    assert not log.try_("marker.claimed", e.Claimed("s1", D[2], "2026-11-30T11:00:00Z", NONCES[2]))


def test_a_resumed_claim_prepares_again_before_anything_else():
    log = prepared()
    log.must("marker.resumed", e.Resumed("s1", NONCES[1]))
    assert not log.try_("item.handed_off", handed(1))
    log.must(
        "marker.prepared",
        e.Prepared("s1", NONCES[1], "2026-11-30T10:00:01Z", 0, tuple(log.state.approved_keys())),
    )
    log.must("item.handed_off", handed(1))


def test_a_new_plan_voids_its_approval_and_a_claim_needs_the_session_and_digest_of_it():
    log = approved()
    for session, digest in (("s2", D[2]), ("s1", D[1])):
        assert not log.try_("marker.claimed", e.Claimed(session, digest, "2026-11-30T10:00:00Z", NONCES[1]))
    log.must("plan.proposed", e.Proposed(D[0], D[8], D[0], ITEMS))
    assert not log.try_("marker.claimed", e.Claimed("s1", D[2], "2026-11-30T10:00:00Z", NONCES[1]))
    assert not log.try_("plan.proposed", e.Proposed(D[9], D[7], D[0], ITEMS))


def test_a_restore_voids_approvals_and_claims():
    log = approved()
    log.law.void_before = log.seq + 1
    assert not log.try_("marker.claimed", e.Claimed("s1", D[2], "2026-11-30T10:00:00Z", NONCES[1]))
    log = prepared()
    log.law.void_before = log.seq + 1
    assert not log.try_("item.handed_off", handed(1))
    log.must("plan.approved", approval("2", before=D[2], after=D[8], nonce=NONCES[3]), b"2")
    log.must("marker.claimed", e.Claimed("s1", D[8], "2026-11-30T10:00:00Z", NONCES[2]))


def test_a_recovered_claim_is_fenced_out():
    log = prepared()
    log.must("item.handed_off", handed(1))
    entries = dict.fromkeys(KEYS, D[4])
    assert not log.try_(
        "marker.recovered", e.Recovered(D[7], "s1", NONCES[1], D[2], {}, tuple(KEYS[:2]), entries)
    )
    log.must("marker.recovered", e.Recovered(D[7], "s1", NONCES[1], D[2], {}, tuple(KEYS), entries))
    assert not log.try_("result.recorded", recorded(1))
    assert not log.try_(
        "marker.recovered", e.Recovered(D[7], "s1", NONCES[1], D[2], {}, tuple(KEYS), entries)
    )
    assert not log.try_("marker.claimed", e.Claimed("s1", D[2], "2026-11-30T10:00:00Z", NONCES[2]))


def test_a_submission_without_its_consumption_is_unlawful():
    log = prepared()
    log.must("item.handed_off", handed(1))
    assert not log.try_("result.recorded", recorded(1, "submitted", receipt_id="none"))
    log.must("result.recorded", recorded(1, "submitted", reason_code="already_submitted"))


nonces = st.sampled_from(NONCES)
places = st.sampled_from([1, 2, 3])
digests = st.sampled_from(D)
moves = st.one_of(
    st.tuples(st.just("plan.proposed"), st.builds(e.Proposed, st.just(D[0]), digests, st.just(D[0]), st.just(ITEMS)), st.none()),
    st.tuples(st.just("plan.approved"), st.builds(lambda before, after, nonce, session: approval("1,3", before=before, after=after, nonce=nonce, session=session), digests, digests, nonces, st.sampled_from(["s1", "s2"])), st.just(b"1,3")),
    st.tuples(st.just("marker.claimed"), st.builds(e.Claimed, st.sampled_from(["s1", "s2"]), digests, st.just("2026-11-30T10:00:00Z"), nonces), st.none()),
    st.tuples(st.just("marker.resumed"), st.builds(e.Resumed, st.sampled_from(["s1", "s2"]), nonces), st.none()),
    st.tuples(st.just("marker.prepared"), st.builds(e.Prepared, st.sampled_from(["s1", "s2"]), nonces, st.just("t"), st.just(0), st.sampled_from([(KEYS[0], KEYS[2]), ()])), st.none()),
    st.tuples(st.just("item.handed_off"), st.builds(handed, places, st.sampled_from([1, 2]), nonces), st.none()),
    st.tuples(st.just("item.deferred"), st.builds(lambda place, nonce, reason: e.Deferred(place, KEYS[place - 1], nonce, reason, "" if reason == e.INTERRUPTED else D[5], "" if reason == e.INTERRUPTED else D[6]), places, nonces, st.sampled_from([e.NOT_APPROVED, e.PAUSED, e.SKILL_MISSING, e.INTERRUPTED])), st.none()),
    st.tuples(st.just("result.recorded"), st.builds(recorded, places, st.sampled_from(e.STATUSES), digests, nonces), st.none()),
    st.tuples(st.just("run.reported"), st.builds(e.Reported, digests), st.none()),
    st.tuples(st.just("marker.released"), st.builds(e.Released, st.sampled_from(["s1", "s2"]), nonces), st.none()),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([Log, approved, prepared]), st.lists(moves, max_size=40))
def test_no_order_of_attempts_breaks_the_promises(start, attempts):
    log = start()
    open_one, ran, holder = None, set(), log.state.claim and log.state.claim.nonce
    for name, data, content in attempts:
        before = log.state.claim.nonce if log.state.claim else None
        was_ready = log.state.claim is not None and log.state.claim.is_ready
        if not log.try_(name, data, content):
            continue
        if name in ("plan.proposed", "plan.approved"):
            assert before is None, "nothing is decided while a marker is held"
        if name == "marker.claimed":
            assert before is None, "one owner"
            open_one, ran, holder = None, set(), data.nonce
        if name in ("item.handed_off", "item.deferred", "result.recorded"):
            assert was_ready, "results were prepared"
            assert data.nonce == holder, "an older claim is fenced out"
        if name == "item.handed_off":
            assert open_one is None, "one hand-off at a time"
            assert data.key in log.state.approved_keys(), "only approved items"
            assert data.key not in ran, "no item twice unless interrupted or paused"
            open_one = data.key
        if name == "result.recorded":
            assert open_one == data.key, "a result only after its hand-off"
            open_one = None
            ran.add(data.key)
        if name == "item.deferred" and data.reason == e.INTERRUPTED:
            assert open_one == data.key
            open_one = None
        if name == "run.reported":
            assert not log.state.missing()


def swapped():
    return prepared("swap 1 to canvas-b; swap 3 to canvas-c")


def handing():
    log = prepared()
    log.must("item.handed_off", handed(1))
    return log


def all_done():
    log = prepared()
    for step in (
        ("item.deferred", not_approved(2)),
        ("item.handed_off", handed(1)),
        ("result.recorded", recorded(1)),
        ("item.handed_off", handed(3)),
        ("result.recorded", recorded(3)),
    ):
        log.must(*step)
    return log


def reported():
    log = all_done()
    log.must("run.reported", e.Reported(D[7]))
    return log


def finalized():
    log = reported()
    log.must("run.finalized", e.Finalized("s1", NONCES[1], D[2], D[7], {"draft_ready": 2, "skipped": 1}))
    return log


def claimed_only():
    log = approved()
    log.must("marker.claimed", e.Claimed("s1", D[2], "2026-11-30T10:00:00Z", NONCES[1]))
    return log


def archived_one():
    log = claimed_only()
    log.must("result.archived", archive())
    return log


def archive(key=None, name=f"pre-{D[2][:20]}.json", nonce=NONCES[1]):
    return e.Archived(key or KEYS[0], name, D[8], nonce)


def preparation(keys=(KEYS[0], KEYS[2]), count=0):
    return e.Prepared("s1", NONCES[1], "2026-11-30T10:00:01Z", count, keys)


def proposal(items, digest=D[8]):
    return e.Proposed(D[0], digest, D[0], items)


def after_release():
    log = finalized()
    log.must("marker.released", e.Released("s1", NONCES[1]))
    log.must("plan.approved", approval("1,3", before=D[2], nonce=NONCES[3]), b"1,3")
    return log


def deferral(place, reason, **more):
    return e.Deferred(place, KEYS[place - 1], NONCES[1], reason, **{"result": D[5], "entry": D[6], **more})


def recovery(kept=None, plan=D[2]):
    kept = kept or {}
    left = tuple(key for key in KEYS if key not in kept)
    return e.Recovered(D[7], "s1", NONCES[1], plan, kept, left, dict.fromkeys(KEYS, D[4]))


def test_a_recovery_keeps_what_was_recorded_and_what_the_open_hand_off_left():
    all_done().must("marker.recovered", recovery(kept={KEYS[0]: D[3], KEYS[1]: D[9]}))
    handing().must("marker.recovered", recovery(kept={KEYS[0]: D[9]}))
    handing().must("result.recorded", recorded(1, "submitted", reason_code="already_submitted"))


MISSING_SKILL = {"status": "error", "rule": "skill_missing"}


@pytest.mark.parametrize(
    ("start", "name", "data", "why"),
    [
        (Log, "plan.proposed", proposal((ITEMS[1], ITEMS[0])), "indices"),
        (Log, "plan.proposed", proposal((ITEMS[0], e.Item(2, "", "1", "1", "canvas-a"))), "one result key"),
        (approved, "plan.proposed", proposal(ITEMS, D[1]), "current one already"),
        (approved, "plan.proposed", proposal(ITEMS, D[2]), "current one already"),
        (approved, "plan.approved", approval("1", before=D[2]), "nonce"),
        (claimed_only, "marker.claimed", e.Claimed("s1", D[2], "2026-11-30T10:00:00Z", NONCES[2]), "another claim"),
        (after_release, "marker.claimed", e.Claimed("s1", D[2], "2026-11-30T10:00:00Z", NONCES[1]), "nonce"),
        (finalized, "run.reported", e.Reported("x"), "digest"),
        (finalized, "item.handed_off", handed(1), "finalized"),
        (claimed_only, "marker.prepared", preparation((KEYS[0],)), "keys"),
        (archived_one, "marker.prepared", preparation(count=0), "fewer"),
        (prepared, "marker.prepared", preparation(count=1), "archives nothing"),
        (prepared, "result.archived", archive(), "prepared already"),
        (claimed_only, "result.archived", archive(KEYS[1]), "only an approved"),
        (archived_one, "result.archived", archive(), "only an approved"),
        (claimed_only, "result.archived", archive(name="pre-x.json"), "another name"),
        (claimed_only, "item.handed_off", handed(1), "not prepared"),
        (handing, "item.handed_off", handed(1, 2), "another hand-off is open"),
        (prepared, "item.handed_off", handed(3), "in order"),
        (prepared, "item.handed_off", handed(2), "in order"),
        (prepared, "item.handed_off", handed(1, 2), "attempt"),
        (swapped, "item.handed_off", handed(1), "swap"),
        (prepared, "item.handed_off", e.HandedOff(1, KEYS[1], "canvas-a", NONCES[1], 1), "no such item"),
        (handing, "item.deferred", deferral(3, e.INTERRUPTED, result="", entry=""), "only the open"),
        (handing, "item.deferred", deferral(1, e.INTERRUPTED), "only the open"),
        (all_done, "item.deferred", not_approved(2), "has a result"),
        (prepared, "item.deferred", deferral(1, e.NOT_APPROVED), "is approved"),
        (prepared, "item.deferred", deferral(2, e.PAUSED), "reason"),
        (prepared, "item.deferred", deferral(1, "bored"), "reason"),
        (prepared, "item.deferred", deferral(1, e.PAUSED, kept=True), "reason"),
        (prepared, "item.deferred", deferral(2, e.NOT_APPROVED, status="draft_ready"), "unknown status"),
        (prepared, "item.deferred", deferral(2, e.NOT_APPROVED, kept=True, status="graded"), "unknown status"),
        (handing, "item.deferred", deferral(3, e.SKILL_MISSING), "open"),
        (handing, "result.recorded", recorded(1, "graded"), "status"),
        (prepared, "result.recorded", recorded(2), "not approved"),
        (prepared, "result.recorded", recorded(3, **MISSING_SKILL), "in order"),
        (prepared, "result.recorded", recorded(1, "error"), "open hand-off"),
        (prepared, "result.recorded", recorded(1, "skipped", rule="skill_missing"), "open hand-off"),
        (handing, "result.recorded", recorded(3), "open hand-off"),
        (all_done, "result.recorded", recorded(1, rule="adopted"), "adopted"),
        (all_done, "result.recorded", e.Recorded(1, KEYS[0], NONCES[1], "draft_ready", D[3], D[9], D[9], rule="adopted", receipt_id="none"), "adopted"),
        (handing, "result.recorded", recorded(1, rule="notes"), "breaks a rule"),
        (handing, "result.recorded", recorded(1, draft=""), "digest"),
        (handing, "result.recorded", recorded(1, verification=""), "digest"),
        (handing, "result.recorded", recorded(1, "error", draft=D[8]), "evidence"),
        (handing, "result.recorded", recorded(1, "submitted"), "rests on a receipt"),
        (handing, "result.recorded", recorded(1, "submitted", reason_code="found"), "rests on a receipt"),
        (handing, "result.recorded", recorded(1, "submitted", reason_code="already_submitted", receipt_id="none"), "rests on a receipt"),
        (handing, "result.recorded", recorded(1, "error", receipt_id="none"), "rests on a receipt"),
        (prepared, "item.handed_off", e.HandedOff(1, KEYS[0], "canvas-a", NONCES[1], 1, "", "none"), "no such receipt"),
        (prepared, "item.deferred", deferral(1, e.SKILL_MISSING), "missing skill"),
        (Log, "run.reported", e.Reported(D[7]), "nobody holds"),
        (claimed_only, "run.reported", e.Reported(D[7]), "not prepared"),
        (finalized, "run.reported", e.Reported(D[7]), "nobody holds"),
        (after_release, "run.reported", e.Reported(D[7]), "nobody holds"),
        (Log, "run.delivered", e.Delivered({}), "nobody holds"),
        (after_release, "run.delivered", e.Delivered({KEYS[0]: D[3]}), "nobody holds"),
        (handing, "marker.recovered", recovery(kept={KEYS[2]: D[3]}), "no evidence"),
        (all_done, "marker.recovered", recovery(kept={KEYS[0]: D[8]}), "no evidence"),
        (all_done, "marker.recovered", recovery(kept={KEYS[0]: "x"}), "digest"),
        (all_done, "marker.recovered", recovery(plan=D[1]), "claimed"),
        (handing, "run.reported", e.Reported(D[7]), "no result"),
        (all_done, "run.delivered", e.Delivered({KEYS[1]: D[3]}), "ready draft"),
        (all_done, "run.delivered", e.Delivered({"course-9__assignment-9": D[3]}), "ready draft"),
        (all_done, "run.finalized", e.Finalized("s1", NONCES[1], D[2], D[7], {"draft_ready": 2, "skipped": 1}), "older than a result"),
        (reported, "run.finalized", e.Finalized("s1", NONCES[1], D[9], D[7], {"draft_ready": 2, "skipped": 1}), "plan"),
        (reported, "run.finalized", e.Finalized("s2", NONCES[1], D[2], D[7], {"draft_ready": 2, "skipped": 1}), "another claim"),
        (reported, "marker.released", e.Released("s1", NONCES[1]), "finalized"),
        (finalized, "run.finalized", e.Finalized("s1", NONCES[1], D[2], D[7], {"draft_ready": 2, "skipped": 1}), "finalized"),
    ],
)  # fmt: skip
def test_what_may_not_follow_is_refused_with_its_own_reason(start, name, data, why):
    log = start()
    fact = Fact(
        99,
        "run/1-2026-11-30",
        99,
        name,
        data,
        99,
        "cli:t",
        "t",
        content=b"1" if name == "plan.approved" else None,
        content_digest="x",
    )
    with pytest.raises(Unlawful) as refused:
        p.admit(log.state, fact, log.law)
    assert why in f"{refused.value.reason} {refused.value}"


def test_results_of_an_earlier_run_are_never_accepted():
    log = archived_one()
    log.must("marker.prepared", preparation(count=1))
    log.must("item.handed_off", e.HandedOff(1, KEYS[0], "canvas-a", NONCES[1], 1, D[9]))
    assert not log.try_("result.recorded", recorded(1, result=D[8]))  # the archived one
    assert not log.try_("result.recorded", recorded(1, result=D[9]))  # the one that stood in the slot
    log.must("result.recorded", recorded(1))


def test_a_resumed_and_unprepared_run_is_not_finalized():
    log = reported()
    log.must("marker.resumed", e.Resumed("s1", NONCES[1]))
    assert not log.try_(
        "run.finalized", e.Finalized("s1", NONCES[1], D[2], D[7], {"draft_ready": 2, "skipped": 1})
    )


def test_a_missing_skill_is_an_error_without_a_hand_off_and_defers_the_rest():
    log = prepared()
    log.must("result.recorded", recorded(1, **MISSING_SKILL))
    log.must("item.deferred", deferral(3, e.SKILL_MISSING))
    assert log.state.next_item() is None


def test_a_paused_item_is_handed_off_again_and_an_interrupted_one_too():
    log = handing()
    log.must("item.deferred", deferral(1, e.INTERRUPTED, result="", entry=""))
    log.must("item.deferred", deferral(1, e.PAUSED))
    log.must("item.handed_off", handed(1, 2))
    log.must("result.recorded", recorded(1))


def test_an_adopted_entry_replaces_only_the_entry():
    log = all_done()
    log.must(
        "result.recorded", e.Recorded(1, KEYS[0], NONCES[1], "draft_ready", D[3], D[9], D[9], rule="adopted")
    )
    assert (log.state.results[KEYS[0]].digest, log.state.results[KEYS[0]].entry) == (D[3], D[9])


def test_redacted_words_still_decide_every_item():
    log = Log()
    log.must("plan.proposed", e.Proposed(D[0], D[1], D[0], ITEMS))
    data = approval("1", before=D[1], decisions={"1": "approve"})
    fact = Fact(
        9,
        "run/1-2026-11-30",
        9,
        "plan.approved",
        data,
        9,
        "cli:t",
        "t",
        content=None,
        content_digest="redacted",
    )
    with pytest.raises(Unlawful, match="not every item"):
        p.admit(log.state, fact, log.law)
