"""What a receipt allows: origins, actions, order of checks, use."""

import itertools

import pytest

from projections.receipt_rules import (
    ACTIONS,
    actions_fault,
    canonical_origin,
    is_label,
    is_loopback,
    is_terminal,
    needs_evidence,
    scope_fault,
    usage_fault,
)

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://Canvas.Example.edu", "https://canvas.example.edu"), ("HTTPS://c.edu:443/", "https://c.edu"), ("http://c.edu:80", "http://c.edu"),
        ("http://c.edu:443", "http://c.edu:443"), ("http://127.0.0.1:8080", "http://127.0.0.1:8080"), ("http://[::1]:9", "http://[::1]:9"), ("http://c:0080", "http://c"),
    ],
)  # fmt: skip
def test_an_origin_has_one_spelling(text, origin):
    assert canonical_origin(text) == origin
    assert canonical_origin(origin) == origin


@pytest.mark.parametrize(
    "text", ["c.edu", "ftp://c", "https://", "https://u@c.edu", "https://u:p@c.edu", "https://c.edu/x", "https://c.edu?x", "https://c:", "https://c:0", "https://c:99999", "https://c:x", "https://c d", "https://é.edu", "http://[::1", "https://*.c%20", "https://*.c", "https://\u212aelvin.edu", "https://c.edu\u2028"]
)  # fmt: skip
def test_what_is_no_origin_is_refused(text):
    with pytest.raises(ValueError, match="origin"):
        canonical_origin(text)


def test_loopback_is_this_machine_only():
    for host in ("localhost", "127.0.0.1", "127.9.9.9:80", "[::1]:5"):
        assert is_loopback(f"http://{host}")
    for host in ("127.0.0.1.evil.com", "localhost.evil.com", "10.0.0.1", "128.0.0.1", "[::2]", "127.0.0.999"):
        assert not is_loopback(f"http://{host}")


def test_actions_are_known_sorted_unique_and_of_the_targets_kind():
    assert actions_fault("assignment", ["assignment.comment", "assignment.submit_text"]) is None
    assert actions_fault("automation_template", ["assignment.comment", "quiz.start"]) is None
    for target, actions in (
        ("assignment", []), ("assignment", ["quiz.start"]), ("quiz", ["assignment.comment"]), ("assignment", ["assignment.*"]), ("course", ["course.x"]),
        ("quiz", ["quiz.start", "quiz.answer"]), ("quiz", ["quiz.start", "quiz.start"]), ("automation_template", ["automation_template.x"]),
    ):  # fmt: skip
        assert actions_fault(target, actions) is not None


def use(actions, *steps):
    """Uses `steps` in order; returns the first that is refused (its place and reason), or None."""
    uses, closed = {}, None
    for place, step in enumerate(steps):
        fault = usage_fault(step, uses, actions, closed=closed)
        if fault:
            return place, fault
        if is_terminal(step, uses, actions):
            closed = f"by {step}"
        uses[step] = uses.get(step, 0) + 1
    return None


QUIZ = ["quiz.answer", "quiz.complete", "quiz.event", "quiz.start"]
RETAKE = sorted([*QUIZ, "quiz.retake"])


def test_a_submission_is_used_once_and_ends_the_receipt():
    for action in ("assignment.submit_text", "assignment.submit_url", "assignment.submit_files"):
        for after in ACTIONS:
            assert use(sorted({action, after}), action, after)[0] == 1


def test_a_comment_is_used_once_and_ends_nothing():
    both = ["assignment.comment", "assignment.submit_text"]
    assert use(both, "assignment.comment", "assignment.submit_text") is None
    assert use(both, "assignment.comment", "assignment.comment")[0] == 1


def test_a_quiz_runs_start_answers_complete_and_then_nothing():
    assert use(QUIZ, "quiz.start", "quiz.answer", "quiz.event", "quiz.answer", "quiz.complete") is None
    assert use(QUIZ, "quiz.start", "quiz.start")[0] == 1
    assert use(QUIZ, "quiz.complete", "quiz.answer")[0] == 1
    assert use(QUIZ, "quiz.complete", "quiz.complete")[0] == 1


def test_a_retake_leaves_the_first_complete_open_and_the_second_closes():
    assert use(RETAKE, "quiz.start", "quiz.complete", "quiz.retake", "quiz.answer", "quiz.complete") is None
    assert use(RETAKE, "quiz.start", "quiz.complete", "quiz.retake", "quiz.complete", "quiz.answer")[0] == 4
    assert use(RETAKE, "quiz.retake", "quiz.retake")[0] == 1
    assert use(RETAKE, "quiz.complete", "quiz.complete", "quiz.retake")[0] == 2


def test_no_order_of_steps_completes_more_often_than_allowed():
    for steps in itertools.product(["quiz.start", "quiz.retake", "quiz.complete"], repeat=4):
        refused = use(RETAKE, *steps)
        done = steps if refused is None else steps[: refused[0]]
        assert done.count("quiz.complete") <= 2
        assert done.count("quiz.retake") <= 1


def test_the_verification_gate_comes_before_work_is_handed_in():
    assert {action for action in ACTIONS if not needs_evidence(action)} == {
        "quiz.start",
        "quiz.retake",
        "quiz.event",
    }


RECEIPT = {
    "origin": "https://c.edu", "course_id": "1", "target_type": "assignment", "target_id": "2", "actions": ["assignment.submit_text"], "session_id": "s", "user": "u",
    "issued_at": "i", "expires_at": "e", "synthetic_qa": False,
}  # fmt: skip
REQUEST = {
    "origin": "https://c.edu",
    "course_id": "1",
    "target_type": "assignment",
    "target_id": "2",
    "action": "assignment.submit_text",
    "session_id": "s",
    "user": "u",
}
WRONG = {
    "origin": "https://d.edu",
    "course_id": "9",
    "target_id": "9",
    "action": "assignment.comment",
    "session_id": "t",
    "user": "v",
}
NAMES = ["origin", "course", "target", "action", "session", "user"]


def test_the_first_fault_in_the_contracts_order_is_the_one_named():
    fields = list(WRONG)
    for first in range(len(fields)):
        request = {**REQUEST, **{field: WRONG[field] for field in fields[first:]}}
        assert scope_fault(RECEIPT, request, 10**15, (0, 1)).split(":")[0] == NAMES[first]


def test_a_receipt_is_valid_until_just_before_its_expiry():
    times = (100 * SECOND, 200 * SECOND)
    assert scope_fault(RECEIPT, REQUEST, 200 * SECOND - 1, times) is None
    assert scope_fault(RECEIPT, REQUEST, 200 * SECOND, times).startswith("expired")


def test_a_receipt_from_the_future_is_allowed_two_minutes_of_clock_difference():
    times = (120 * SECOND, 900 * SECOND)
    assert scope_fault(RECEIPT, REQUEST, 0, times) is None
    assert scope_fault(RECEIPT, REQUEST, -1, times).startswith("future")


def test_a_synthetic_receipt_works_on_loopback_only_and_a_template_never():
    times = (0, 100)
    assert scope_fault({**RECEIPT, "synthetic_qa": True}, REQUEST, 1, times).startswith("synthetic")
    local = {"origin": "http://127.0.0.1:9"}
    assert scope_fault({**RECEIPT, **local, "synthetic_qa": True}, {**REQUEST, **local}, 1, times) is None
    template = {"target_type": "automation_template"}
    assert "never consumed" in scope_fault({**RECEIPT, **template}, {**REQUEST, **template}, 1, times)


def test_a_label_is_short_and_plain():
    assert is_label("ticket:QA-1/2.a_b")
    assert not any(is_label(text) for text in ("", "a b", "é", "x" * 121, "a\n"))
