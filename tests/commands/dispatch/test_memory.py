"""Memory is asked before the work, told after acceptance, and never decides anything."""

import json
import os
import sys

import pytest
from bench import DONE

SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "memory_server.py")


@pytest.fixture
def remember(bench):
    heard = bench.folder / "heard"
    packet = bench.folder / "packet.json"

    def run(mode="fine", native=DONE, **memory):
        heard.write_text("")
        command = json.dumps([sys.executable, SERVER, mode, str(heard)])
        bench.config(f"[memory]\ncommand = {command}\nrecall_tool = 'search'\ncapture_tool = 'store'\n")
        intents = {
            "enabled": True,
            "recall": ["which colour?"],
            "capture": "the colour that was used",
            **memory,
        }
        keep = f"json.dump(packet, open({str(packet)!r}, 'w'))\n"
        code, result = bench.run(
            bench.request(context={"memory": intents, **run.context}),
            keep + "\n".join(line.strip() for line in native.splitlines()),
        )
        assert packet.exists(), result
        run.packet = json.loads(packet.read_text())
        run.calls = [
            m["params"]
            for m in map(json.loads, heard.read_text().splitlines())
            if m["method"] == "tools/call"
        ]
        return code, result

    run.context = {"project": "colours"}
    return run


def test_recall_reaches_the_packet_and_capture_follows_acceptance(bench, remember):
    code, result = remember()
    assert (code, result["shelby"]["project_id"]) == (0, "colours")
    assert remember.packet["current_state"] == "earlier we chose blue"
    assert remember.calls == [
        {"name": "search", "arguments": {"query": "which colour?", "scope": "colours"}},
        {"name": "store", "arguments": {"text": "the colour that was used", "scope": "colours"}},
    ]
    types = bench.types()
    assert types.index("memory.recalled") < types.index("dispatch.attempted")
    assert types[-2:] == ["dispatch.concluded", "memory.captured"]


def test_nothing_is_captured_of_what_was_not_accepted(bench, remember):
    code, _ = remember(native="sys.exit(1)")
    assert code == 1
    assert [call["name"] for call in remember.calls] == ["search"]
    assert "memory.captured" not in bench.types()


@pytest.mark.parametrize("mode", ["dies", "error", "secret"])
def test_a_memory_that_fails_changes_no_result(bench, remember, mode):
    code, result = remember(mode)
    assert (code, result["status"], result["blockers"]) == (0, "accepted", [])
    assert "current_state" not in remember.packet
    assert "memory.recalled" not in bench.types()


def test_a_silent_memory_is_not_waited_for(bench, remember, monkeypatch):
    monkeypatch.setattr("commands.dispatch.memory.TIMEOUT", 0.5)
    assert remember("silent")[0] == 0


def test_recall_is_bounded(bench, remember):
    remember("long")
    assert len(remember.packet["current_state"].encode()) <= 8192
    recalled = next(fact for fact in bench.events() if fact.type == "memory.recalled")
    assert (recalled.data.size, recalled.data.truncated) == (18000, True)


def test_memory_that_is_not_enabled_is_not_asked(bench, remember):
    assert remember(enabled=False)[0] == 0
    assert remember.calls == []


def test_without_a_project_the_scope_is_the_repository_else_temporary(bench, remember):
    remember.context = {}
    remember()
    assert remember.calls[0]["arguments"]["scope"].startswith("temporary:")
    (bench.work / "out.txt").unlink()
    bench.repository()
    remember()
    assert remember.calls[0]["arguments"]["scope"] == os.path.realpath(bench.work)
