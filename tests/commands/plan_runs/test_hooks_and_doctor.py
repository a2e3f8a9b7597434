"""Hooks installed by a person and taken out again; event capture; what doctor says about shared files."""

import json
import os
import pty

import pytest

from commands.entry import run as call


def hooks(house, *words, code=0):
    house.capture.readouterr()
    found = call(["hooks", *words])
    out, err = house.capture.readouterr()
    assert found == code, err
    return out + err


@pytest.mark.parametrize(
    ("agent", "name"), [("codex", ".codex/hooks.json"), ("claude", ".claude/settings.json")]
)
def test_hooks_are_installed_once_and_taken_out_again(house, agent, name):
    house.be(None)
    path = house.folder / name
    assert "gatebook guard stop" in hooks(house, "install", agent, "--yes")
    document = json.loads(path.read_text())
    assert document["hooks"]["Stop"][0]["hooks"][0] == {
        "type": "command",
        "command": "gatebook guard stop",
        "timeout": 10,
    }
    assert set(document["hooks"]) == {"SessionStart", "PostToolUse", "Stop"}
    assert "nothing to change" in hooks(house, "install", agent, "--yes")
    from commands.hooks import installed

    assert installed()[agent] == str(path)
    assert hooks(house, "uninstall", agent, "--yes").count("-") > 3
    assert not path.exists()
    assert installed()[agent] == ""


def test_a_handler_of_somebody_that_calls_the_guard_too_is_kept(house):
    house.be(None)
    path = house.folder / ".claude" / "settings.json"
    path.parent.mkdir()
    mine = ["gatebook guard capture && echo mine", "gatebook guard stop --runs work"]
    path.write_text(json.dumps({"hooks": {"Stop": [{"hooks": [{"command": one} for one in mine]}]}}))
    hooks(house, "install", "claude", "--yes")
    path.write_text(json.dumps({**json.loads(path.read_text()), "edited": True}))
    hooks(house, "uninstall", "claude", "--yes")
    kept = json.loads(path.read_text())["hooks"]
    assert [one["command"] for one in kept["Stop"][0]["hooks"]] == mine
    assert set(kept) == {"Stop"}


def test_what_others_wrote_is_kept_byte_for_byte(house):
    house.be(None)
    path = house.folder / ".claude" / "settings.json"
    path.parent.mkdir()
    original = (
        '{"model":"x", "hooks": {"Stop": [{"matcher":"","hooks":[{"type":"command","command":"mine"}]}]}}'
    )
    path.write_text(original)
    hooks(house, "install", "claude", "--yes")
    document = json.loads(path.read_text())
    assert [group["hooks"][0]["command"] for group in document["hooks"]["Stop"]] == [
        "mine",
        "gatebook guard stop",
    ]
    hooks(house, "uninstall", "claude", "--yes")
    assert path.read_text() == original
    hooks(house, "install", "claude", "--yes")
    document = json.loads(path.read_text())
    document["edited"] = True
    path.write_text(json.dumps(document))
    hooks(house, "uninstall", "claude", "--yes")
    assert json.loads(path.read_text()) == {**json.loads(original), "edited": True}


def test_an_agent_session_and_a_process_without_a_terminal_install_nothing(house):
    assert "agent session" in hooks(house, "install", "codex", "--yes", code=4)
    house.be(None)
    house.monkeypatch.setenv("GATEBOOK_ACTOR", "claude:x")
    assert "agent session" in hooks(house, "install", "codex", "--yes", code=4)
    house.monkeypatch.delenv("GATEBOOK_ACTOR")
    process = house.start("hooks", "install", "codex", stdin=-1)
    process.communicate("")
    assert process.returncode == 4
    assert "not one of" in hooks(house, "install", "cursor", "--yes", code=2)
    assert not (house.folder / ".codex").exists()


def test_a_person_is_shown_the_difference_and_asked(house):
    for answer, written in (("n\n", False), ("y\n", True)):
        main, other = pty.openpty()
        process = house.start("hooks", "install", "codex", stdin=other, env={"CODEX_THREAD_ID": ""})
        os.write(main, answer.encode())
        out, _ = process.communicate(timeout=20)
        os.close(main)
        os.close(other)
        assert "+++ b/.codex/hooks.json" in out
        assert (house.folder / ".codex" / "hooks.json").exists() is written


@pytest.mark.parametrize("text", ["[]", "{", '{"hooks": []}', '{"hooks": {"Stop": {}}}'])
def test_a_hook_file_that_is_none_is_left_alone(house, text):
    house.be(None)
    path = house.folder / ".codex" / "hooks.json"
    path.parent.mkdir()
    path.write_text(text)
    hooks(house, "install", "codex", "--yes", code=1)
    assert path.read_text() == text


def test_capture_records_names_and_a_digest_and_never_what_was_said(house):
    document = {
        "session_id": "s1",
        "hook_event_name": "PostToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "cat secret-plans"},
    }
    process = house.start("guard", "capture", stdin=-1)
    out, err = process.communicate(json.dumps(document))
    assert (json.loads(out), err, process.returncode) == ({}, "", 0)
    assert house.types()[-1] == "x.agent.hook_called"
    assert b"secret-plans" not in b"".join(
        path.read_bytes() for path in (house.folder / ".gatebook").iterdir() if path.is_file()
    )
    process = house.start("guard", "capture", stdin=-1)
    assert process.communicate("junk")[0] == "{}\n"


def checks(house):
    from commands.shared_files import check_files
    from ledger.access import open_ledger

    opened = open_ledger(str(house.folder / ".gatebook"))
    try:
        return {os.path.basename(name): (verdict, found) for name, verdict, found, _ in check_files(opened)}
    finally:
        opened.close()


def test_doctor_says_where_files_and_log_disagree(house):
    assert checks(house) == {}
    house.ready("1,2")
    assert {verdict for verdict, _ in checks(house).values()} == {"ok"}
    plan, marker = (house.run / "plan.json").read_bytes(), house.marker().read_bytes()
    (house.run / "plan.json").write_bytes(plan.replace(b"Set 1", b"Set 9"))
    assert checks(house)["plan.json"][0] == "problem"
    (house.run / "plan.json").write_bytes(plan)
    house.marker().unlink()
    assert "is gone" in checks(house)[".scan_in_progress"][1]
    house.marker().write_bytes(marker.replace(b"s1", b"s2").replace(b"claim_nonce", b"other_nonce"))
    assert "s2" in checks(house)[".scan_in_progress"][1]
    house.marker().write_bytes(marker)


def test_a_changed_entry_is_adopted_as_an_event_and_the_run_goes_on(house):
    from commands.shared_files import adopt
    from ledger.access import open_ledger
    from ledger.errors import Invalid, Refused
    from ledger.event import Origin

    house.ready("1,2")
    path = house.runs / "_processed.json"
    path.write_text(path.read_text().replace("not approved this run", "edited by another tool"))
    assert checks(house)["_processed.json"][0] == "problem"
    assert "doctor --adopt" in house.refused(4, "run", "next")
    opened = open_ledger(str(house.folder / ".gatebook"))
    found = adopt(opened, str(path), Origin("cli:test", "doctor"))
    with pytest.raises(Refused):
        adopt(opened, str(house.run / "plan.json"), Origin("cli:test", "doctor"))
    edited = path.read_bytes()
    path.write_text("{}")
    with pytest.raises(Refused, match="is gone; put one back"):
        adopt(opened, str(path), Origin("cli:test", "doctor"))
    path.write_bytes(edited)
    (house.folder / "other").mkdir()
    (house.folder / "other" / "_processed.json").write_text("{}")
    with pytest.raises(Refused, match="no run of this ledger"):
        adopt(opened, str(house.folder / "other" / "_processed.json"), Origin("cli:test", "doctor"))
    with pytest.raises(Invalid, match="no such file"):
        adopt(opened, str(house.folder / "none" / "_processed.json"), Origin("cli:test", "doctor"))
    opened.close()
    assert len(found["adopted"]) == 3
    assert checks(house)["_processed.json"][0] == "ok"
    house.ok("run", "next")
    assert "edited by another tool" in path.read_text()


@pytest.mark.parametrize("found", [False, True])
def test_it_says_when_the_hooks_could_not_be_called_by_name(house, monkeypatch, tmp_path, found):
    house.be(None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    if found:
        (tmp_path / "bin" / "gatebook").write_text("#!/bin/sh\n")
        (tmp_path / "bin" / "gatebook").chmod(0o755)
    assert ("not on PATH" in hooks(house, "install", "claude", "--yes")) is not found
    from commands.doctor import _hooks

    assert any("not on PATH" in finding.found for finding in _hooks()) is not found


def test_what_is_told_beside_the_installation_of_hooks_follows_log_format(house, monkeypatch, tmp_path):
    house.be(None)
    monkeypatch.setenv("PATH", str(tmp_path))
    house.capture.readouterr()
    assert call(["--log-format", "json", "hooks", "install", "codex", "--yes"]) == 0
    told = house.capture.readouterr().err.splitlines()
    assert [json.loads(line)["level"] for line in told] == ["warning", "warning"]
