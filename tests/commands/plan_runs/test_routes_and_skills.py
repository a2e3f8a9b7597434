"""The route resolver, the delivery policy, sub-routers, and which skills can be found."""

import sys

import pytest

from commands.plan_runs import resolve_skill
from commands.plan_runs.routes import Resolver, SubRouterError, delivery_reason, load_routes
from commands.plan_runs.skills import SkillFolder
from ledger.errors import Invalid, Refused

ONLINE = {"course_id": 7, "assignment_id": 1, "submission_types": ["online_upload"]}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "missing_submission_type"), ({"submission_types": ""}, "missing_submission_type"), ({"submission_types": []}, "missing_submission_type"), ({"submission_types": None}, "missing_submission_type"),
        ({"submission_types": ["on_paper"]}, "on_paper"), ({"submission_types": ["external_tool"]}, "external_tool_unsupported"),
        ({"submission_types": ["none"]}, "no_online_submission"), ({"submission_types": ["none", "not_graded"]}, "no_online_submission"),
        ({"submission_types": ["discussion_topic"]}, "unsupported_submission_type"), ({"submission_types": [3]}, "unsupported_submission_type"),
        ({"submission_types": ["online_quiz"]}, "new_quiz_or_missing_classic_quiz_id"), ({"submission_types": ["online_quiz"], "quiz_id": 0}, None),
        ({"submission_types": ["online_quiz"], "quiz_id": 5}, None), ({"submission_types": ["none", "online_url"]}, None),
        *(({"submission_types": [kind]}, None) for kind in ("online_upload", "online_text_entry", "online_url", "media_recording", "student_annotation")),
    ],
)  # fmt: skip
def test_the_delivery_policy_gives_its_reason(fields, reason):
    assert delivery_reason(fields) == reason
    if reason is not None:
        found = resolve_skill("canvas-essay", fields)
        assert (found.skill, found.reason) == ("canvas-skip", reason)


def test_the_first_matching_override_wins_and_a_list_matches_as_a_set():
    route = {
        "name": "Code A", "skill": "canvas-code-course",
        "overrides": [
            {"match": {"submission_types": ["online_url", "online_upload"]}, "skill": "canvas-links"},
            {"match": {"name": "Essay"}, "skill": "canvas-essay"},
            {"match": {"name": "Essay", "points_possible": 5}, "skill": "canvas-never"},
        ],
    }  # fmt: skip
    assert resolve_skill(route, ONLINE).skill == "canvas-code-course"
    assert (
        resolve_skill(route, {**ONLINE, "submission_types": ["online_upload", "online_url"]}).skill
        == "canvas-links"
    )
    assert resolve_skill(route, {**ONLINE, "name": "Essay", "points_possible": 5}).skill == "canvas-essay"


def test_aliases_lead_to_canonical_names_and_unknown_ones_to_skip():
    aliases = {"quiz": "classic-quiz", "classic-quiz": "canvas-quiz", "a": "b", "b": "a"}
    assert resolve_skill("quiz", ONLINE, aliases=aliases).skill == "canvas-quiz"
    for name in ("writing", "a", "Canvas-x"):
        found = resolve_skill(name, ONLINE, aliases=aliases)
        assert (found.skill, found.reason) == ("canvas-skip", "unknown_route_skill")


TOML = (
    '[aliases]\nquiz = "canvas-quiz"\n[routes]\n7 = "quiz"\n[routes.8]\nname = "B"\nskill = "canvas-essay"\n'
)
YAML = "aliases: {quiz: canvas-quiz}\nroutes:\n  7: quiz\n  8: {name: B, skill: canvas-essay}\n"


@pytest.mark.parametrize(("name", "text"), [("routes.toml", TOML), ("routes.yaml", YAML)])
def test_routes_are_read_from_toml_and_yaml_alike(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    resolver = Resolver(load_routes(str(tmp_path / name)))
    assert resolver.of(ONLINE) == "canvas-quiz"
    assert resolver.of({**ONLINE, "course_id": "8"}) == "canvas-essay"
    assert resolver.of({**ONLINE, "course_id": 9}) == "canvas-skip"
    assert resolver.of_swap("canvas-other", ONLINE) == "canvas-other"
    assert resolver.of_swap("quiz", ONLINE) == "canvas-quiz"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.toml", "routes = 3"), ("r.toml", "[routes"), ("r.toml", "[routes]\n7 = 1"), ("r.toml", "[routes.7]\nname='x'"),
        ("r.yaml", "routes: {7: a, 7: b}"), ("r.yaml", "a: &a [1]\nroutes: {7: *a}"), ("r.yaml", "routes: ["), ("r.yaml", ""), ("r.yaml", "- 1"),
        ("r.yaml", "routes: {7: {skill: canvas-a, overrides: {}}}"), ("r.yaml", "routes: {7: {skill: canvas-a, overrides: [{skill: canvas-b}]}}"),
        ("r.yaml", "routes: {7: {skill: canvas-a, sub_router: 5}}"), ("r.yaml", "routes: {7: canvas-a}\naliases: [a]"), ("r.yaml", b"\xff\xfe\x00"),
    ],
)  # fmt: skip
def test_malformed_routes_are_refused(tmp_path, name, text):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((Invalid, Refused)):
        load_routes(str(tmp_path / name))


def test_a_sub_router_answers_with_one_name(tmp_path):
    script = tmp_path / "router.py"
    script.write_text("import json,sys; print('canvas-' + json.load(sys.stdin)['kind'])")
    route = {"skill": "canvas-family", "sub_router": [sys.executable, str(script)]}
    assert resolve_skill(route, {**ONLINE, "kind": "lab"}, ask=True).skill == "canvas-lab"
    assert resolve_skill(route, {**ONLINE, "kind": "lab"}).skill == "canvas-family"
    for kind in ("", "Lab", "a b"):
        with pytest.raises(SubRouterError):
            resolve_skill(route, {**ONLINE, "kind": kind}, ask=True)


@pytest.mark.parametrize("command", ["false", "/no/such/program", "", "echo essay", "'"])
def test_a_failing_sub_router_is_an_error(command):
    with pytest.raises((SubRouterError, Invalid)):
        resolve_skill({"skill": "canvas-family", "sub_router": command}, ONLINE, ask=True)


def skill(root, folder, text):
    (root / folder).mkdir(exist_ok=True)
    (root / folder / "SKILL.md").write_text(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("---\nname: canvas-a\ndescription: x: y\n---\nbody", True), ("---\nname: 'canvas-a'\n---\n", True), ("\ufeff---\nname: canvas-a # c\n---\n", True),
        ("---\nname: canvas-b\n---\n", False), ("name: canvas-a\n", False), ("---\nname: canvas-a\n", False), ("---\nname: canvas-a\nname: canvas-b\n---\n", False),
        ("---\nname: canvas-a\n---\nUNFILLED_SKELETON", False), ("---\nmeta:\n  name: canvas-a\n---\n", False), ("", False),
    ],
)  # fmt: skip
def test_a_skill_is_discoverable_when_it_is_named_like_its_folder_and_finished(tmp_path, text, found):
    skill(tmp_path, "canvas-a", text)
    skills = SkillFolder(str(tmp_path))
    assert ("canvas-a" in skills) is found
    assert (skills.why_not("canvas-a") is None) is found
    assert "canvas-none" not in skills
    assert "../canvas-a" not in skills
    assert "canvas-a" not in SkillFolder(None)
