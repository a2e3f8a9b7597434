"""Requests: what is malformed, what blocks before anybody works, and that each answer is the complete result."""

import json
import os

import pytest
from bench import DONE, assert_complete
from hypothesis import given
from hypothesis import strategies as st

from commands.dispatch.ceiling import ceiling_of, missing_tool
from commands.dispatch.request import Malformed, identity, parse_request
from ledger.errors import Refused

NEVER = "raise SystemExit('nobody may run')"


def blocked(bench, document, reason, **more):
    code, result = bench.run(document, NEVER, **more)
    assert_complete(result)
    assert (code, result["status"], result["evidence"]["outcome"]) == (4, "blocked", "unproven")
    assert result["route"]["attempted"] == []
    event = bench.events()[-1]
    assert (event.type, event.data.reason) == ("dispatch.blocked", reason)
    assert "dispatch.attempted" not in bench.types()
    return "; ".join(result["blockers"])


@pytest.mark.parametrize("name", ["outcome", "route", "verification", "authority"])
@pytest.mark.parametrize("value", [..., None, "", {}], ids=["absent", "null", "text", "object"])
def test_a_missing_part_blocks_with_the_complete_result(bench, name, value):
    told = blocked(
        bench, {**bench.request(**{name: ...}), **({} if value is ... else {name: value})}, "malformed"
    )
    assert f"request.{name} is missing" in told


PATHS = [
    (), ("context",), ("context", "memory"), ("authority",), ("authority", "approvals", 0), ("verification",), ("verification", "expected"),
]  # fmt: skip


def full(bench):
    return bench.request(
        context={"project": "p", "mode": "fresh", "state": "s", "files": ["a"], "memory": {"enabled": False, "recall": ["x"], "capture": "y"}},
        authority={"tools": ["git"], "approvals": [{"what": "w", "approval_seq": None}]},
        constraints=["c"], delegation={"max_children": 1}, blockers=[], repeatable=False, authoring_providers=["openai"],
        verification={"seam": "true", "expected": {"exit": 0, "contains": None}, "fixed_target": ["out.txt"]},
    )  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_an_unknown_field_is_refused_wherever_it_stands(bench, path):
    document = full(bench)
    here = document
    for step in path:
        here = here[step]
    here["surprise"] = 1
    assert "surprise" in blocked(bench, document, "malformed")


def leaves(value, path=()):
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    yield path


def test_every_field_of_a_wrong_type_is_malformed(bench):
    lawful = 0
    for path in list(leaves(full(bench))):
        if not path:
            continue
        for wrong in (5, True, [5], {"x": 1}, [[]], ""):
            document = json.loads(json.dumps(full(bench)))
            here = document
            for step in path[:-1]:
                here = here[step]
            if type(here[path[-1]]) is type(wrong) and wrong != "":
                continue
            here[path[-1]] = wrong
            try:
                parse_request(document)
            except Malformed:
                continue
            lawful += 1  # empty text where text may be empty, or a text where a list of one is meant
            assert wrong in ("", 5, True) or path == ("delegation",), (path, wrong)
    assert lawful < 25


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "5", "{", '{"operation":"execute","operation":"execute"}', '{"a":NaN}', "\x00", '{"a":1.5}', "[" * 100_000,
        '{"a":"' + "x" * 600_000 + '"}',
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_what_is_no_request_at_all_still_gets_the_complete_result(bench, text):
    blocked(bench, bench.write(text), "malformed")


def test_a_request_that_is_not_there_gets_it_too(bench):
    blocked(bench, "/no/such/request.json", "malformed")


@pytest.mark.parametrize("operation", ["review", "computer-use", "destroy", "", 5, None, ...])
def test_only_execute_is_supported(bench, operation):
    told = blocked(bench, bench.request(operation=operation), "malformed")
    if operation in ("review", "computer-use"):
        assert "not supported" in told


SECRET = "ghp_" + "a" * 36


def test_a_credential_in_any_field_blocks_naming_the_field_and_not_the_value(bench):
    document = full(bench)
    texts = [
        path for path in leaves(document) if path and path != ("authority", "approvals", 0, "approval_seq")
    ]
    seen = 0
    for path in texts:
        broken = json.loads(json.dumps(document))
        here = broken
        for step in path[:-1]:
            here = here[step]
        if not isinstance(here[path[-1]], str):
            continue
        here[path[-1]] = f"see {SECRET}"
        with pytest.raises(Malformed) as refusal:
            parse_request(broken)
        assert str(path[-1]) in str(refusal.value) or f"[{path[-1]}]" in str(refusal.value)
        assert SECRET not in str(refusal.value)
        seen += 1
    assert seen >= 12
    told = blocked(bench, bench.request(outcome=f"use {SECRET}"), "malformed")
    assert "request.outcome" in told


def test_a_refused_credential_is_nowhere_in_the_ledger(bench):
    bench.run(bench.request(context={"state": SECRET}), NEVER)
    for folder, _, names in os.walk(bench.folder):
        for name in names:
            path = os.path.join(folder, name)
            if name != "request.json":
                with open(path, "rb") as file:
                    assert SECRET.encode() not in file.read(), path


def test_a_report_with_a_credential_is_a_failure_and_kept_nowhere(bench):
    code, result = bench.run(bench.request(), DONE.replace("I did it.", SECRET))
    assert (code, result["status"], result["artifacts"]["report"]) == (1, "failed", "")
    assert "the report carries what looks like a credential" in result["blockers"][0]
    assert SECRET not in json.dumps(result)


@pytest.mark.parametrize("blockers", [["which branch?"], "which branch?"])
def test_an_unresolved_blocker_blocks(bench, blockers):
    assert "which branch?" in blocked(bench, bench.request(blockers=blockers), "blockers")


def test_a_working_directory_that_does_not_exist_blocks(bench):
    blocked(bench, bench.request(authority={"working_directory": "/no/such/place"}), "directory")
    blocked(bench, bench.request(authority={"working_directory": str(bench.rubric)}), "directory")


def test_an_unavailable_tool_blocks(bench):
    assert "no-such-tool" in blocked(
        bench, bench.request(authority={"tools": ["git", "no-such-tool"]}), "tools"
    )


@pytest.mark.parametrize(
    "tools", [[], ["git"], ["git commit"], ["Bash", "Read", "apply_patch"], ["Bash(git:*)"], ["sh"]]
)
def test_programs_here_and_an_agents_own_tools_are_available(tools):
    assert missing_tool(tools) is None


@pytest.mark.parametrize(
    "path", ["..", "../sibling", "/etc", "link", "link/sub", "a/../..", "loop", "inner/up"]
)
def test_an_allowed_path_that_leaves_the_ceiling_blocks(bench, path):
    (bench.work / "link").symlink_to("/etc")
    (bench.work / "loop").symlink_to("loop")
    (bench.work / "inner").mkdir()
    (bench.work / "inner" / "up").symlink_to("../..")
    told = blocked(bench, bench.request(authority={"allowed_paths": [path]}), "paths")
    assert repr(path) in told


def test_allowed_paths_inside_are_resolved(tmp_path):
    work = tmp_path / "work"
    (work / "real").mkdir(parents=True)
    (work / "alias").symlink_to("real")
    (tmp_path / "to-work").symlink_to(work)
    assert ceiling_of(str(work), ["alias", "not/yet"]).allowed == (
        str(work / "real"),
        str(work / "not" / "yet"),
    )
    assert ceiling_of(str(tmp_path / "to-work"), ["."]).sandbox == "workspace-write"
    assert ceiling_of(str(work), [str(tmp_path)]).sandbox == "workspace-write"  # plainly above, and absolute
    assert ceiling_of(str(work), ["real"]).sandbox == "paths"
    assert ceiling_of(str(work), []).sandbox == "read-only"
    with pytest.raises(Refused):
        ceiling_of(str(work), [str(tmp_path / "to-work" / "..")])


def test_a_path_like_the_directory_is_not_inside_it(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work2").mkdir()
    with pytest.raises(Refused):
        ceiling_of(str(tmp_path / "work"), [str(tmp_path / "work2")])


def test_an_artifact_or_target_outside_the_authority_blocks(bench):
    assert "artifact" in blocked(bench, bench.request(artifacts=["../x"]), "paths")
    assert "artifact" in blocked(bench, bench.request(authority={"allowed_paths": []}), "paths")
    assert "fixed_target" in blocked(
        bench, bench.request(verification={"fixed_target": ["/etc/passwd"]}), "paths"
    )


def test_an_unknown_route_or_an_unfit_rubric_blocks(bench):
    assert "no route 'nope'" in blocked(bench, bench.request(route="nope"), "route")
    text = bench.rubric.read_text()
    for spoiled, word in (
        (text.split("reviewed")[0], "reviewed is missing"),
        (text + "seed: true\n", "seed"),
        ("models: [", "not YAML"),
    ):
        bench.rubric.write_text(spoiled)
        assert word in blocked(bench, bench.request(), "rubric")


def test_independent_needs_its_authors_and_keeps_them_out(bench):
    assert "authoring_providers" in blocked(bench, bench.request(route="independent"), "malformed")
    told = blocked(bench, bench.request(route="independent", authoring_providers=["anthropic"]), "route")
    assert "authoring provider anthropic" in told


def test_paths_narrower_than_an_executor_enforces_pass_it_over(bench):
    (bench.work / "ok").mkdir()
    request = bench.request(
        authority={"allowed_paths": ["ok"]}, artifacts=[], verification={"seam": "true", "fixed_target": []}
    )
    told = blocked(bench, request, "enforcement")
    assert "claude-a@high cannot enforce that" in told
    bench.executor("gemini", "print('kept to it')", enforces_paths=True)
    code, result = bench.run(request, NEVER)
    assert (code, result["route"]["attempted"], result["route"]["fallback_reason"]) == (
        0,
        ["gem-c@low"],
        "unenforced_paths",
    )
    selected = [fact for fact in bench.events() if fact.type == "route.selected"][-1]
    assert [(passed.candidate, passed.reason) for passed in selected.data.passed] == [
        ("claude-a@high", "unenforced_paths")
    ]
    assert bench.circuits() == {}


def test_a_context_mode_that_the_executor_cannot_give_blocks_and_changes_no_provider(bench):
    bench.executor("gemini", DONE)
    request = bench.request(route="other", context={"mode": "fork"})
    told = blocked(bench, request, "context_mode")
    assert "gemini cannot give context mode fork" in told
    assert bench.run(bench.request(context={"mode": "fork"}), DONE)[0] == 0  # the native runtime can


def test_an_executor_of_a_configuration_in_the_work_tree_is_not_run(bench, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(bench.work / "config"))
    (bench.work / "config" / "gatebook").mkdir(parents=True)
    (bench.work / "config" / "gatebook" / "config.toml").write_text(
        "[executors.gemini]\ncommand = ['true']\n"
    )
    assert "lies in the working directory" in blocked(bench, bench.request(), "executor")


def test_a_configuration_that_others_may_write_or_that_is_malformed_blocks(bench):
    path = bench.config("[executors.gemini]\ncommand = ['true']\n")
    path.chmod(0o666)
    assert "may be written by others" in blocked(bench, bench.request(), "executor")
    path.chmod(0o600)
    for text in (
        "[executors.x]\n",
        "[executors.x]\ncommand = []\n",
        "[executors.x]\ncommand = 'a'\n",
        "[executors.codex]\ncommand=['a']\n",
        "[executors.x]\ncommand=['a']\nodd=1\n",
        "x =",
    ):
        path.write_text(text)
        assert "config.toml" in blocked(bench, bench.request(), "executor")


def test_other_tables_of_the_configuration_are_left_alone(bench):
    bench.config("[git]\ntrusted_filters = ['lfs']\n")
    assert bench.run(bench.request(), DONE)[0] == 0


def test_an_executor_that_is_in_no_configuration_is_missing(bench):
    told = blocked(bench, bench.request(route="default"), "exhausted", executors="codex,unheard-of")
    assert "gpt-b@high: missing_executor" in told


def test_no_ledger_is_told_before_anything_else(bench, monkeypatch):
    (bench.folder / "elsewhere").mkdir()
    monkeypatch.chdir(bench.folder / "elsewhere")
    code, told, _ = bench.gatebook("dispatch", "run", bench.write(bench.request()))
    assert (code, told["status"]) == (2, "error")


@pytest.mark.parametrize(
    "more",
    [["--executors", "[1]"], ["--attempted", "x"], ["--now", "today"], ["--native", ""], ["--native", "'open"], ["--timeout", "x"], ["--odd"]],
    ids=str,
)  # fmt: skip
def test_a_bad_argument_is_told_before_any_file_is_read(bench, more):
    code, told, _ = bench.gatebook("dispatch", "run", "/no/such/request.json", *more)
    assert (code, told["status"]) == (2, "error")
    assert bench.types() == []


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "operation",
                        "route",
                        "outcome",
                        "authority",
                        "verification",
                        "seam",
                        "working_directory",
                        "context",
                        "x",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
    )
)
def test_no_document_makes_the_reader_fall_over(value):
    document = value if isinstance(value, dict) else {"outcome": value}
    identity(document)
    try:
        parse_request(document)
    except Malformed:
        return


@pytest.mark.parametrize(
    "intent", ["mcp__shelby__search", "use mcp__x", 'search("decisions")', "recall(project)"]
)
@pytest.mark.parametrize("field", ["recall", "capture"])
def test_a_tool_named_in_a_memory_intent_is_refused(bench, field, intent):
    document = bench.request(context={"memory": {"enabled": True, field: [intent]}})
    with pytest.raises(Malformed, match=field):
        parse_request(document)
    parse_request(
        bench.request(context={"memory": {"enabled": True, field: ["earlier decisions (recent ones)"]}})
    )
