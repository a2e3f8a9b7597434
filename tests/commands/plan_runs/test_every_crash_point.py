"""Each command of a run is killed before each change that it makes to a file; the same command then ends as if nothing was."""

import json
import os
import shutil

import pytest

from commands.entry import run as call

CHANGES = ("fsync", "rename", "link", "unlink", "mkdir")


def killed_before(place, words):
    """Runs the command in a process of its own that dies at its `place`-th change; whether it came to that."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 77
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(quiet, number)
    count = 0

    def dying(real):
        def change(*arguments, **more):
            nonlocal count
            count += 1
            if count == place:
                os._exit(77)
            return real(*arguments, **more)

        return change

    for name in CHANGES:
        setattr(os, name, dying(getattr(os, name)))
    call([str(word) for word in words])
    os._exit(0)


def essence(house):
    """What must be the same however often a command was killed: no times, no numbers of events."""
    state = house.state()
    files = {
        str(path.relative_to(house.runs)): path.read_bytes()
        for path in sorted(house.runs.rglob("*"))
        if path.is_file() and path.suffix == ".md"
    }
    return {
        "plan": state.current,
        "holder": state.claim and (state.claim.session_id, state.claim.is_ready, state.claim.archived),
        "results": {key: (held.status, held.digest, held.paused) for key, held in state.results.items()},
        "open": state.open and state.open.key,
        "ended": bool(state.finalized),
        "marker": house.marker().exists(),
        "processed": {key: {**entry, "recorded_at": ""} for key, entry in house.processed().items()}
        if (house.runs / "_processed.json").exists()
        else {},
        "ran": house.ran(),
        "history": sorted(str(path.relative_to(house.run)) for path in house.run.rglob("result-history/*")),
        "drafts": sorted(name for name in files if "final_drafts" in name),
    }


@pytest.mark.slow
def test_a_command_killed_before_any_change_is_completed_by_the_same_command(house):
    house.plan(house.run, 3)
    house.put(1, {"status": "skipped", "notes": "An older result."})
    now = ("--now", house.now.isoformat())
    commands = [
        ("plan", "approve", "--text", "1,2"),
        ("run", "claim"),
        ("run", "prepare-results"),
        ("run", "execute", "--handoff", house.script()),
        ("run", "report"),
        ("run", "deliver"),
        ("run", "finalize"),
    ]
    kept = house.folder.parent / f"{house.folder.name}-kept"
    points = 0
    for words in commands:
        whole = [*words[:2], "--run-dir", house.run, *words[2:], *now]
        shutil.copytree(house.folder, kept, symlinks=True)
        house.ok(*words, *now)
        wanted = essence(house)
        place = 1
        while True:
            shutil.rmtree(house.folder)
            shutil.copytree(kept, house.folder, symlinks=True)
            os.chdir(house.folder)
            if not killed_before(place, whole):
                break
            code, document, err = house.on(*words, *now)
            if words[1] == "claim" and code == 0 and document["outcome"] == "resumed":
                # The claim stood already: coming back to it is the one difference.
                assert house.state().claim.again
            else:
                assert code == 0, (words, place, err)
            found = essence(house)
            if words[1] == "claim":
                found["holder"], wanted["holder"] = (
                    found["holder"][0],
                    wanted["holder"][0] if isinstance(wanted["holder"], tuple) else wanted["holder"],
                )
            assert found == wanted, (words, place)
            place += 1
            points += 1
        # The uninterrupted child has done the command: go on from there.
        shutil.rmtree(kept)
        assert json.dumps(essence(house)["results"]) == json.dumps(wanted["results"])
    assert points >= 40
