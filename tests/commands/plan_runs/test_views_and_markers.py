"""REPORT.md, _processed.json, final drafts; markers and their owner."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.plan_runs import (
    current_authorization_session,
    merge_ledger_entry,
    plan_digest,
    validate_execute_marker,
)
from commands.plan_runs.final_drafts import final_name, render_readme
from commands.plan_runs.markers import new_marker, parse_marker, read_marker, stamped_marker
from commands.plan_runs.processed import Entries
from commands.plan_runs.report import (
    NEXT_STEP,
    NOT_URGENT,
    URGENT,
    ReportItem,
    begins_with_urgent_block,
    render_report,
)
from commands.plan_runs.run_folder import parse_now
from ledger.errors import Conflict, Invalid, Refused

NOW = parse_now("2026-11-30T12:00:00+00:00")


def entry(index, result, **more):
    item = {"index": index, "course_id": 1, "course_name": "Code A", "assignment_id": index, "assignment_name": "Set 3", "due_at": None, "live_state": "unsubmitted", **more}  # fmt: skip
    return ReportItem(item, {}, result, "canvas-essay", "/skills/canvas-essay/SKILL.md")


SKIPPED = {"status": "skipped", "notes": "not approved this run"}
READY = {"status": "draft_ready", "draft_path": "draft.md"}


@pytest.mark.parametrize(
    ("due", "state", "urgent"),
    [
        ("2026-12-01T12:00:00Z", "unsubmitted", True), ("2026-12-01T12:00:01Z", "unsubmitted", False), ("2026-11-01T12:00:00Z", "unsubmitted", True),
        ("2026-11-30T13:00:00Z", "graded", False), ("2026-11-30T13:00:00Z", "submitted", False), ("2026-11-30T13:00:00Z", None, True), (None, "unsubmitted", False),
        ("2026-12-01T13:59:00+02:00", "unsubmitted", True),
    ],
)  # fmt: skip
def test_the_first_block_says_what_is_urgent(due, state, urgent):
    text = render_report([entry(1, READY, due_at=due, live_state=state)], NOW).decode()
    assert text.startswith(URGENT if urgent else NOT_URGENT)
    assert begins_with_urgent_block(text.encode())


def test_errors_stand_in_one_help_block_with_their_own_words():
    error = {"status": "error", "notes": "compiler missing\n## Next step\ninstall it"}
    text = render_report(
        [entry(1, error), entry(2, {**error, "notes": "other"}), entry(3, READY)], NOW
    ).decode()
    assert text.count("## Help with errors") == 1
    assert "Skill path: /skills/canvas-essay/SKILL.md" in text
    assert "> compiler missing" in text
    lines = text.splitlines()
    assert lines.count(NEXT_STEP) == 1
    assert "first error: 1." in text[text.rindex(NEXT_STEP) :]
    assert not [line for line in lines[lines.index(NEXT_STEP) + 1 :] if line.startswith("#")]


def test_the_next_step_is_the_most_pressing_one():
    def step(*items):
        return render_report(list(items), NOW).decode().partition(NEXT_STEP)[2]

    assert "Review the draft of 1." in step(entry(1, READY))
    assert "Decide about 2." in step(entry(1, READY), entry(2, SKIPPED))
    assert "Act now on 1." in step(
        entry(1, READY, due_at="2026-11-30T13:00:00Z"), entry(2, {"status": "error", "notes": "broken tool"})
    )


def test_work_that_waits_for_authority_is_offered_a_receipt():
    waits = {
        "status": "skipped",
        "reason_code": "authorization_required",
        "notes": "assignment.submit_text on 1 needs a receipt",
    }
    step = render_report([entry(1, waits)], NOW).decode().partition(NEXT_STEP)[2]
    assert "gatebook receipt issue" in step
    assert "--target 1 --action assignment.submit_text" in step


def test_a_report_without_the_urgent_block_first_is_told():
    assert not begins_with_urgent_block("# Report\n\n🔥 URGENT\n".encode())
    assert begins_with_urgent_block("# ✅ No urgent items in next 24h\n".encode())


JUNK = '{ "other" :\t[1,\n 2], "course-1__assignment-1":{"x":"}"} ,"z":1e2}\n\n'


def test_other_entries_are_kept_byte_for_byte(tmp_path):
    (tmp_path / "_processed.json").write_text(JUNK)
    merge_ledger_entry(str(tmp_path), "course-1__assignment-1", {"status": "error"})
    assert (tmp_path / "_processed.json").read_text() == JUNK.replace('{"x":"}"}', '{"status": "error"}')
    merge_ledger_entry(str(tmp_path), "course-1__assignment-2", {"status": "skipped"})
    text = (tmp_path / "_processed.json").read_text()
    assert text.startswith('{ "other" :\t[1,\n 2], ')
    assert '"z":1e2' in text
    assert json.loads(text)["course-1__assignment-2"] == {"status": "skipped"}


@pytest.mark.parametrize("raw", [b"[]", b"{", b'{"a":1,"a":2}', b"\xff"])
def test_a_shared_file_that_is_no_object_is_left_alone(tmp_path, raw):
    (tmp_path / "_processed.json").write_bytes(raw)
    with pytest.raises(Invalid):
        merge_ledger_entry(str(tmp_path), "k", {"status": "error"})
    assert (tmp_path / "_processed.json").read_bytes() == raw


values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=6)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.text(max_size=6), values, max_size=4),
    st.text(max_size=6).filter(lambda key: key != "new"),
    st.sampled_from([None, 2]),
)
def test_splicing_an_entry_equals_setting_it(held, key, indent):
    text = json.dumps(held, indent=indent)
    entries = Entries("", text)
    assert bool(entries.digest(key)) is (key in held)
    digest = entries.put(key, {"status": "error"})
    entries.put("new", 1)
    done = entries.render()
    assert json.loads(done) == {**held, key: {"status": "error"}, "new": 1}
    assert list(json.loads(done))[: len(held)] == list(held)
    assert digest == entries.digest(key) == Entries("", done).digest(key)


@pytest.mark.parametrize(
    ("draft", "name"),
    [("报告.docx", "draft.docx"), ("é.md", "draft.md"), ("a b.tar.gz", "a-b.tar.gz"), (".hidden", "hidden"), ("noext", "noext"), ("x.数据", "x.--")],
)  # fmt: skip
def test_a_final_name_keeps_the_drafts_extension(draft, name):
    assert final_name("k", f"k/{draft}", []) == f"k__{name}"


def test_final_names_never_collide_even_without_case():
    taken = []
    for key in ("course-1__assignment-A", "course-1__assignment-a", "course-1__assignment-b"):
        taken.append(final_name(key, f"{key}/Mein Entwurf é.docx", taken))
    assert len({name.casefold() for name in taken}) == 3
    assert taken[0].endswith(".docx")
    assert all("/" not in name and not name.startswith(".") for name in taken)
    assert len(final_name("k" * 213, "x" * 300 + ".md", [])) <= 255
    assert taken[0] in render_readme([(taken[0], "source", "digest")]).decode()


PLAN = {
    "generated_at": "2026-11-30T09:00:00Z", "expires_at": "2026-12-01T09:00:00Z",
    "items": [
        {"index": 1, "course_id": 1, "assignment_id": 1, "user_decision": "approve"}, {"index": 2, "course_id": 1, "assignment_id": 2, "user_decision": "defer"},
        {"index": 3, "course_id": 1, "assignment_id": 3, "user_decision": "swap:canvas-a"},
    ],
}  # fmt: skip
KEYS = ["course-1__assignment-1", "course-1__assignment-3"]


def marker(**more):
    return {
        "session_id": "s1",
        "owner_kind": "codex",
        "created_at": "2026-11-30T10:00:00Z",
        "plan_digest": plan_digest(PLAN),
        **more,
    }


def stamp(keys=KEYS):
    return {
        "results_prepared_at": "2026-11-30T10:00:01Z",
        "results_archive_count": 1,
        "prepared_approved_result_keys": keys,
    }


def test_a_marker_fits_its_plan_owner_and_preparation():
    validate_execute_marker(marker(future="kept"), PLAN, session_id="s1")
    validate_execute_marker(marker(**stamp()), PLAN, session_id="s1", require_prepared=True)
    made = parse_marker(new_marker("s1", "2026-11-30T10:00:00Z", plan_digest(PLAN), "ab"))
    stamped = parse_marker(stamped_marker(made.fields, "2026-11-30T10:00:01Z", 0, KEYS))
    assert (stamped.claim_nonce, stamped.prepared_keys) == ("ab", KEYS)


def test_another_owner_is_a_conflict_that_says_who_and_since_when():
    with pytest.raises(Conflict, match="s1 since 2026-11-30T10:00:00Z"):
        validate_execute_marker(marker(), PLAN, session_id="s2")


@pytest.mark.parametrize("keys", [[], KEYS[:1], KEYS[::-1], [*KEYS, "course-1__assignment-2"]])
def test_a_preparation_with_other_keys_is_refused(keys):
    with pytest.raises(Refused):
        validate_execute_marker(marker(**stamp(keys)), PLAN, session_id="s1", require_prepared=True)
    with pytest.raises(Refused, match="not prepared"):
        validate_execute_marker(marker(), PLAN, session_id="s1", require_prepared=True)


@pytest.mark.parametrize(
    "more",
    [
        {"session_id": ""}, {"session_id": 3}, {"created_at": "yesterday"}, {"created_at": "2026-11-30T10:00:00"}, {"plan_digest": "0" * 63},
        {"plan_digest": "A" * 64}, {"plan_digest": None}, {"owner_kind": None}, {"results_prepared_at": "2026-11-30T10:00:01Z"},
        {**stamp(), "results_archive_count": True}, {**stamp(), "results_archive_count": -1}, {**stamp(), "prepared_approved_result_keys": "all"},
    ],
)  # fmt: skip
def test_a_malformed_marker_is_refused_and_kept(tmp_path, more):
    raw = json.dumps(marker(**more)).encode()
    (tmp_path / ".scan_in_progress").write_bytes(raw)
    with pytest.raises(Refused, match="kept"):
        read_marker(str(tmp_path))
    assert (tmp_path / ".scan_in_progress").read_bytes() == raw


@pytest.mark.parametrize("raw", [b"", b" \n", b"[]", b"{", b"null", b"\xff"])
def test_a_marker_that_is_no_object_is_refused(raw):
    with pytest.raises(Refused):
        parse_marker(raw)


def test_a_digest_that_differs_is_refused():
    with pytest.raises(Refused, match="kept for inspection"):
        validate_execute_marker(marker(plan_digest="0" * 64), PLAN, session_id="s1")


def test_the_owner_is_the_codex_thread_then_the_codex_session_then_what_the_hooks_report():
    both = {"CODEX_THREAD_ID": "t", "CODEX_SESSION_ID": "s", "CLAUDE_SESSION_ID": "c"}
    assert current_authorization_session(environ=both) == "t"
    assert current_authorization_session(environ={"CODEX_SESSION_ID": "s"}) == "s"
    assert current_authorization_session("given", environ={"CLAUDE_SESSION_ID": "c"}) == "given"
    assert current_authorization_session("t", environ=both) == "t"
    for given_id, environ in (
        ("s", both),
        (None, {"CLAUDE_SESSION_ID": "c"}),
        ("", {}),
        (None, {"CODEX_THREAD_ID": ""}),
        (" x", {}),
        ("a\nb", {}),
    ):
        with pytest.raises(Refused):
            current_authorization_session(given_id, environ=environ)
