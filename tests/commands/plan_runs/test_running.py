"""Preparation, hand-offs in order, results accepted or turned into errors, interruption and resumption."""

import fcntl
import json
import os
import signal
import time

import pytest

from commands.plan_runs import workers
from ledger.errors import Unavailable

READY = {"status": "draft_ready", "draft_path": "draft.md"}
SKIP = {"status": "skipped", "notes": "The course is closed."}


def load(path):
    return json.loads(path.read_bytes())


def draft(house, place, text="Answer: 42."):
    folder = house.result(place).parent
    folder.mkdir(exist_ok=True)
    (folder / "draft.md").write_text(text)
    (folder / "verification.log").write_text("PASS\n")


def claimed(house, text="1,2"):
    house.ok("plan", "approve", "--text", text)
    house.ok("run", "claim")


def test_preparation_moves_older_results_of_approved_items_and_stamps_the_marker(house):
    old, kept = house.put(1, SKIP), house.put(3, SKIP)
    claimed(house)
    digest = load(house.marker())["plan_digest"]
    found = house.ok("run", "prepare-results")
    assert found == {
        "prepared": True,
        "idempotent": False,
        "archived": 1,
        "prepared_approved_result_keys": [house.key(1), house.key(2)],
    }
    assert (house.result(1).parent / "result-history" / f"pre-{digest[:20]}.json").read_bytes() == old
    assert not house.result(1).exists()
    assert house.result(3).read_bytes() == kept
    marker = load(house.marker())
    assert (marker["results_archive_count"], marker["prepared_approved_result_keys"]) == (
        1,
        [house.key(1), house.key(2)],
    )
    again = house.ok("run", "prepare-results")
    assert (again["idempotent"], again["archived"]) == (True, 1)
    assert house.types().count("marker.prepared") == 1


def test_deferred_items_get_a_deferral_and_a_valid_result_is_kept(house):
    kept = house.put(3, SKIP)
    house.put(4, {"status": "nonsense"})
    house.ready("1")
    assert house.result(3).read_bytes() == kept
    wanted = {"status": "skipped", "notes": "not approved this run", "deferred_to_next_run": True}
    assert load(house.result(2)) == load(house.result(4)) == load(house.result(5)) == wanted
    assert load(house.result(4).parent / "result-history" / "rejected-1.json") == {"status": "nonsense"}
    assert house.processed()[house.key(2)]["status"] == "skipped"
    assert house.types().count("item.deferred") == 4


def test_both_current_and_archived_before_the_stamp_are_refused_untouched(house):
    claimed(house)
    digest = load(house.marker())["plan_digest"]
    current = house.put(1, SKIP)
    archive = house.result(1).parent / "result-history" / f"pre-{digest[:20]}.json"
    archive.parent.mkdir()
    archive.write_text('{"older":1}')
    assert "neither was touched" in house.refused(4, "run", "prepare-results")
    assert (house.result(1).read_bytes(), archive.read_text()) == (current, '{"older":1}')
    assert "results_prepared_at" not in load(house.marker())


def test_a_crash_between_a_move_and_the_stamp_is_recovered(house):
    claimed(house)
    digest = load(house.marker())["plan_digest"]
    house.put(1, SKIP)
    archive = house.result(1).parent / "result-history" / f"pre-{digest[:20]}.json"
    archive.parent.mkdir()
    house.result(1).rename(archive)
    house.put(2, SKIP)
    assert house.ok("run", "prepare-results")["archived"] == 2
    assert not house.result(2).exists()


def test_a_crash_after_the_event_and_before_the_stamp_is_completed(house):
    claimed(house)
    bare = house.marker().read_bytes()
    old = house.put(1, SKIP)
    house.ok("run", "prepare-results")
    house.marker().write_bytes(bare)
    digest = load(house.marker())["plan_digest"]
    (house.result(1).parent / "result-history" / f"pre-{digest[:20]}.json").rename(house.result(1))
    assert "not prepared" in house.refused(4, "run", "next")
    assert house.ok("run", "prepare-results")["archived"] == 1
    assert not house.result(1).exists()
    assert (house.result(1).parent / "result-history" / f"pre-{digest[:20]}.json").read_bytes() == old
    house.ok("run", "next")


@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_a_slot_that_holds_no_file_is_refused(house, kind):
    claimed(house)
    place = house.result(1)
    place.parent.mkdir()
    {
        "link": lambda: place.symlink_to("/etc/hostname"),
        "folder": place.mkdir,
        "fifo": lambda: os.mkfifo(place),
    }[kind]()
    assert "no regular file" in house.refused(4, "run", "prepare-results")
    assert os.path.lexists(place)


def test_a_plan_edited_after_the_claim_or_preparation_stops_every_step(house):
    claimed(house)
    plan = (house.run / "plan.json").read_bytes()
    edited = json.loads(plan)
    edited["items"][2]["user_decision"] = "approve"
    (house.run / "plan.json").write_text(json.dumps(edited))
    assert "kept for inspection" in house.refused(4, "run", "prepare-results")
    (house.run / "plan.json").write_bytes(plan)
    house.ok("run", "prepare-results")
    (house.run / "plan.json").write_text(json.dumps(edited))
    for words in (
        ("next",),
        ("execute", "--handoff", "true"),
        ("report",),
        ("finalize",),
        ("pause", "--reason", "x"),
        ("claim",),
    ):
        assert "kept for inspection" in house.refused(4, "run", *words)
    (house.run / "plan.json").write_bytes(plan)
    stamped = load(house.marker())
    house.marker().write_text(json.dumps({**stamped, "prepared_approved_result_keys": [house.key(1)]}))
    assert "prepared" in house.refused(4, "run", "next")


def test_next_hands_off_in_order_and_records_what_the_worker_left(house):
    house.ready("1,3")
    first = house.ok("run", "next")
    assert (first["index"], first["skill"], first["local_drafting"], first["mutation"]) == (
        1,
        "canvas-generic",
        True,
        False,
    )
    assert "receipt" not in first
    assert first["work_dir"].endswith(house.key(1))
    assert house.ok("run", "next")["index"] == 1
    assert house.types().count("item.handed_off") == 1
    draft(house, 1)
    house.put(1, READY)
    second = house.ok("run", "next")
    assert (second["index"], second["accepted"]["status"]) == (3, "draft_ready")
    house.put(3, {"status": "draft_ready", "draft_path": "none.md"})
    assert "draft_path" in house.ok("run", "next")["result_fault"]
    house.put(3, {"status": "error", "notes": "The tool is missing."})
    assert house.ok("run", "next")["done"] is True
    assert house.processed()[house.key(1)] == {
        **house.processed()[house.key(1)],
        "status": "draft_ready",
        "draft_path": "draft.md",
    }


def test_a_result_that_lay_there_before_the_hand_off_is_no_result_of_it(house):
    old = house.put(1, SKIP)
    house.ready("1,2")
    house.result(1).write_bytes(old)  # the archived one, put back
    house.put(2, {"status": "skipped", "notes": "Written before its turn."})
    found = house.ok("run", "execute", "--handoff", "true")
    assert [line["status"] for line in found["executed"]] == ["error", "error"]
    assert "result_of_earlier_run" in load(house.result(1))["notes"]
    assert "result_before_hand_off" in load(house.result(2))["notes"]
    assert (
        load(house.result(2).parent / "result-history" / "rejected-1.json")["notes"]
        == "Written before its turn."
    )


def test_execute_runs_everything_in_order_one_at_a_time(house):
    house.ready("all; defer 2")
    found = house.ok("run", "execute", "--handoff", house.script())
    assert [line["index"] for line in found["executed"]] == [1, 3, 4, 5]
    assert {line["status"] for line in found["executed"]} == {"draft_ready"}
    told = load(house.result(3).parent / "item.json")
    assert (told["index"], told["plan_path"], told["mutation"]) == (3, str(house.run / "plan.json"), False)
    again = house.ok("run", "execute", "--handoff", house.script())
    assert again["executed"] == []
    assert house.ran() == 4


def test_a_step_does_not_judge_again_what_stands_unchanged(house, monkeypatch):
    """A run of hundreds of items asks for plan, snapshot and every recorded result at each step."""
    from commands.plan_runs import plans, recording

    house.ready("all")
    judged = []
    monkeypatch.setattr(
        plans, "_snapshot_by_identity", lambda *given, own=plans._snapshot_by_identity: judged.append(1) or own(*given)
    )  # fmt: skip
    monkeypatch.setattr(
        recording, "parse_document", lambda *given, own=recording.parse_document: judged.append(2) or own(*given)
    )  # fmt: skip
    house.ok("run", "execute", "--handoff", house.script())
    assert (house.ran(), judged) == (5, [1])


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("exit 3", "result_missing"),
        ('rm -rf "$PWD"', "result_missing"),
        ("echo '{' > result.json", "result_file"),
        (
            """echo '{"status":"draft_ready","draft_path":"d.md"}' > result.json; echo TODO > d.md""",
            "placeholder",
        ),
        ("ln -s /etc/hostname result.json", "result_file"),
        ("mkdir result.json; touch result.json/x", "result_file"),
        ("mkfifo result.json", "result_file"),
        ("truncate -s 100M result.json", "result_file"),
        (
            """echo '{"status":"skipped","notes":"Closed for good.","status":"error"}' > result.json""",
            "result_file",
        ),
        ("""echo '{"status":"submitted"}' > result.json""", "metadata"),
    ],
)
def test_what_breaks_a_rule_becomes_a_canonical_error_that_names_it(house, text, rule):
    house.ready("1")
    found = house.ok("run", "execute", "--handoff", house.script(f"#!/bin/sh\n{text}\n"))
    assert found["executed"][0]["status"] == "error"
    result = load(house.result(1))
    assert set(result) == {"status", "notes"}
    assert rule in result["notes"]
    evidence = house.result(1).parent / "result-history" / "rejected-1.json"
    assert os.path.lexists(evidence) == (rule != "result_missing")
    assert house.state().results[house.key(1)].status == "error"


def skill(house, name, text=None):
    folder = house.folder / "skills" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(text or f"---\nname: {name}\n---\n")


def test_a_missing_skill_is_an_error_and_defers_what_has_not_run(house):
    skill(house, "canvas-generic", "---\nname: canvas-generic\n---\nUNFILLED_SKELETON")
    house.ready("1,2")
    found = house.ok("run", "execute", "--handoff", house.script(), "--skills", house.folder / "skills")
    assert [(line["index"], line["status"]) for line in found["executed"]] == [(1, "error")]
    assert "UNFILLED_SKELETON" in load(house.result(1))["notes"]
    assert load(house.result(2))["deferred_to_next_run"] is True
    assert house.ran() == 0
    house.ok("run", "report")
    house.ok("run", "finalize")


def test_a_sub_router_names_the_skill_and_its_failure_is_an_error(house):
    skill(house, "canvas-lab")
    routes = house.folder / "routes.toml"
    router = house.script("#!/bin/sh\ngrep -q 200001 && echo canvas-lab\n", "router.sh")
    routes.write_text(f'[routes.100001]\nskill = "canvas-generic"\nsub_router = "{router}"\n')
    house.ready("1,2")
    found = house.ok(
        "run", "execute", "--handoff", house.script(), "--skills", house.folder / "skills", "--routes", routes
    )
    assert [(line["skill"], line["status"]) for line in found["executed"]] == [
        ("canvas-lab", "draft_ready"),
        ("canvas-generic", "error"),
    ]
    assert "sub_router" in load(house.result(2))["notes"]


def test_a_paused_run_goes_on_with_the_same_owner(house):
    house.ready("1,2,3")
    house.ok("run", "next")
    draft(house, 1)
    house.put(1, READY)
    house.ok("run", "next")
    found = house.ok("run", "pause", "--reason", "out of quota")
    assert found["deferred_result_keys"] == [house.key(2), house.key(3)]
    assert "out of quota" in load(house.result(2))["notes"]
    done = house.ok("run", "execute", "--handoff", house.script())
    assert [line["index"] for line in done["executed"]] == [2, 3]
    assert load(house.result(2)) == READY


@pytest.mark.parametrize(
    ("reason", "code"), [("TODO", 2), ("[todo]", 2), ("fix TBD", 2), ("ghp_" + "a1B2" * 9, 4)]
)
def test_a_pause_with_a_reason_that_no_result_may_give_writes_nothing(house, reason, code):
    house.ready("1,2")
    before = sorted(house.run.rglob("*")), house.types()
    assert "--reason" in house.refused(code, "run", "pause", "--reason", reason)
    assert (sorted(house.run.rglob("*")), house.types()) == before
    house.ok("run", "pause", "--reason", "the list of TODO items comes first")


def test_a_result_with_a_credential_is_an_error_that_names_the_rule_and_not_the_value(house):
    """The run goes on; the worker's own bytes stay in the work directory, and nowhere else."""
    token = "ghp_" + "a1B2" * 9
    house.ready("1,2,3")
    results = [
        {"status": "skipped", "notes": f"the token {token} was denied"},
        {"status": "draft_ready", "draft_path": f"/x/{token}/draft.md"},
        SKIP,
    ]
    for place, result in enumerate(results):
        (house.folder / f"{place + 1}.json").write_text(json.dumps(result))
    worker = house.script(
        f"#!/bin/sh\ni=$(sed 's/.*\"index\":\\([0-9]*\\).*/\\1/')\ncp {house.folder}/$i.json result.json\n"
    )
    found = house.ok("run", "execute", "--handoff", worker)
    assert [line["status"] for line in found["executed"]] == ["error", "error", "skipped"]
    for place in (1, 2):
        notes = load(house.result(place))["notes"]
        assert "credential" in notes
        kept = house.result(place).parent / "result-history" / "rejected-1.json"
        assert load(kept) == results[place - 1]
    house.ok("run", "finalize")
    log = b"".join(path.read_bytes() for path in (house.folder / ".gatebook").glob("ledger.db*"))
    shown = (house.run / "REPORT.md").read_bytes() + (house.runs / "_processed.json").read_bytes()
    assert token.encode() not in log + shown


def test_a_fault_that_quotes_a_credential_is_told_by_its_rule_alone():
    from commands.plan_runs.handing_off import _error

    token = "ghp_" + "a1B2" * 9
    assert token not in _error(f"result_file: holds the key '{token}' twice")["notes"]
    assert "result_file" in _error(f"result_file: holds the key '{token}' twice")["notes"]


def test_a_result_changed_after_it_was_recorded_stops_the_run(house):
    house.ready("1,2")
    house.ok("run", "next")
    house.put(1, SKIP)
    house.ok("run", "next")
    house.put(1, {**SKIP, "notes": "Something else entirely."})
    assert "was changed after it was recorded" in house.refused(4, "run", "next")


def test_our_entry_in_the_shared_file_changed_by_another_stops_the_run_a_lagging_one_is_written(house):
    house.ready("1,2")
    path = house.runs / "_processed.json"
    whole = path.read_bytes()
    edited = json.loads(whole)
    edited[house.key(3)]["status"] = "submitted"
    path.write_text(json.dumps(edited))
    assert "not the one recorded" in house.refused(4, "run", "next")
    path.write_bytes(b'{"theirs": {"x": 1}}')
    house.ok("run", "next")
    assert json.loads(path.read_bytes()) == {"theirs": {"x": 1}, **json.loads(whole)}


def test_no_hand_off_begins_while_results_cannot_be_recorded(house):
    house.ready("1,2")
    (house.runs / "_processed.json").write_text("[")
    assert house.on("run", "execute", "--handoff", house.script())[0] != 0
    assert house.ran() == 0


def test_a_program_that_cannot_be_run_is_exit_69(house):
    house.ready("1")
    house.refused(69, "run", "execute", "--handoff", "/no/such/program")
    house.refused(2, "run", "execute", "--handoff", "'")
    assert "item.handed_off" not in house.types()


def wait_for(path, seconds=10):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.01)


SLOW = "#!/bin/sh\ncat > item.json\necho x >> ../ran\necho $$ > pid\ntouch started\nsleep {sleep}\nprintf 'Answer: 42.\\n' > draft.md\necho PASS > verification.log\necho '{{\"status\":\"draft_ready\",\"draft_path\":\"draft.md\"}}' > result.json\n"  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_the_hand_off_and_the_same_command_goes_on(house, number):
    house.ready("1,2")
    process = house.start(
        "run", "execute", "--run-dir", house.run, "--handoff", house.script(SLOW.format(sleep=30))
    )
    wait_for(house.result(1).parent / "started")
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number, err
    assert house.types()[-2:] == ["item.handed_off", "item.deferred"]
    assert not house.result(1).exists()
    assert not house.result(2).exists()
    assert house.marker().exists()
    done = house.ok("run", "execute", "--handoff", house.script())
    assert [(line["index"], line["status"]) for line in done["executed"]] == [
        (1, "draft_ready"),
        (2, "draft_ready"),
    ]


def test_an_interrupted_attempts_leavings_do_not_hide_the_next_attempts_same_result(house):
    text = """#!/bin/sh
echo '{"status":"draft_ready","draft_path":"draft.md"}' > result.json
echo 'Answer: 42.' > draft.md
test -e ../again || { touch ../again started; sleep 60; }
echo PASS > verification.log
"""
    house.ready("1")
    process = house.start("run", "execute", "--run-dir", house.run, "--handoff", house.script(text))
    wait_for(house.result(1).parent / "started")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    done = house.ok("run", "execute", "--handoff", house.script(text))
    assert [line["status"] for line in done["executed"]] == ["draft_ready"]
    assert (house.result(1).parent / "result-history" / "rejected-1.json").exists()


def test_killed_with_its_worker_alive_the_same_command_takes_the_workers_result(house):
    house.ready("1,2")
    command = house.script(SLOW.format(sleep=1))
    process = house.start("run", "execute", "--run-dir", house.run, "--handoff", command)
    wait_for(house.result(1).parent / "started")
    process.kill()
    process.wait()
    assert not house.result(1).exists()
    done = house.ok("run", "execute", "--handoff", command)
    assert [(line["index"], line["status"]) for line in done["executed"]] == [
        (1, "draft_ready"),
        (2, "draft_ready"),
    ]
    assert house.ran() == 2


def test_killed_with_its_worker_the_hand_off_is_made_again(house):
    house.ready("1")
    process = house.start(
        "run", "execute", "--run-dir", house.run, "--handoff", house.script(SLOW.format(sleep=30))
    )
    wait_for(house.result(1).parent / "started")
    process.kill()
    process.wait()
    # The worker leads a group of its own; end it as a crash of the machine would.
    os.killpg(int((house.result(1).parent / ".worker.pid").read_text()), signal.SIGKILL)
    done = house.ok("run", "execute", "--handoff", house.script())
    assert [line["status"] for line in done["executed"]] == ["draft_ready"]
    assert house.state().attempts[house.key(1)] == 2


def test_a_worker_that_outlives_its_driver_for_long_is_ended_and_the_item_handed_off_again(
    house, monkeypatch
):
    from commands.plan_runs import workers

    monkeypatch.setattr(workers, "PATIENCE_SECONDS", 0.3)
    house.ready("1")
    process = house.start(
        "run", "execute", "--run-dir", house.run, "--handoff", house.script(SLOW.format(sleep=60))
    )
    wait_for(house.result(1).parent / "started")
    process.kill()
    process.wait()
    done = house.ok("run", "execute", "--handoff", house.script())
    assert [line["status"] for line in done["executed"]] == ["draft_ready"]
    assert house.state().attempts[house.key(1)] == 2
    assert not (house.result(1).parent / ".worker.pid").exists()


def test_what_a_worker_leaves_running_ends_with_it(house):
    house.ready("1")
    text = '#!/bin/sh\n(sleep 60; echo \'{}\' > result.json) &\necho \'{"status":"skipped","notes":"Closed for good."}\' > result.json\n'
    began = time.monotonic()
    house.ok("run", "execute", "--handoff", house.script(text))
    assert time.monotonic() - began < 20
    lock = os.open(house.result(1).parent, os.O_RDONLY)
    import fcntl

    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)


@pytest.mark.slow
def test_killed_at_any_moment_the_run_ends_the_same_with_nothing_done_twice(house):
    house.ready("all")
    command = house.script()
    for delay in (0.05, 0.09, 0.12, 0.15, 0.18, 0.21, 0.25):
        process = house.start("run", "execute", "--run-dir", house.run, "--handoff", command)
        time.sleep(delay)
        process.kill()
        process.communicate()
    done = house.ok("run", "execute", "--handoff", command)
    assert done["remaining"] == 0
    assert set(done["statuses"].values()) == {"draft_ready"}
    assert set(house.processed()) == {house.key(place) for place in range(1, 6)}
    assert house.types().count("result.recorded") == 5
    # An item is started again only where the kill fell between its hand-off and its worker's first step.
    assert house.ran() == 5
    house.ok("run", "report")
    house.ok("run", "finalize")


def test_two_executions_at_once_one_runs_the_other_is_told(house):
    house.ready("1")
    process = house.start(
        "run", "execute", "--run-dir", house.run, "--handoff", house.script(SLOW.format(sleep=1))
    )
    wait_for(house.result(1).parent / "started")
    assert "at work here" in house.refused(5, "run", "execute", "--handoff", house.script())
    assert process.wait(20) == 0
    process.communicate()
    assert house.ran() == 1


BESIDE = [("next",), ("pause", "--reason", "out of quota"), ("report",), ("deliver",)]


def test_no_step_is_made_beside_a_worker_at_work(house):
    """A step that recorded what a worker still writes would leave a result that is another one than recorded."""
    house.ready("1,2")
    process = house.start(
        "run", "execute", "--run-dir", house.run, "--handoff", house.script(SLOW.format(sleep=2))
    )
    wait_for(house.result(1).parent / "started")
    for words in BESIDE:
        assert "`run execute` is at work here" in house.refused(5, "run", *words)
    assert "`run execute` is at work here" in house.refused(4, "run", "finalize")
    house.be("s2")
    assert "session s1 holds the run" in house.refused(5, "run", "next")
    house.be("s1")
    assert process.wait(20) == 0
    process.communicate()
    assert house.ran() == 2
    house.ok("run", "finalize")


def test_workers_wait_a_moment_for_a_step_that_is_being_made(house):
    house.ready("1")
    lock = os.open(house.run, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    process = house.start("run", "execute", "--run-dir", house.run, "--handoff", house.script())
    time.sleep(0.3)
    os.close(lock)
    assert process.wait(20) == 0
    process.communicate()
    assert house.ran() == 1


def test_where_no_locks_are_a_step_goes_on_and_execution_says_why_not(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(workers.fcntl, "flock", unsupported)
    os.close(workers.lock_run(str(tmp_path), fcntl.LOCK_SH))
    with pytest.raises(Unavailable, match="Operation not supported"):
        workers.lock_run(str(tmp_path), fcntl.LOCK_EX)


def test_no_step_is_made_beside_a_worker_that_outlived_its_driver(house):
    house.ready("1")
    command = house.script(SLOW.format(sleep=2))
    process = house.start("run", "execute", "--run-dir", house.run, "--handoff", command)
    wait_for(house.result(1).parent / "started")
    process.kill()
    process.wait()
    for words in BESIDE:
        assert "still at work" in house.refused(5, "run", *words)
    assert "still at work" in house.refused(4, "run", "finalize")
    assert [line["status"] for line in house.ok("run", "execute", "--handoff", command)["executed"]] == [
        "draft_ready"
    ]


def test_a_worker_of_a_recovered_claim_is_fenced_out(house):
    from datetime import timedelta

    house.ready("1")
    house.ok("run", "next")
    house.put(1, SKIP)
    later = (house.now + timedelta(days=1)).isoformat()
    assert house.cli("run", "recover", "--runs", house.runs, "--now", later)[0] == 0
    assert "nobody holds this run" in house.refused(4, "run", "next")


def test_a_run_that_another_tool_claimed_and_prepared_in_this_session_goes_on(house):
    house.ok("plan", "approve", "--text", "1")
    marker = {
        "session_id": "s1", "owner_kind": "codex", "created_at": "2026-11-30T09:00:00Z", "plan_digest": house.state().current,
        "results_prepared_at": "2026-11-30T09:00:01Z", "results_archive_count": 3, "prepared_approved_result_keys": [house.key(1)],
    }  # fmt: skip
    house.marker().write_text(json.dumps(marker))
    assert house.ok("run", "claim")["outcome"] == "resumed"
    assert house.ok("run", "prepare-results") == {
        "prepared": True,
        "idempotent": True,
        "archived": 3,
        "prepared_approved_result_keys": [house.key(1)],
    }
    house.ok("run", "execute", "--handoff", house.script())
    assert {name: value for name, value in load(house.marker()).items() if name != "claim_nonce"} == marker


def test_routes_that_say_another_skill_by_now_stop_the_run(house):
    routes = house.folder / "routes.toml"
    routes.write_text('[routes]\n100001 = "canvas-other"\n')
    house.ready("1")
    assert "the routes give canvas-other" in house.refused(1, "run", "next", "--routes", routes)


def test_an_expired_plan_hands_nothing_off_and_the_rest_still_works(house):
    from datetime import timedelta

    house.plan(house.run, expires_at=(house.now + timedelta(minutes=1)).isoformat())
    house.ready("1,2")
    house.ok("run", "next")
    house.put(1, SKIP)
    later = ("--now", (house.now + timedelta(minutes=2)).isoformat())
    assert "has passed" in house.refused(1, "run", "next", *later)
    assert house.on("run", "execute", "--handoff", house.script(), *later)[0] == 1
    house.ok("run", "prepare-results", *later)
    house.ok("run", "pause", "--reason", "the plan expired", *later)
    house.ok("run", "report", *later)
    house.ok("run", "finalize", *later)


def test_the_preparation_is_a_python_call_too(house):
    from commands.plan_runs import prepare_results

    claimed(house)
    assert prepare_results(str(house.run))["prepared"] is True


@pytest.mark.slow
def test_killed_at_any_moment_an_approval_and_a_claim_are_whole_or_not_there(house):
    """After each kill the same commands go on: files and log agree, one approval's decisions stand, one claim holds."""
    commands = (("plan", "approve", "--text", "1,2"), ("run", "claim"), ("run", "prepare-results"))
    for delay in (0.04, 0.07, 0.1, 0.13, 0.16):
        for words in commands:
            process = house.start(*words[:2], "--run-dir", house.run, *words[2:])
            time.sleep(delay)
            process.kill()
            process.communicate()
        assert not house.marker().exists() or load(house.marker())["session_id"] == "s1"
    if not house.marker().exists():
        house.ok("plan", "approve", "--text", "1,2")
    house.ok("run", "claim")
    house.ok("run", "prepare-results")
    done = house.ok("run", "execute", "--handoff", house.script())
    assert [line["index"] for line in done["executed"]] == [1, 2]
    assert house.types().count("marker.claimed") == 1


def test_many_processes_asking_for_the_next_item_hand_off_one(house):
    house.ready("1,2")
    racers = [house.start("run", "next", "--run-dir", house.run) for _ in range(6)]
    ends = [(racer.communicate()[0], racer.returncode) for racer in racers]
    assert {json.loads(out)["index"] for out, code in ends if code == 0} == {1}
    assert {code for _, code in ends} <= {0, 4}
    assert house.types().count("item.handed_off") == 1


def test_many_processes_approving_leave_one_plan_that_file_and_log_agree_on(house):
    texts = ["1", "2", "all", "skip", "1-3", "4,5"]
    racers = [house.start("plan", "approve", "--run-dir", house.run, "--text", text) for text in texts]
    codes = [racer.wait() for racer in racers]
    for racer in racers:
        racer.communicate()
    assert 0 in codes
    assert set(codes) <= {0, 4, 5}
    from commands.plan_runs import plan_digest

    assert plan_digest(load(house.run / "plan.json")) == house.state().current
    house.ok("run", "claim")


def test_a_folder_that_a_worker_replaced_by_a_link_is_never_followed(house):
    house.ready("1,2")
    away = house.folder / "away"
    away.mkdir()
    worker = house.script(f'#!/bin/sh\nhere=$PWD; cd ..; rm -rf "$here"; ln -s {away} "$here"\n')
    assert "is a link" in house.refused(4, "run", "execute", "--handoff", worker)
    assert list(away.iterdir()) == []
    (house.run / house.key(1)).unlink()
    done = house.ok("run", "execute", "--handoff", house.script())
    assert [line["status"] for line in done["executed"]] == ["draft_ready", "draft_ready"]


def test_a_signal_while_the_worker_is_being_started_ends_it_too(house, monkeypatch):
    """Raised inside `Popen` it would leave a worker that nobody knows of."""
    import subprocess

    from commands.plan_runs import workers

    started = []

    class Started(subprocess.Popen):
        def __init__(self, *arguments, **more):
            super().__init__(*arguments, **more)
            started.append(self.pid)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Started)
    (house.folder / "work").mkdir()
    with workers.Interruption() as stop, pytest.raises(workers.InterruptedRunError):
        workers.work(["sleep", "60"], str(house.folder / "work"), b"", stop)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
