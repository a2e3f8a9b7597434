"""Which ledger, whose, and is it as this machine remembers it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess

import pytest
from store_contract import DAY, ORIGIN, START, Clock, check_chain, draft, whole

from ledger import access
from ledger import home as machine
from ledger.access import create_ledger, find, open_current, open_found, open_ledger, trust
from ledger.errors import GatebookError, Invalid, Refused, Tampered, Unavailable, Usage


@pytest.fixture
def made(tmp_path, home):
    folder = tmp_path / "p" / ".gatebook"
    folder.parent.mkdir()
    ledger, _ = create_ledger(str(folder), ORIGIN)
    yield ledger
    ledger.close()


def git(folder, *words):
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words],
        cwd=folder,
        check=True,
        capture_output=True,
    )


def copy_of(ledger, target):
    """The ledger's files as a backup tool would copy them, at rest."""
    shutil.copytree(ledger.folder, target)
    return target


# -- making one


def test_a_new_ledger_is_private_and_its_keys_lie_elsewhere(made, home):
    assert stat.S_IMODE(os.stat(made.folder).st_mode) == 0o700
    for name in ("ledger.db", "ledger.lock", ".gitignore"):
        assert stat.S_IMODE(os.stat(os.path.join(made.folder, name)).st_mode) == 0o600
    keys = home / "state" / "gatebook" / "keys" / made.id
    assert sorted(os.listdir(keys)) == ["checkpoint", "receipt"]
    for name in ("checkpoint", "receipt"):
        assert stat.S_IMODE(os.stat(keys / name).st_mode) == 0o600
        seed = machine.read_key(made.id, name)
        public = json.loads(made.genesis.data)["keys"][name]
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        assert Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw().hex() == public
        for root, _, files in os.walk(made.folder):  # F94
            for file in files:
                with open(os.path.join(root, file), "rb") as handle:
                    raw = handle.read()
                assert seed not in raw
                assert seed.hex().encode() not in raw
    assert stat.S_IMODE(os.stat(home / "state" / "gatebook").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(home / "state" / "gatebook" / "keys").st_mode) & 0o077 == 0


def test_making_it_again_changes_nothing(made):
    before = made.store.head().hash
    again, created = create_ledger(made.folder, ORIGIN)
    assert not created
    assert again.id == made.id
    assert again.store.head().hash == before
    again.close()


def test_genesis_is_the_first_event_and_gives_the_ledger_its_id(made):
    from blake3 import blake3

    (genesis,) = whole(made.store)
    assert (genesis.seq, genesis.type, genesis.stream) == (1, "ledger.opened", "ledger")
    assert blake3(genesis.envelope).digest()[:16].hex() == made.id
    assert json.loads(genesis.data)["format"] == 1


def test_a_folder_with_a_loose_mode_is_closed_when_a_ledger_is_made_in_it(tmp_path, home):
    folder = tmp_path / ".gatebook"
    folder.mkdir()
    os.chmod(folder, 0o775)
    create_ledger(str(folder), ORIGIN)[0].close()
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    open_found(str(folder)).close()


def test_an_init_that_died_half_way_is_finished_by_the_next(tmp_path, home, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*_args):
        raise Killed

    monkeypatch.setattr(access, "_write_genesis", die)
    with pytest.raises(Killed):
        create_ledger(str(tmp_path / "l"), ORIGIN)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    ledger, created = create_ledger(str(tmp_path / "l"), ORIGIN)
    assert created
    assert ledger.store.head().seq == 1
    ledger.close()


@pytest.mark.parametrize("what", ["file", "link", "dangling"])
def test_a_ledger_is_not_made_over_a_file_or_through_a_link(tmp_path, home, what):
    place = tmp_path / ".gatebook"
    (tmp_path / "real").mkdir()
    if what == "file":
        place.write_text("mine")
    else:
        place.symlink_to(tmp_path / ("real" if what == "link" else "nowhere"))
    with pytest.raises(Refused):
        create_ledger(str(place), ORIGIN)
    assert os.listdir(tmp_path / "real") == []


@pytest.mark.parametrize("name", ["ledger.db", "ledger.lock"])
def test_a_link_in_the_place_of_a_file_is_not_followed_when_a_ledger_is_made(tmp_path, home, name):
    folder = tmp_path / "l"
    folder.mkdir()
    target = tmp_path / "victim"
    target.write_bytes(b"")
    (folder / name).symlink_to(target)
    with pytest.raises(GatebookError):
        create_ledger(str(folder), ORIGIN)
    assert target.read_bytes() == b""


@pytest.mark.parametrize("how", ["deleted", "empty"])
def test_a_lost_database_is_not_replaced_by_a_new_one(made, how):
    """F13: `init` where a trusted ledger stood says so; with the whole folder gone a new one may begin."""
    made.close()
    os.unlink(made.path)
    if how == "empty":
        open(made.path, "wb").close()
    with pytest.raises(Refused, match=f"ledger {made.id} stood here"):
        create_ledger(made.folder, ORIGIN)
    shutil.rmtree(made.folder)
    again, created = create_ledger(made.folder, ORIGIN)
    assert created
    assert again.id != made.id
    again.close()
    open_found(made.folder).close()  # and it is the new one that is trusted now


# -- finding one


def test_the_nearest_folder_upwards_is_found_and_opened(made, monkeypatch):
    deep = os.path.join(os.path.dirname(made.folder), "a", "b")
    os.makedirs(deep)
    monkeypatch.chdir(deep)
    assert find() == made.folder
    found = open_current(None)
    assert found.id == made.id
    found.close()


def test_nothing_found_is_usage(tmp_path, home, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Usage, match="no ledger here; run `gatebook init`"):
        open_current(None)


def test_a_folder_whose_database_is_gone_is_not_passed_over_for_an_outer_ledger(made, home):
    """F13: an event meant for the inner project must not land in the outer one."""
    inner = os.path.join(os.path.dirname(made.folder), "inner", ".gatebook")
    os.makedirs(os.path.dirname(inner))
    create_ledger(inner, ORIGIN)[0].close()
    os.unlink(os.path.join(inner, "ledger.db"))
    assert find(os.path.dirname(inner)) == inner
    with pytest.raises(GatebookError):
        open_found(inner)


def test_a_folder_that_only_holds_a_rubric_is_no_ledger(made):
    inner = os.path.join(os.path.dirname(made.folder), "inner", ".gatebook")
    os.makedirs(inner)
    open(os.path.join(inner, "rubric.yaml"), "w").close()
    assert find(os.path.dirname(inner)) == made.folder


def test_a_copied_project_does_not_bring_its_ledger_along(made, tmp_path):
    """Found, not chosen: the copy is refused until it is trusted, and opens when named."""
    copied = copy_of(made, str(tmp_path / "q"))
    with pytest.raises(Refused, match="gatebook trust"):
        open_found(copied)
    open_ledger(copied).close()
    trust(copied).close()
    open_found(copied).close()


def test_a_ledger_put_in_the_place_of_a_trusted_one_is_refused(made, tmp_path):
    other, _ = create_ledger(str(tmp_path / "other"), ORIGIN)
    other.close()
    made.close()
    shutil.rmtree(made.folder)
    shutil.copytree(other.folder, made.folder)
    with pytest.raises(Refused, match=f"another ledger stands where this machine trusted {made.id}"):
        open_found(made.folder)


def test_a_linked_folder_is_refused(made, tmp_path):
    place = tmp_path / "r"
    place.mkdir()
    (place / ".gatebook").symlink_to(made.folder)
    with pytest.raises(Refused, match="not a real directory"):
        open_found(str(place / ".gatebook"))
    with pytest.raises(Refused):
        trust(str(place / ".gatebook"))


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o770])
def test_a_folder_that_others_can_write_is_refused(made, mode):
    os.chmod(made.folder, mode)
    with pytest.raises(Refused, match="others can write"):
        open_found(made.folder)
    with pytest.raises(Refused, match="others can write"):
        trust(made.folder)


def test_a_folder_of_another_user_is_refused(made):
    if os.geteuid() != 0:
        pytest.skip("needs root to give a folder away")
    os.chown(made.folder, 65534, -1)
    with pytest.raises(Refused, match="another user"):
        open_found(made.folder)


@pytest.mark.parametrize("form", ["plain", "version 4", "split index", "staged only", "subfolder"])
def test_a_folder_that_git_tracks_is_refused(made, form):
    project = os.path.dirname(made.folder)
    root = os.path.dirname(project) if form == "subfolder" else project
    made.close()
    git(root, "init", "-q")
    if form == "version 4":
        git(root, "config", "index.version", "4")
    git(root, "add", "-f", os.path.relpath(made.path, root))
    if form == "split index":
        git(root, "update-index", "--split-index")
    if form != "staged only":
        git(root, "commit", "-qm", "bring it")
    for use in (open_found, trust):
        with pytest.raises(Refused, match="tracked by git"):
            use(made.folder)
    git(root, "rm", "-rq", "--cached", os.path.relpath(made.folder, root))
    open_found(made.folder).close()


def test_a_git_hooks_environment_does_not_answer_for_another_repository(made, tmp_path, monkeypatch):
    """git sets GIT_DIR and GIT_INDEX_FILE for its hooks, and an agent's hook may append."""
    project, other = os.path.dirname(made.folder), tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    git(project, "init", "-q")
    git(project, "config", "index.version", "4")
    git(project, "add", "-f", ".gatebook/ledger.db")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    with pytest.raises(Refused, match="tracked by git"):
        open_found(made.folder)


def test_where_git_cannot_be_asked_a_doubtful_folder_is_refused(made, monkeypatch):
    project = os.path.dirname(made.folder)
    git(project, "init", "-q")
    git(project, "config", "index.version", "4")
    open(os.path.join(project, "a"), "w").close()
    git(project, "add", "a")
    open_found(made.folder).close()
    git(project, "add", "--chmod=+x", "a")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(Refused, match="tracked by git"):
        open_found(made.folder)


def test_a_folder_that_an_outer_repository_tracks_is_refused_though_an_inner_one_does_not(made):
    project, outer = os.path.dirname(made.folder), os.path.dirname(os.path.dirname(made.folder))
    git(outer, "init", "-q")
    git(outer, "add", "-f", os.path.relpath(made.path, outer))
    git(project, "init", "-q")
    git(project, "commit", "-q", "--allow-empty", "-m", "x")
    with pytest.raises(Refused, match="tracked by git"):
        open_found(made.folder)


def test_a_folder_in_a_repository_that_ignores_it_is_opened_and_added_by_no_one(made):
    project = os.path.dirname(made.folder)
    git(project, "init", "-q")
    open(os.path.join(project, "a"), "w").close()
    git(project, "add", "-A")
    git(project, "commit", "-qm", "x")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=project, capture_output=True, text=True, check=True
    ).stdout
    assert listed == "a\n"
    for _ in range(2):  # the second answer comes from the cache
        open_found(made.folder).close()


def test_the_cache_of_gits_answer_does_not_outlive_the_index(made):
    project = os.path.dirname(made.folder)
    git(project, "init", "-q")
    git(project, "commit", "-q", "--allow-empty", "-m", "x")
    open_found(made.folder).close()
    git(project, "add", "-f", ".gatebook/ledger.db")
    with pytest.raises(Refused, match="tracked by git"):
        open_found(made.folder)


def test_a_ledger_in_the_common_git_directory_is_found_from_every_work_tree(tmp_path, home):
    project, tree = tmp_path / "p", tmp_path / "tree"
    project.mkdir()
    git(project, "init", "-q")
    git(project, "commit", "-q", "--allow-empty", "-m", "x")
    git(project, "worktree", "add", "-q", str(tree))
    folder = os.path.join(access.git_common_dir(str(tree))[1], ".gatebook")
    create_ledger(folder, ORIGIN)[0].close()
    for place in (project, tree):
        found = find(str(place))
        assert os.path.realpath(found) == os.path.realpath(folder)
        open_found(found).close()
    with pytest.raises(Invalid, match="needs a git repository"):
        access.git_common_dir(str(tmp_path))


def test_a_ledger_that_is_closed_to_this_user_hides_no_outer_one(tmp_path, home, monkeypatch):
    """The log of an outer project would take what was meant for this one."""
    create_ledger(str(tmp_path / ".gatebook"), ORIGIN)[0].close()
    inner = tmp_path / "inner"
    create_ledger(str(inner / ".gatebook"), ORIGIN)[0].close()
    listed = os.listdir

    def closed(place="."):
        if str(place).startswith(str(inner)):
            raise PermissionError(13, "Permission denied", place)  # what root never hears
        return listed(place)

    monkeypatch.setattr(os, "listdir", closed)
    assert find(str(inner)) == str(inner / ".gatebook")
    (tmp_path / "none").mkdir()
    assert find(str(tmp_path / "none")) == str(tmp_path / ".gatebook")


def test_a_key_that_this_user_may_not_read_is_not_said_to_be_elsewhere(made, monkeypatch):
    def closed(*_given, **_more):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(access.home.os, "open", closed)
    with pytest.raises(Refused, match="Permission denied: this user may not read the ledger's receipt key"):
        access.home.read_key(made.id, "receipt")


def test_a_named_path_may_be_the_file_its_folder_or_the_project(made):
    for name in (made.path, made.folder, os.path.dirname(made.folder)):
        opened = open_ledger(name)
        assert opened.id == made.id
        opened.close()


# -- the memory of the head


def test_a_restored_backup_refuses_writes_and_says_so(made, tmp_path):
    made.append([draft()], ORIGIN)
    backup = copy_of(made, str(tmp_path / "backup"))
    made.append([draft(), draft()], ORIGIN)
    made.close()
    restored = open_ledger(backup)
    for _ in range(2):
        with pytest.raises(Refused, match="truncated") as refused:
            restored.append([draft()], ORIGIN)
    assert refused.value.exit_code == 4
    assert "resume --as-successor" in str(refused.value)
    assert restored.store.head().seq == 2
    restored.close()


def test_trusting_a_restored_backup_is_no_way_round(made, tmp_path):
    """Only `resume --as-successor` voids what was open; `trust` must not make spent things fresh."""
    backup = copy_of(made, str(tmp_path / "backup"))
    made.append([draft()], ORIGIN)
    made.close()
    with pytest.raises(Refused, match="truncated"):
        trust(backup)
    with pytest.raises(Refused, match="truncated"):
        open_ledger(backup).append([draft()], ORIGIN)


def test_a_backup_that_went_its_own_way_is_forked(made, tmp_path, home):
    backup = copy_of(made, str(tmp_path / "backup"))
    made.append([draft(data=b'{"here":1}')], ORIGIN)
    made.close()
    kept = (home / "state" / "gatebook" / "heads" / made.id).read_bytes()
    os.unlink(home / "state" / "gatebook" / "heads" / made.id)
    elsewhere = open_ledger(backup)
    elsewhere.append([draft(data=b'{"there":1}'), draft()], ORIGIN)
    elsewhere.close()
    (home / "state" / "gatebook" / "heads" / made.id).write_bytes(kept)
    for use in (lambda: open_ledger(backup).append([draft()], ORIGIN), lambda: trust(backup)):
        with pytest.raises(Refused, match="forked"):
            use()


def test_a_deleted_tail_is_found_by_the_memory(made):
    """F9"""
    import apsw

    made.append([draft(), draft(), draft()], ORIGIN)
    made.close()
    connection = apsw.Connection(made.path)
    connection.execute("DROP TRIGGER events_kept; DELETE FROM events WHERE seq > 2")
    connection.close()
    with pytest.raises(Refused, match="ends at event 2, this machine saw event 4"):
        open_ledger(made.path).append([draft()], ORIGIN)


def test_a_file_put_back_under_an_open_handle_is_found_by_its_next_write(made, tmp_path):
    import apsw

    made.append([draft(), draft()], ORIGIN)
    connection = apsw.Connection(made.path)
    connection.execute("DROP TRIGGER events_kept; DELETE FROM events WHERE seq > 2")
    connection.close()
    with pytest.raises(Refused, match="truncated"):
        made.append([draft()], ORIGIN)


def test_two_handles_do_not_take_each_others_events_for_a_fault(made):
    other = open_ledger(made.path)
    for _ in range(3):
        made.append([draft()], ORIGIN)
        other.append([draft()], ORIGIN)
    other.close()
    check_chain(whole(made.store))


def test_a_machine_that_never_saw_the_ledger_takes_it_as_it_is(made, home):
    made.append([draft()], ORIGIN)
    made.close()
    os.unlink(home / "state" / "gatebook" / "heads" / made.id)
    opened = open_ledger(made.path)
    opened.append([draft()], ORIGIN)
    assert opened.memory() == (3, opened.store.head().hash)
    opened.close()


@pytest.mark.parametrize("left", [b"", bytes(86), bytes(10)])
def test_a_memory_that_a_crash_left_empty_is_no_memory(made, home, left):
    """Killed (or the disk filled up) between making the file and filling it."""
    made.close()
    path = home / "state" / "gatebook" / "heads" / made.id
    path.write_bytes(left)
    opened = open_ledger(made.path)
    opened.append([draft()], ORIGIN)
    assert opened.memory() == (2, opened.store.head().hash)
    opened.close()


@pytest.mark.parametrize("left", [b"x", b"00000000000000000001 zz\n", b"1 2", bytes(85) + b"x", b"9" * 500])
def test_a_damaged_memory_refuses_writes_until_the_ledger_is_trusted_anew(made, home, left):
    made.close()
    path = home / "state" / "gatebook" / "heads" / made.id
    path.write_bytes(left)
    with pytest.raises(Tampered, match="damaged memory"):
        open_ledger(made.path).append([draft()], ORIGIN)
    trust(made.folder).close()
    open_ledger(made.path).append([draft()], ORIGIN)


def test_a_state_folder_that_cannot_be_written_keeps_nobody_from_appending(
    made, tmp_path, monkeypatch, capfd
):
    """F51: it is said, the events are recorded."""
    (tmp_path / "full").write_text("a file where the folder would be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "full"))
    opened = open_ledger(made.path)
    assert opened.append([draft()], ORIGIN).events[0].seq == 2
    opened.close()
    assert "not remembered" in capfd.readouterr().err


def test_a_replay_or_an_empty_append_does_not_move_the_memory(made):
    made.append([draft(idempotency_key="k")], ORIGIN)
    before = made.memory()
    made.append([draft(idempotency_key="k")], ORIGIN)
    made.append([], ORIGIN)
    assert made.memory() == before


# -- keys and trust on this machine


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_can_read_is_refused(made, home, mode):
    os.chmod(home / "state" / "gatebook" / "keys" / made.id / "receipt", mode)
    with pytest.raises(Refused, match="others can read"):
        machine.read_key(made.id, "receipt")


@pytest.mark.parametrize("content", [b"", b"zz\n", b"00" * 31 + b"\n", b"00" * 33 + b"\n", b"\xff" * 64])
def test_a_key_that_is_none_is_refused(made, home, content):
    path = home / "state" / "gatebook" / "keys" / made.id / "receipt"
    path.write_bytes(content)
    with pytest.raises(Refused, match="32-byte key"):
        machine.read_key(made.id, "receipt")
    os.unlink(path)
    path.symlink_to("/etc/hostname")
    with pytest.raises(Refused):
        machine.read_key(made.id, "receipt")


def test_a_key_is_never_replaced(made):
    with pytest.raises(FileExistsError):
        machine.write_key(made.id, "receipt", bytes(32))


def test_a_key_and_its_name_are_on_disk_before_the_log_can_name_it(made, monkeypatch):
    flushed = []
    monkeypatch.setattr(machine.os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    machine.write_key(made.id, "spare", bytes(32))
    folder = machine.keys_dir(made.id)
    assert flushed == [os.stat(os.path.join(folder, "spare")).st_ino, os.stat(folder).st_ino]


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"a":1}', b'{"a":{},"a":{}}', b"\xff"])
def test_a_malformed_list_of_trusted_ledgers_is_refused_in_one_line(made, home, content):
    (home / "state" / "gatebook" / "ledgers.json").write_bytes(content)
    with pytest.raises(Invalid, match="ledgers.json"):
        open_found(made.folder)
    open_ledger(made.folder).close()  # naming it needs no trust


def test_the_state_folder_follows_xdg_and_ignores_a_relative_value(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative/state")
    assert machine.state_path() == str(tmp_path / ".local" / "state" / "gatebook")
    assert not (tmp_path / ".local").exists()


# -- the clock, through a ledger


def test_a_ledger_may_rest_for_a_year(tmp_path, home):
    clock = Clock(START)
    ledger, _ = create_ledger(str(tmp_path / "l"), ORIGIN, now=clock)
    clock.now += 365 * DAY
    ledger.append([draft()], ORIGIN)
    clock.now -= 2 * DAY
    with pytest.raises(Refused, match="--clock-jump"):
        ledger.append([draft()], ORIGIN)
    ledger.append([draft()], ORIGIN, clock_jump=True)
    check_chain(whole(ledger.store))
    ledger.close()


def test_a_folder_that_cannot_be_written_makes_no_ledger(tmp_path, home):
    (tmp_path / "f").write_text("")
    with pytest.raises((Unavailable, Refused)):
        create_ledger(str(tmp_path / "f" / "l"), ORIGIN)
