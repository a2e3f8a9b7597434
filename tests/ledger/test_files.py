"""Files that appear whole or not at all."""

from __future__ import annotations

import os

import pytest

from ledger import files as module


def test_whole_files_are_written_beside_flushed_and_renamed(tmp_path, monkeypatch):
    """F102: temp, fsync, rename, fsync of the directory; a failure leaves the old file and no litter."""
    calls = []
    real = {name: getattr(os, name) for name in ("fsync", "rename")}
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: (
            calls.append("dir" if os.path.isdir(f"/proc/self/fd/{handle}") else "file"),
            real["fsync"](handle),
        ),
    )
    monkeypatch.setattr(os, "rename", lambda *names: (calls.append("rename"), real["rename"](*names)))
    path = str(tmp_path / "view.json")
    module.write_whole(path, b"one")
    assert calls == ["file", "rename", "dir"]
    assert os.stat(path).st_mode & 0o777 == 0o600

    def fail(*_names):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="No space"):
        module.write_whole(path, b"two")
    assert os.listdir(tmp_path) == ["view.json"]
    with open(path, "rb") as file:
        assert file.read() == b"one"


def test_a_device_is_written_to_and_never_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "rename", lambda *names: pytest.fail(f"renamed {names}"))
    module.write_whole(os.devnull, b"gone")
    with open(tmp_path / "out", "wb") as file:
        module.write_whole(f"/dev/fd/{file.fileno()}", b"one")
    assert (tmp_path / "out").read_bytes() == b"one"


def test_an_open_file_named_as_a_device_gets_what_comes_after_what_it_has(tmp_path):
    """As a shell's `>> log` with `--svg /dev/stdout` means it: what this process prints next stands behind."""
    (tmp_path / "log").write_bytes(b"before,")
    with open(tmp_path / "log", "ab", buffering=0) as file:
        module.write_whole(f"/dev/fd/{file.fileno()}", b"picture,")
        file.write(b"reply")
    assert (tmp_path / "log").read_bytes() == b"before,picture,reply"


def test_a_number_that_names_no_open_file_is_told():
    for number in (9_999_999, 10**30):
        with pytest.raises(OSError, match=f"/dev/fd/{number}"):
            module.write_whole(f"/dev/fd/{number}", b"x")


def test_a_link_is_replaced_and_what_it_names_stays(tmp_path):
    (tmp_path / "mine").write_bytes(b"kept")
    for place in (tmp_path / "mine", os.devnull):
        os.symlink(place, tmp_path / "link")
        module.write_whole(str(tmp_path / "link"), b"new")
        assert not (tmp_path / "link").is_symlink()
        os.unlink(tmp_path / "link")
    assert (tmp_path / "mine").read_bytes() == b"kept"


def test_a_failure_names_the_callers_file(tmp_path):
    (tmp_path / "folder").mkdir()
    for place in ("folder", "none/file"):
        with pytest.raises(OSError, match=f"'{tmp_path}/{place}'"):
            module.write_whole(str(tmp_path / place), b"x")
    assert [name for name in os.listdir(tmp_path) if name != "folder"] == []
