"""Rules of a valid plan and snapshot; the digest; stable names."""

import hashlib
import json
import os
import subprocess
import sys
from copy import deepcopy
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.plan_runs import plan_digest, validate_plan, validate_plan_assignments, write_plan
from commands.plan_runs.plans import parse_plan, read_plan
from commands.plan_runs.run_folder import NEXT_STEP, StalePlanError, local_day, parse_now, run_folder
from ledger.errors import Invalid, Refused
from projections.result_keys import result_key, safe_id

NOW = parse_now("2026-11-30T12:00:00-07:00")


def item(index, **more):
    return {
        "index": index, "bucket": "urgent", "course_id": 100001, "assignment_id": 200000 + index, "proposed_skill": "canvas-essay",
        "user_decision": None, "live_state": "unsubmitted", "hours_left": 38.98, **more,
    }  # fmt: skip


def plan(*items, **more):
    return {
        "generated_at": "2026-11-30T09:00:00-07:00", "expires_at": "2026-12-01T09:00:00-07:00",
        "items": list(items) or [item(1), item(2)], **more,
    }  # fmt: skip


def snapshot(of):
    return [
        {
            "course_id": str(each["course_id"]),
            "assignment_id": each["assignment_id"],
            "skill": each["proposed_skill"],
        }
        for each in of["items"]
    ]


def test_a_plan_and_its_snapshot_are_valid_and_unknown_fields_are_kept():
    given_plan = plan(zone="kept")
    assert (
        validate_plan_assignments(given_plan, snapshot(given_plan), now=NOW, require_current=True)[0]["zone"]
        == "kept"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: p.update(generated_at="2026-11-30T09:00:00"), "generated_at"),
        (lambda p: p.update(generated_at=5), "generated_at"),
        (lambda p: p.pop("expires_at"), "expires_at"),
        (lambda p: p.update(expires_at=p["generated_at"]), "is not after"),
        (lambda p: p.update(expires_at="2026-11-30T16:00:00Z"), "is not after"),
        (lambda p: p.update(items={}), "items is an object"),
        (lambda p: p["items"].append(3), "item 3"),
        (lambda p: p["items"][0].update(index=True), "index is True"),
        (lambda p: p["items"][1].update(index=1), "index is 1, expected 2"),
        (lambda p: p["items"][0].update(index=0), "index is 0, expected 1"),
        (lambda p: p["items"][0].update(index=1.0), "index is 1.0"),
        (lambda p: p["items"].reverse(), "expected 1"),
        (lambda p: p["items"][0].update(user_decision="yes"), "user_decision is 'yes'"),
        (lambda p: p["items"][0].update(user_decision="swap:essay"), "user_decision"),
        (lambda p: p["items"][0].update(user_decision=False), "user_decision"),
    ],
)
def test_an_invalid_plan_is_refused_naming_field_and_value(change, said):
    broken = plan()
    change(broken)
    with pytest.raises(StalePlanError, match=said) as refused:
        validate_plan(broken)
    assert refused.value.next_step == NEXT_STEP
    assert refused.value.exit_code == 1


def test_expiry_is_the_first_moment_that_is_no_longer_valid():
    validate_plan(plan(), now=parse_now("2026-12-01T15:59:59.999999Z"), require_current=True)
    with pytest.raises(StalePlanError, match="has passed"):
        validate_plan(plan(), now=parse_now("2026-12-01T16:00:00Z"), require_current=True)
    validate_plan(plan(), now=parse_now("2027-12-01T16:00:00Z"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p, s: s.pop(), "item 2: .*not in the snapshot"),
        (
            lambda p, s: s.append({"course_id": 9, "assignment_id": 9, "skill": "canvas-essay"}),
            "snapshot item 3: .*not in the plan",
        ),
        (lambda p, s: s.append(dict(s[0])), "snapshot item 3: .*item 1 too"),
        (lambda p, s: p["items"][1].update(assignment_id=200001), "item 2: .*item 1 too"),
        (
            lambda p, s: s[0].update(skill="canvas-other"),
            "canvas-essay, the snapshot's skill is 'canvas-other'",
        ),
        (
            lambda p, s: (s[0].update(skill="essay"), p["items"][0].update(proposed_skill="essay")),
            "proposed_skill is 'essay'",
        ),
        (
            lambda p, s: s[0].update(work_dir="../x"),
            "work_dir is '../x', expected course-100001__assignment-200001",
        ),
        (lambda p, s: s[0].update(work_dir="course-100001__assignment-200002"), "work_dir"),
        (lambda p, s: s[0].update(course_id=None), "course_id is None"),
        (lambda p, s: s[0].update(course_id=True), "course_id is True"),
        (lambda p, s: s[0].update(assignment_id="../.."), "leaves no name"),
        (lambda p, s: s.insert(0, []), "snapshot item 1"),
        (lambda p, s: p["items"][0].pop("assignment_id"), "plan item 1: assignment_id"),
    ],
)
def test_a_snapshot_that_differs_is_refused_naming_item_field_and_values(change, said):
    broken = plan()
    against = snapshot(broken)
    change(broken, against)
    with pytest.raises(StalePlanError, match=said):
        validate_plan_assignments(broken, against)


def test_two_ids_with_one_work_directory_are_refused():
    both = plan(item(1, assignment_id="a/b"), item(2, assignment_id="a?b"))
    with pytest.raises(StalePlanError, match="same work directory"):
        validate_plan_assignments(both, snapshot(both))


def test_a_work_dir_may_be_the_name_or_its_path_in_the_run(tmp_path):
    one = plan(item(1))
    key = "course-100001__assignment-200001"
    for work_dir in (key, str(tmp_path / key), os.path.relpath(tmp_path / key)):
        against = [{**snapshot(one)[0], "work_dir": work_dir}]
        if ".." in work_dir:
            continue
        validate_plan_assignments(one, against, run_dir=str(tmp_path))
    with pytest.raises(StalePlanError, match="work_dir"):
        validate_plan_assignments(
            one, [{**snapshot(one)[0], "work_dir": f"/elsewhere/{key}"}], run_dir=str(tmp_path)
        )


def test_the_routes_must_give_the_proposed_skill():
    one = plan(item(1))
    with pytest.raises(StalePlanError, match="the routes give canvas-skip"):
        validate_plan_assignments(one, snapshot(one), resolve=lambda assignment: "canvas-skip")


def test_the_digest_is_cpythons_sorted_compact_json_by_sha256():
    given_plan = plan(item(1, course_name="写作 é"), extra=[1.5, None, {"b": 1, "a": 2}])
    text = json.dumps(given_plan, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert plan_digest(given_plan) == hashlib.sha256(text.encode()).hexdigest()


def test_the_digest_is_the_same_under_another_locale_and_hash_seed(tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps(plan(item(1, course_name="é写"))), "utf-8")
    code = "import sys; from commands.plan_runs import plans; print(plans.plan_digest(plans.parse_plan(open(sys.argv[1],'rb').read())))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "plan.json")],
            env={"PATH": os.environ["PATH"], "LC_ALL": locale, "PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd()},
            capture_output=True, check=True,
        ).stdout
        for locale, seed in (("C", "0"), ("C.UTF-8", "1"))
    }  # fmt: skip
    assert len(found) == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"[]", b"\xff\xfe{\x00}\x00", b'{"a":1,"a":2}', b'{"a":NaN}', b'{"a":"\\ud800"}', b"{" * 5000, b'{"a":1e999}', b"{} {}",
        b"\xef\xbb\xbf{}", b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}", b'{"a":' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_bytes_that_two_readers_could_read_differently_are_refused(raw):
    with pytest.raises(StalePlanError) as error:
        parse_plan(raw)
    assert "set_int_max" not in str(error.value)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=120) | st.integers())
def test_an_id_in_a_name_is_safe_or_an_error(value):
    try:
        name = safe_id(value)
    except Invalid:
        return
    assert 0 < len(name) <= 96
    assert set(name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
    assert name[0] not in "-."


@pytest.mark.parametrize(
    ("value", "name"),
    [("../x", "x"), ("a/b", "a-b"), ("a///b", "a-b"), ("é1é", "1"), ("x" * 500, "x" * 96), (7, "7"), ("-.a.-", "a"), ("a--b", "a--b"), ("写作", None), ("", None), ("..", None)],
)  # fmt: skip
def test_ids_become_names_by_the_contract(value, name):
    if name is None:
        with pytest.raises(Invalid):
            safe_id(value)
    else:
        assert safe_id(value) == name


def test_the_key_is_made_from_ids_only():
    assert result_key(100001, "a/b") == "course-100001__assignment-a-b"


def test_writing_a_plan_replaces_the_file_and_gives_its_digest(tmp_path):
    digest = write_plan(str(tmp_path), plan())
    assert plan_digest(json.loads((tmp_path / "plan.json").read_bytes())) == digest
    assert os.listdir(tmp_path) == ["plan.json"]


def test_an_invalid_plan_is_not_written(tmp_path):
    write_plan(str(tmp_path), plan())
    before = (tmp_path / "plan.json").read_bytes()
    broken = deepcopy(plan())
    broken["items"][0]["user_decision"] = "maybe"
    with pytest.raises(StalePlanError):
        write_plan(str(tmp_path), broken)
    assert (tmp_path / "plan.json").read_bytes() == before


def test_missing_and_linked_documents_ask_for_a_new_scan(tmp_path):
    with pytest.raises(StalePlanError, match="no such file"):
        read_plan(str(tmp_path))
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / "plan.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StalePlanError, match="symbolic link"):
        read_plan(str(tmp_path))


def test_a_run_folder_has_a_dates_name_and_is_no_link(tmp_path):
    (tmp_path / "2026-11-30").mkdir()
    assert run_folder(str(tmp_path / "2026-11-30")).date == "2026-11-30"
    (tmp_path / "2026-12-01").symlink_to(tmp_path / "2026-11-30")
    for name in ("2026-12-01", "2026-12-02", "today", "2026-13-01", "20261130"):
        with pytest.raises((Invalid, Refused)):
            run_folder(str(tmp_path / name))


def test_today_is_the_date_in_the_zone_that_now_is_written_in():
    assert (
        local_day(parse_now("2026-11-30T20:00:00-07:00"), spelled="2026-11-30T20:00:00-07:00") == "2026-11-30"
    )
    here = datetime.fromisoformat("2026-11-30T20:00:00+00:00").astimezone().date().isoformat()
    for spelled in ("2026-11-30T20:00:00Z", "2026-11-30T20:00:00-00:00"):
        assert local_day(parse_now(spelled), spelled=spelled) == here
    with pytest.raises(Invalid):
        parse_now("2026-11-30T20:00:00")
