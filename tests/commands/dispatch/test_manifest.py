"""The manifest of a tree: a tree that is too large is refused before it is read."""

from __future__ import annotations

import os
import subprocess

import pytest

from commands.dispatch import manifest
from commands.dispatch.ceiling import Ceiling
from commands.dispatch.pins import compare_pins, take_pins
from ledger.errors import Unavailable


def test_a_tree_of_too_many_files_is_refused_before_any_of_them_is_read(tmp_path, monkeypatch):
    for number in range(12):
        folder = tmp_path / str(number % 3)
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.txt").write_text(str(number))
    monkeypatch.setattr(manifest, "MAX_FILES", 12)
    assert len(manifest.manifest_of([str(tmp_path), str(tmp_path / "1")])) == 12
    (tmp_path / "one-more").write_text("13")
    monkeypatch.setattr(manifest, "file_digest", lambda path: pytest.fail(f"{path} was read"))
    with pytest.raises(Unavailable, match="over 12 files"):
        manifest.manifest_of([str(tmp_path)])


def test_pins_of_before_inner_repositories_were_pinned_are_still_compared(tmp_path, home):
    folder = str(tmp_path / "work")
    os.mkdir(folder)
    subprocess.run(["git", "init", "-q", folder], check=True)
    ceiling = Ceiling(folder, folder, (folder,))
    before = take_pins(ceiling, ())
    del before["nested"]
    assert compare_pins(ceiling, before, ()).violation == ""
