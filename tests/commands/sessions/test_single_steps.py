"""The single-step commands: the same order, enforced, for an agent that orchestrates itself."""

import json
import os

import pytest
from session_house import APPROVAL, executor_says, gate_finding, request_changes

from commands.sessions.adapt import adapt

PLAN = ("--plan", "Set x.", "--title", "Set x")
CLEAN = "agent: a\ntool_uses: 4\n\nNothing found.\n"


class Steps:
    """A started session and its owner token."""

    def __init__(self, house, *flags):
        self.house = house
        self.started = house.ok("session", "start", *(flags or PLAN))
        self.owner = ("--owner", self.started["owner"])

    def __call__(self, *words, report=None, code=0):
        given = ("--report", "-") if report is not None else ()
        done = self.house(*words, *self.owner, *given, data=(report or "").encode())
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout) if done.stdout else done.stderr.decode()

    def until_exec(self):
        self("round", "start")
        self.house.write("src/a.py", "x = 2\n")
        self("round", "executed", report=executor_says("src/a.py"))
        self("round", "reviewed", report=APPROVAL)
        return self("gate", "record", report="adversarial-gate: APPROVE\n\nSummary: fine\n")

    def until(self, wanted):
        """Go on with clean steps until `wanted` is next."""
        state = self.until_exec()
        while state["next"] != wanted:
            words = state["next"].split()
            state = (
                self(words[0], "step", words[1], report=CLEAN)
                if len(words) == 2
                else self("security", "scan")
            )
        return state


def test_a_whole_session_by_single_steps(house):
    steps = Steps(house)
    assert steps.started["next"] == "round"
    started = steps("round", "start")
    assert (started["round"], started["executor"], started["next"]) == (1, True, "executor")
    assert "Implementation Complete" in open(started["prompts"]["executor"]).read()
    house.write("src/a.py", "x = 2\n")
    first = steps("round", "executed", report="nonsense", code=1)
    assert (first["valid"], first["reason"], first["next"]) == (False, "missing-section", "executor")
    assert steps("round", "executed", report=executor_says("src/a.py"))["next"] == "reviewer"
    assert steps("round", "reviewed", report="### VERDICT: OK\n", code=1)["reason"] == "bad-verdict"
    assert steps("round", "reviewed", report=APPROVAL)["next"] == "gate"
    assert steps("gate", "record", report="adversarial-gate: APPROVE\n")["completed_stages"] == ["exec"]
    for step in ("static-analysis", "code-review", "simplify", "test-consolidation", "summary"):
        state = steps("polish", "step", step, report=CLEAN)
    assert state["completed_stages"] == ["exec", "polish"]
    for step in ("project-docs", "comments"):
        state = steps("docs", "step", step, report=CLEAN)
    assert state["next"] == "security"
    scanned = steps("security", "scan")
    assert (scanned["outcome"], scanned["next"]) == ("clean", "delivery")
    assert scanned["gitignore_open"] == ["cloud-credentials", "generic-secrets"]
    delivered = steps("session", "deliver")
    assert delivered["delivered"]
    assert "交付总结" in delivered["summary"]
    assert house.types()[-1] == "session.unlocked"


def test_a_step_of_no_such_name_is_a_wrong_call(house):
    steps = Steps(house)
    steps.until_exec()
    assert "simplify" in steps("polish", "step", "simplfy", report=CLEAN, code=2)


def test_the_gates_output_may_have_other_line_ends_and_the_summary_tells_its_findings(house):
    steps = Steps(house)
    steps("round", "start")
    house.write("src/a.py", "x = 2\n")
    steps("round", "executed", report=executor_says("src/a.py"))
    steps("round", "reviewed", report=APPROVAL)
    findings = [
        json.loads(gate_finding(t, s)["say"])["findings"][0] for t, s in (("Race", "high"), ("Name", "low"))
    ]
    _, text = adapt(
        json.dumps(
            {"verdict": "needs-attention", "summary": "no", "findings": findings, "next_steps": []}
        ).encode()
    )
    assert steps("gate", "record", report=text.replace("\n", "\r\n"))["next"] == "round"
    steps("round", "start")
    steps("round", "executed", report=executor_says())
    state = steps("round", "reviewed", report=APPROVAL)
    while state["next"] != "delivery":
        words = state["next"].split()
        scan = words == ["security"]
        state = steps("security", "scan") if scan else steps(words[0], "step", words[1], report=CLEAN)
    summary = steps("session", "deliver")["summary"]
    assert "| 对抗性审查 | REQUEST_CHANGES | CRITICAL | src/a.py:1-2 (confidence=0.5) — Race: b |" in summary
    assert "## 未解决的次要问题\n- src/a.py:1-2 — Name: b\n" in summary


@pytest.mark.parametrize(
    "words",
    [
        ("round", "executed"), ("round", "reviewed"), ("gate", "record"), ("polish", "step", "simplify"),
        ("docs", "step", "comments"), ("security", "scan"), ("session", "deliver"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_nothing_comes_before_its_time(house, words):
    steps = Steps(house)
    report = None
    if words[0] in ("round", "gate", "polish", "docs"):
        report = {"executed": executor_says(), "record": "adversarial-gate: APPROVE\n"}.get(
            words[1], APPROVAL
        )
        report = CLEAN if words[1] == "step" else report
    before = len(house.events())
    steps(*words, report=report, code=4)
    assert len(house.events()) == before


def test_a_running_round_is_finished_first(house):
    steps = Steps(house)
    path = steps("round", "start")["prompts"]["executor"]
    said = open(path).read()
    os.unlink(path)  # a crash or a full disk after the event
    assert f"waits for the executor's report; its prompt is {path}" in steps("round", "start", code=4)
    assert open(path).read() == said
    steps("round", "reviewed", report=APPROVAL, code=4)


def test_a_second_invalid_report_fails_the_round(house):
    steps = Steps(house)
    steps("round", "start")
    steps("round", "executed", report="x", code=1)
    steps("round", "executed", report="y", code=4)
    steps("round", "executed", report=executor_says(), code=4)
    assert steps("round", "start")["round"] == 2


def test_a_change_between_the_rounds_reports_is_refused(house):
    steps = Steps(house)
    steps("round", "start")
    house.write("src/a.py", "x = 2\n")
    steps("round", "executed", report=executor_says("src/a.py"))
    house.write("src/a.py", "x = 3\n")
    assert "drift: content-or-deletion-changed" in steps("round", "reviewed", report=APPROVAL, code=4)
    house.write("src/a.py", "x = 2\n")
    steps("round", "reviewed", report=APPROVAL)


def test_the_gate_runs_once_and_its_findings_go_through_an_ordinary_round(house):
    steps = Steps(house)
    steps("round", "start")
    house.write("src/a.py", "x = 2\n")
    steps("round", "executed", report=executor_says("src/a.py"))
    steps("round", "reviewed", report=APPROVAL)
    steps("gate", "record", report="adversarial-gate: REQUEST_CHANGES\n", code=1)
    steps("gate", "record", report="APPROVE\n", code=1)
    _, text = adapt(gate_finding("Torn write")["say"].encode())
    state = steps("gate", "record", report=text)
    assert (state["completed_stages"], state["next"]) == ([], "round")
    steps("gate", "record", report="adversarial-gate: APPROVE\n", code=4)
    started = steps("round", "start")
    assert "Torn write" in open(started["prompts"]["executor"]).read()
    house.write("src/a.py", "x = 3\n")
    steps("round", "executed", report=executor_says("src/a.py"))
    state = steps("round", "reviewed", report=APPROVAL)
    assert state["completed_stages"] == ["exec"]


def test_a_gate_skip_by_config_is_checked(house):
    steps = Steps(house)
    steps("round", "start")
    house.write("src/a.py", "x = 2\n")
    steps("round", "executed", report=executor_says("src/a.py"))
    steps("round", "reviewed", report=APPROVAL)
    done = house("gate", "record", *steps.owner, "--skip", "skipped-by-config")
    assert done.returncode == 4
    assert house.ok("gate", "record", *steps.owner, "--skip", "runtime-timeout")["completed_stages"] == [
        "exec"
    ]


def test_a_new_executor_round_clears_all_stages(house):
    steps = Steps(house)
    steps.until("polish simplify")
    steps("round", "start")
    assert house.sessions()[0]["completed_stages"] == []
    steps("round", "executed", report=executor_says())
    assert steps("round", "reviewed", report=APPROVAL)["next"] == "gate"


def test_a_polish_write_clears_all_stages_and_is_bounded(house):
    steps = Steps(house)
    steps.until("polish simplify")
    house.write("src/a.py", "x = 1 + 1\n")
    state = steps("polish", "step", "simplify", report=CLEAN)
    assert (state["outcome"], state["completed_stages"], state["next"]) == ("written", [], "round")
    assert "## Current Phase\n\nexecution\n" in house.view()
    steps("round", "start")
    steps("round", "executed", report=executor_says())
    steps("round", "reviewed", report=APPROVAL)
    steps("gate", "record", report="adversarial-gate: APPROVE\n")
    for step in ("static-analysis", "code-review"):
        steps("polish", "step", step, report=CLEAN)
    house.write("src/a.py", "x = 2\n")
    assert "stuck at polish" in steps("polish", "step", "simplify", report=CLEAN, code=4)
    (session,) = house.sessions()
    assert (session["delivery_blocked_by"], session["completed_stages"], session["locked_by"]) == (
        "polish",
        [],
        None,
    )


def test_a_step_that_only_stages_is_a_write_of_the_index(house):
    steps = Steps(house)
    steps.until("polish simplify")
    house.git("add", "src/a.py")
    state = steps("polish", "step", "simplify", report=CLEAN)
    assert (state["paths"], state["completed_stages"], state["next"]) == ([".git/index"], [], "round")


def test_findings_that_stay_are_bounded(house):
    steps = Steps(house)
    steps.until("polish static-analysis")
    found = "agent: py\ntool_uses: 3\n\n- [CRITICAL] unused import in `src/a.py`\n"
    for _ in range(2):
        assert steps("polish", "step", "static-analysis", report=found, code=1)["outcome"] == "unresolved"
    assert "stuck at polish" in steps("polish", "step", "static-analysis", report=found, code=4)


def test_a_report_without_tools_is_discarded_then_skipped(house):
    steps = Steps(house)
    steps.until("polish code-review")
    nothing = "agent: reviewer\ntool_uses: 0\n\nAll fine!\n"
    assert steps("polish", "step", "code-review", report=nothing, code=1)["outcome"] == "discarded"
    state = steps("polish", "step", "code-review", report=nothing)
    assert (state["outcome"], state["next"]) == ("skipped", "polish simplify")
    assert steps("polish", "step", "simplify", report="no metadata\n", code=1)


DOC = "# R\n\nMore words.\n"


def test_a_docs_write_of_prose_is_carried_over_by_a_reviewer_alone(house):
    steps = Steps(house)
    steps.until("docs project-docs")
    house.write("README.md", DOC)
    state = steps("docs", "step", "project-docs", report=CLEAN)
    assert (state["fast_replay"], state["next"], state["completed_stages"]) == (
        True,
        "carry",
        ["exec", "polish"],
    )
    steps("docs", "step", "comments", report=CLEAN, code=4)
    started = steps("round", "start")
    assert (started["executor"], started["kind"]) == (False, "carry")
    assert "+More words." in open(started["prompts"]["reviewer"]).read()
    state = steps("round", "reviewed", report=APPROVAL)
    assert (state["completed_stages"], state["next"]) == (["exec", "polish"], "docs comments")
    assert house.types()[-2:] == ["round.reviewed", "stages.carried"]
    steps("docs", "step", "comments", report=CLEAN)
    steps("security", "scan")
    assert steps("session", "deliver")["delivered"]


@pytest.mark.parametrize("skipped", [False, True])
def test_a_comment_in_a_file_that_the_session_changed_is_carried_over_too(house, skipped):
    house.config(f"skip_quality_polish: {str(skipped).lower()}\n")
    steps = Steps(house)
    steps.until("docs project-docs")
    house.write("src/a.py", "x = 2  # two\n")
    assert steps("docs", "step", "project-docs", report=CLEAN)["fast_replay"]
    steps("round", "start")
    assert steps("round", "reviewed", report=APPROVAL)["completed_stages"] == ["exec", "polish"]
    house.write("src/a.py", "x = 2  # twice one\n")
    assert steps("docs", "step", "comments", report=CLEAN)["fast_replay"]


def test_a_carried_last_step_of_docs_mints_docs(house):
    steps = Steps(house)
    steps.until("docs comments")
    house.write("README.md", DOC)
    steps("docs", "step", "comments", report=CLEAN)
    steps("round", "start")
    assert steps("round", "reviewed", report=APPROVAL)["completed_stages"] == ["exec", "polish", "docs"]


def test_a_skipped_polish_is_minted_with_exec(house):
    house.config("skip_quality_polish: true\n")
    steps = Steps(house)
    state = steps.until_exec()
    assert (state["completed_stages"], state["next"]) == (["exec", "polish"], "docs project-docs")


def test_a_fast_replays_request_changes_clears_everything(house):
    steps = Steps(house)
    steps.until("docs project-docs")
    house.write("README.md", DOC)
    steps("docs", "step", "project-docs", report=CLEAN)
    steps("round", "start")
    state = steps("round", "reviewed", report=request_changes("Wrong", "README.md"))
    assert (state["completed_stages"], state["next"]) == ([], "round")


@pytest.mark.parametrize("name", ["src/a.py", "src/b.js", "tests/test_a.py", "Makefile", "docs/SKILL.md"])
def test_a_docs_write_of_anything_else_clears_everything(house, name):
    steps = Steps(house)
    steps.until("docs project-docs")
    house.write(name, "x = 5\n")
    state = steps("docs", "step", "project-docs", report=CLEAN)
    assert (state["fast_replay"], state["completed_stages"]) == (False, [])


def test_with_a_lint_command_only_a_run_that_compared_it_may_carry(house):
    house.user_config("lint_command: true\n")
    steps = Steps(house)
    steps.until("docs project-docs")
    house.write("README.md", DOC)
    assert not steps("docs", "step", "project-docs", report=CLEAN)["fast_replay"]


def test_a_pinned_setting_changed_between_steps_is_drift(house):
    steps = Steps(house)
    steps.until_exec()
    house.config("adversarial_gate_skip_paths: **\n")
    assert "drift: config-changed" in steps("round", "start", code=4)


def test_a_file_changed_by_another_tool_is_adopted_as_an_event(house):
    steps = Steps(house)
    steps.until_exec()
    steps("session", "end")
    uuid = house.uuid()
    path = house.root / f".review-loop/sessions/{uuid}.md"
    path.write_text(
        path.read_text().replace('completed_stages: ["exec"]', 'completed_stages: ["exec", "polish"]')
    )
    assert house("session", "start", "--session", uuid).returncode == 4
    assert "session" in house("doctor").stdout.decode()
    assert house.ok("doctor", "--adopt", os.fspath(path)) == {"adopted": [f"session/{uuid}"]}
    assert house.ok("session", "start", "--session", uuid)["completed_stages"] == ["exec", "polish"]


@pytest.mark.parametrize(
    ("telemetry", "due"),
    [(None, False), ("x", False), ('{"context_pct": 69}', False), ('{"context_pct": 70.5}', True)],
)
def test_an_agent_whose_context_is_nearly_full_is_told_before_the_review(house, telemetry, due):
    home = house.folder / "home"
    (home / ".claude").mkdir(parents=True)
    if telemetry is not None:
        (home / ".claude/session-state.json").write_text(telemetry)
    house.environment["HOME"] = str(home)
    steps = Steps(house)
    steps("round", "start")
    assert steps("round", "executed", report=executor_says())["persist_context"] is due


@pytest.mark.parametrize(
    ("point", "refused"),
    [
        ("exec-round", "round start"),
        ("before-polish", "polish step static-analysis"),
        ("before-delivery", "session deliver"),
    ],
)
def test_a_stop_point_holds_for_single_steps_too(house, point, refused):
    steps = Steps(house, *PLAN, "--stop-after", point)
    if point == "exec-round":
        steps("round", "start")
        house.write("src/a.py", "x = 2\n")
        steps("round", "executed", report=executor_says("src/a.py"))
        steps("round", "reviewed", report=APPROVAL)
        steps("gate", "record", report="adversarial-gate: APPROVE\n", code=4)
    elif point == "before-polish":
        steps.until_exec()
    else:
        steps.until("delivery")
    words = refused.split()
    assert f"--stop-after {point} is reached" in steps(
        *words, report=CLEAN if words[1] == "step" else None, code=4
    )
    steps("session", "end")
    assert house.types()[-2] == "session.stopped"
    again = house.ok("session", "start", "--session", house.uuid())
    assert again["next"] == {"exec-round": "gate", "before-polish": "polish static-analysis"}.get(
        point, "delivery"
    )


def test_replay_finds_the_sessions_log_lawful(house):
    steps = Steps(house)
    steps.until("delivery")
    steps("session", "deliver")
    from ledger.sqlite import SQLiteStore
    from projections import session
    from projections.engine import fact_of
    from projections.fact import Law
    from projections.ledger_stream import initial

    store = SQLiteStore(str(house.root / ".gatebook/ledger.db"), readonly=True)
    state = session.initial(f"session/{house.uuid()}")
    law = Law(lambda _stream: initial("ledger"))
    for event in store.reader().stream(f"session/{house.uuid()}"):
        fact = fact_of(event)
        session.admit(state, fact, law)
        state = session.evolve(state, fact)
    assert state.delivered
    store.close()


def test_our_sections_changed_between_steps_are_refused_not_overwritten(house):
    steps = Steps(house)
    file = house.root / ".review-loop/sessions" / f"{house.uuid()}.md"
    whole = file.read_text()
    file.write_text(whole.replace("Implementation matches", "Whatever matches"))
    assert "Acceptance Criteria" in steps("round", "start", code=4)
    assert "Whatever matches" in file.read_text()
    file.write_text(whole)
    steps.until("polish static-analysis")
    file.write_text(file.read_text().replace("Implementation matches", "Whatever matches"))
    assert "written again" in steps("polish", "step", "static-analysis", report=CLEAN, code=4)
    assert "Whatever matches" not in file.read_text()
    assert steps("polish", "step", "static-analysis", report=CLEAN)["outcome"] == "clean"
