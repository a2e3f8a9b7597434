"""The session file's format: every byte that is not ours survives."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.sessions.security import CATEGORIES, kind_of_secret
from commands.sessions.session_file import (
    METADATA,
    ORDER,
    Metadata,
    approved_plan,
    new_session,
    parse_metadata,
    parse_session,
)
from ledger.errors import Invalid

LINE = st.text(alphabet="#`~- \tab\r|", max_size=12)
TEXT = st.lists(
    st.one_of(LINE, st.sampled_from([f"## {t}" for t in ORDER] + ["## X", "```", "## ", "##"]))
).map("\n".join)


@given(TEXT)
def test_what_was_parsed_prints_back_byte_for_byte(text):
    assert parse_session(text).render() == text


@given(TEXT, st.sampled_from(["Files Changed", "Review History", METADATA]), LINE)
def test_a_rewrite_keeps_every_other_section(text, title, body):
    before = parse_session(text)
    after = before.with_bodies({title: body})
    assert (after.body(title) or "") == body.strip("\r\n")
    replaced = False
    others = []
    for name, raw in before.sections:
        if name == title and not replaced:
            continue
        others.append((name, raw.rstrip("\n")))
    kept = [(name, raw.rstrip("\n")) for name, raw in after.sections if name != title]
    assert sorted(o for o in others if o[0] != title) == sorted(kept)
    assert after.preamble == before.preamble


def test_a_new_file_has_the_contracts_order_and_metadata_last():
    for source in ("user-supplied", "review-only"):
        file = new_session(
            source=source, title="T", description="D", plan="P", files_changed="", metadata=Metadata()
        )
        names = [name for name, _ in file.sections]
        assert [n for n in names if n in ORDER] == list(ORDER)
        assert names[-1] == METADATA
        assert ("Review Target" in names) == (source == "review-only")
        assert approved_plan(file)[0] == source
        assert parse_session(file.render()).render() == file.render()


def test_the_plan_may_hold_our_headings():
    plan = "## Context\n\nx\n\n## Review History\n\nnone\n\n## Session Metadata\n- entry_point: plan"
    metadata = Metadata()
    metadata.entry_point = "execute-from-plan"
    metadata.heads = dict.fromkeys(metadata.heads, "unborn")
    file = new_session(
        source="user-supplied", title="T", description="", plan=plan, files_changed="", metadata=metadata
    )
    again = parse_session(file.render())
    assert approved_plan(again)[1] == plan
    assert parse_metadata(again.body(METADATA)).entry_point == "execute-from-plan"
    changed = again.with_bodies({"Review History": "### Round 1"})
    assert approved_plan(changed)[1] == plan


@given(
    st.dictionaries(st.text(max_size=8), st.sampled_from(["<deleted>", "a" * 40])),
    st.lists(st.sampled_from(["a" * 40, "b" * 64])),
    st.sampled_from([None, "exec", "docs", "user-abort"]),
)
def test_metadata_reads_back(dirty, commits, blocked):
    metadata = Metadata()
    metadata.heads = {"base_head": "a" * 40, "last_verified_head": "unborn"}
    metadata.dirty = {"base_dirty": dirty, "last_verified_dirty": {}}
    metadata.session_commits = commits
    metadata.delivery_blocked_by = blocked
    again = parse_metadata(metadata.render())
    assert (again.heads, again.dirty, again.session_commits) == (metadata.heads, metadata.dirty, commits)
    assert (again.delivery_blocked_by, again.missing) == (blocked, [])


def test_metadata_may_stand_over_several_lines():
    text = """
- entry_point: `plan`
- base_head: %s   # at the beginning
- base_dirty: {
    "a: b": "<deleted>",
    "c": "%s"
  }
- session_commits: [
    "%s",
  ]
- completed_stages:
  ["exec"]
Some prose.
""" % (("a" * 40,) * 3)
    metadata = parse_metadata(text.replace('",\n  ]', '"\n  ]'))
    assert metadata.entry_point == "plan"
    assert metadata.dirty["base_dirty"] == {"a: b": "<deleted>", "c": "a" * 40}
    assert metadata.session_commits == ["a" * 40]
    assert metadata.completed_stages == ["exec"]
    assert metadata.missing == ["last_verified_head", "last_verified_dirty"]


def test_a_map_over_many_lines_costs_its_length():
    """What took minutes: the whole was parsed again at each line, to see whether it had ended."""
    paths = {f"src/{i}.py": "a" * 40 for i in range(20_000)}
    metadata = parse_metadata(f"- base_dirty: {json.dumps(paths, indent=2)}\n- other: 1")
    assert (metadata.dirty["base_dirty"], metadata.others) == (paths, ["- other: 1"])


@pytest.mark.parametrize(
    "value", ["- completed_stages:\n  - exec\n  - polish", "session_commits:\n    - abc"]
)
def test_a_list_in_another_form_is_told_and_not_taken_for_an_empty_one(value):
    with pytest.raises(Invalid, match="not a list in brackets"):
        parse_metadata(value)


@pytest.mark.parametrize(
    "line",
    ["- base_head: main", "- base_dirty: [1]", "- base_dirty: {", "- completed_stages: exec", "- completed_stages: [gate]",
     "- delivery_blocked_by: lunch", "- entry_point: mail", "- plan_source: me", '- base_dirty: {"a": 1}'],
)  # fmt: skip
def test_a_value_outside_its_set_is_invalid(line):
    with pytest.raises(Invalid):
        parse_metadata(line)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a/server.PEM", "keys"), ("x.key", "keys"), ("certs/ca.crt", "keys"), ("k.p12", "keys"), ("k.asc", "keys"), ("k.pgp", "keys"),
        (".env", "environment"), ("app/.env.production", "environment"), (".env.example", None), (".env.sample", None),
        (".env.example.txt", None), ("credentials.json", "secrets"), ("my-secrets.yaml", "secrets"), ("API_KEY.txt", "secrets"),
        ("auth-token", "secrets"), ("etc/passwd", "secrets"), ("etc/shadow", "secrets"), ("secrets.example.yaml", None),
        ("secrets.sample", None), ("id_rsa", "ssh"), (".ssh/id_ed25519", "ssh"), ("id_ecdsa.pub", "ssh"), ("xid_rsa", None),
        ("gcp/service-account-prod.json", "cloud"), (".aws/config", "cloud"), ("home/.gcloud/x", "cloud"),
        ("dump.sql.gz", "databases"), ("a.sqlite3", "databases"), ("x.db", "databases"), ("terraform.tfstate", "terraform"),
        ("terraform.tfstate.backup", "terraform"), ("prod.tfvars", "terraform"), ("prod.tfvars.example", None),
        (".terraform/x", "terraform"), ("app.js.map", "source-maps"), ("npm.log", "logs"), ("logs/x", "logs"), ("a/logs/y", "logs"),
        ("src/main.py", None), ("catalogs/x", None), ("keyboard.py", None), ("mapper.go", None), ("a.env", "environment"),
    ],
)  # fmt: skip
def test_kind_of_secret(path, kind):
    assert kind_of_secret(path) == kind


def test_the_starred_categories_always_ask():
    assert {c.name for c in CATEGORIES if c.ask} == {"cloud-credentials", "generic-secrets"}
    assert len(CATEGORIES) == 10


def test_a_phase_in_its_heading_stays_there():
    text = "## Context\n\nc\n\n## Current Phase: planning\n\n## Approved Plan\n\n## Session Metadata\n"
    file = parse_session(text)
    assert file.render() == text
    assert file.body("Current Phase") == "planning"
    assert file.with_bodies({"Current Phase": "planning"}).render() == text
    assert file.with_bodies({"Current Phase": "execution"}).render() == text.replace("planning", "execution")
