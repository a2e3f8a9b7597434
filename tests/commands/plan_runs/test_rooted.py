"""Files below a root: no link leads out, nothing hangs, nothing is half written."""

import errno
import os

import pytest

from commands.plan_runs.rooted import (
    MissingFileError,
    create_file,
    kind_of,
    make_folder,
    move_file,
    read_file,
    remove_file,
    write_file,
)
from ledger.errors import Invalid, Refused


def test_a_regular_file_is_read_once_up_to_its_limit(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_bytes(b"12345")
    assert read_file(str(tmp_path), "a/f", limit=5) == b"12345"
    with pytest.raises(Invalid, match="larger than 4 bytes"):
        read_file(str(tmp_path), "a/f", limit=4)


def test_a_huge_sparse_file_is_refused_without_being_read(tmp_path):
    with open(tmp_path / "f", "wb") as big:
        big.truncate(100 << 20)
    with pytest.raises(Invalid, match="larger than"):
        read_file(str(tmp_path), "f")


@pytest.mark.parametrize("name", ["../f", "a/../f", "/etc/passwd", "", "a//f", "./f", "a/", "f\0g"])
def test_a_name_that_climbs_is_refused(tmp_path, name):
    with pytest.raises(Refused):
        read_file(str(tmp_path), name)


def test_links_folders_and_fifos_are_no_files(tmp_path):
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "f").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "linked").symlink_to("dir")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "linked/f"):
        with pytest.raises(Refused, match="link"):
            read_file(str(tmp_path), name)
    for name in ("dir", "fifo"):
        with pytest.raises(Invalid, match="not a regular file"):
            read_file(str(tmp_path), name)
    with pytest.raises(MissingFileError):
        read_file(str(tmp_path), "none/f")
    assert [kind_of(str(tmp_path), name) for name in ("real", "dir", "link", "fifo", "none")] == [
        "file",
        "folder",
        "link",
        "other",
        "",
    ]


def test_writing_replaces_a_link_and_never_follows_it(tmp_path):
    (tmp_path / "outside").write_bytes(b"safe")
    (tmp_path / "f").symlink_to("outside")
    write_file(str(tmp_path), "f", b"new")
    assert (tmp_path / "outside").read_bytes() == b"safe"
    assert not (tmp_path / "f").is_symlink()


def test_creating_gives_way_to_what_stands_there(tmp_path):
    assert create_file(str(tmp_path), "f", b"one")
    assert not create_file(str(tmp_path), "f", b"two")
    assert (tmp_path / "f").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["f"]


def test_moving_never_replaces(tmp_path):
    make_folder(str(tmp_path), "h/i")
    (tmp_path / "f").write_bytes(b"one")
    move_file(str(tmp_path), "f", "h/i/f")
    (tmp_path / "f").write_bytes(b"two")
    with pytest.raises(Refused, match="stands already"):
        move_file(str(tmp_path), "f", "h/i/f")
    assert (tmp_path / "f").read_bytes() == b"two"
    remove_file(str(tmp_path), "f")
    remove_file(str(tmp_path), "f")


def test_a_folder_is_not_made_through_a_link(tmp_path):
    (tmp_path / "away").mkdir()
    (tmp_path / "key").symlink_to("away")
    with pytest.raises(Refused):
        make_folder(str(tmp_path), "key/sub")
    assert os.listdir(tmp_path / "away") == []


@pytest.mark.parametrize(
    "change",
    [
        lambda root: write_file(root, "key/f", b"x"),
        lambda root: create_file(root, "key/f", b"x"),
        lambda root: move_file(root, "key/old", "key/f"),
        lambda root: make_folder(root, "key/f"),
    ],
)
def test_a_full_disk_is_told_with_the_file_that_was_meant(tmp_path, monkeypatch, change):
    make_folder(str(tmp_path), "key")
    (tmp_path / "key" / "old").write_bytes(b"x")

    def full(_handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as failed:
        change(str(tmp_path))
    assert failed.value.filename == str(tmp_path / "key" / "f")
