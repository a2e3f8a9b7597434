"""Whole sessions where git itself is in an odd state."""

import json
import os
import sys
import time

import pytest
from session_house import IGNORES, NOOP, did, executor_says

from commands.git import Git
from commands.sessions.security import flagged_paths, gaps

PLAN = ("--plan", "Set x.", "--title", "Set x")


@pytest.fixture
def committing(house):
    house.config("auto_commit: true\nskip_quality_polish: true\n")
    return house


def test_an_unborn_head_gets_its_first_commit(committing):
    house = committing
    house.git("update-ref", "-d", "HEAD")
    house.git("rm", "-rq", "--cached", ".")
    done = house.run(*PLAN)
    assert done.returncode == 0, done.stderr.decode()
    assert house.git("log", "--format=%s").decode().splitlines() == ["feat: Set x"]
    assert house.git("ls-tree", "-r", "--name-only", "HEAD").decode().split() == ["src/a.py"]
    assert "- base_head: unborn\n" in house.view()


def test_a_detached_head_moves_alone(committing):
    house = committing
    house.git("checkout", "-q", "--detach")
    assert house.run(*PLAN).returncode == 0
    assert house.git("log", "--format=%s", "main").decode().splitlines() == ["first"]
    assert house.git("log", "--format=%s", "HEAD").decode().splitlines() == ["feat: Set x", "first"]


def test_a_linked_worktree_has_its_own_session(committing, tmp_path):
    house = committing
    other = tmp_path / "other"
    house.git("worktree", "add", "-q", str(other), "-b", "side")
    (other / ".review-loop").mkdir()
    (other / ".review-loop/config.md").write_text("auto_commit: true\n")
    done = house.run(*PLAN, cwd=other, GATEBOOK_LEDGER=str(house.root / ".gatebook"))
    assert done.returncode == 0, done.stderr.decode()
    assert house.git("log", "--format=%s", "side").decode().splitlines() == ["feat: Set x", "first"]
    assert house.git("log", "--format=%s", "main").decode().splitlines() == ["first"]
    assert list((other / ".review-loop/sessions").glob("*.md"))


def test_a_path_that_is_not_utf_8_is_listed_quoted_and_committed(committing):
    house = committing
    code = 'open(b"odd\\\\xff\\nname", "w").write("x")'
    (house.folder / "odd.py").write_text(
        f"import sys\nsys.stdin.read()\n{code.replace(chr(92) * 2, chr(92))}\n"
    )
    text = executor_says(r'"odd\377\nname"')
    (house.folder / "odd.py").open("a").write(f"print({text!r})\n")
    done = house(
        "session",
        "run",
        *PLAN,
        "--executor",
        f"{sys.executable} {house.folder / 'odd.py'}",
        "--reviewer",
        house.agent("reviewer"),
    )
    assert done.returncode == 0, done.stderr.decode()
    assert house.git("show", "-z", "--name-only", "--format=", "HEAD") == b"odd\xff\nname\0"
    assert r'- `"odd\377\nname"`' in house.view()


def test_a_file_staged_in_part_keeps_its_staged_content(committing):
    house = committing
    house.script(executor=[did("src/a.py", "x = 2\n"), NOOP])
    house.write("src/a.py", "x = 'staged'\n")
    house.git("add", "src/a.py")
    house.write("src/a.py", "x = 1\n")
    assert house.run(*PLAN).returncode == 0
    assert house.git("show", "HEAD:src/a.py") == b"x = 2\n"
    assert house.git("show", ":src/a.py") == b"x = 'staged'\n"


def test_mode_and_link_changes_are_committed_as_they_are(committing):
    house = committing
    code = "import os, sys\nsys.stdin.read()\nos.chmod('src/a.py', 0o755)\nos.symlink('a.py', 'src/l')\n"
    (house.folder / "modes.py").write_text(code + f"print({executor_says('src/a.py', 'src/l')!r})\n")
    done = house(
        "session",
        "run",
        *PLAN,
        "--executor",
        f"{sys.executable} {house.folder / 'modes.py'}",
        "--reviewer",
        house.agent("reviewer"),
    )
    assert done.returncode == 0, done.stderr.decode()
    modes = [line.split()[0] for line in house.git("ls-tree", "-r", "HEAD", "src").decode().splitlines()]
    assert modes == ["100755", "120000"]


def test_where_the_disks_modes_mean_nothing_a_file_keeps_its_own(committing):
    committing.write("run.sh", "echo 1\n")
    committing.git("add", "run.sh")
    committing.git("update-index", "--chmod=+x", "run.sh")
    committing.git("commit", "-q", "-m", "tool")
    committing.git("config", "core.fileMode", "false")
    os.chmod(committing.root / "src/a.py", 0o755)
    committing.script(
        executor=[
            {
                "write": {"run.sh": "echo 2\n", "src/a.py": "x = 2\n"},
                "say": executor_says("run.sh", "src/a.py"),
            }
        ]
    )
    assert committing.run(*PLAN).returncode == 0
    listed = committing.git("ls-tree", "HEAD", "run.sh", "src/a.py").decode()
    assert [line.split()[0] for line in listed.splitlines()] == ["100755", "100644"]
    assert not committing.git("status", "--porcelain", "run.sh", "src")


def test_a_nested_repository_is_committed_by_its_commit_and_the_index_follows(committing, tmp_path):
    make = tmp_path / "make"
    make.write_text(
        "#!/bin/sh\ncat > /dev/null\ngit init -q f && cd f && echo a > a && git add a && git commit -q -m x\n"
        f"cat << 'E'\n{executor_says('f/')}E\n"
    )
    make.chmod(0o755)
    done = committing(
        "session", "run", *PLAN, "--executor", str(make), "--reviewer", committing.agent("reviewer")
    )
    assert done.returncode == 0, done.stderr
    assert committing.git("ls-tree", "HEAD", "f").startswith(b"160000 commit ")
    assert not committing.git("status", "--porcelain", "f")


def test_a_commit_is_utf_8_whatever_encoding_the_repository_names(committing):
    committing.git("config", "i18n.commitEncoding", "ISO-8859-1")
    assert committing.run("--plan", "x", "--title", "Café").returncode == 0
    assert committing.git("log", "-1", "--format=%s", "--encoding=UTF-8").decode() == "feat: Café\n"


def test_a_file_of_which_only_the_name_was_staged_is_settled_in_the_index(committing):
    committing.script(
        executor=[
            {"write": {"new.py": "y = 1\n"}, "git": ["add", "-N", "new.py"], "say": executor_says("new.py")}
        ]
    )
    assert committing.run(*PLAN).returncode == 0
    assert committing.git("show", "HEAD:new.py") == b"y = 1\n"
    assert not committing.git("status", "--porcelain", "new.py")


def test_a_failing_git_command_is_shown_and_releases_the_lock(house):
    assert house.run(*PLAN, "--stop-after", "exec-round").returncode == 0
    uuid = house.uuid()
    (house.root / ".git/index").write_bytes(b"broken")
    named = ("--ledger", str(house.root / ".gatebook"), "session")
    done = house(*named, "start", "--session", uuid)
    assert done.returncode == 1
    assert b"git ls-files" in done.stderr
    assert json.loads(house(*named, "status").stdout)["sessions"][0]["locked_by"] is None
    assert not list((house.root / ".review-loop/sessions").glob("*.lock"))


@pytest.mark.slow
def test_a_session_over_5000_dirty_files_takes_seconds_a_step(house):
    for i in range(5_000):
        if i % 500 == 0:
            os.makedirs(house.root / f"d{i // 500}")
        (house.root / f"d{i // 500}" / f"file-{i}.txt").write_bytes(b"%d\n" % i)
    began = time.monotonic()
    started = house.ok("session", "start", *PLAN)
    assert time.monotonic() - began < 20
    began = time.monotonic()
    house.ok("round", "start", "--owner", started["owner"])
    assert time.monotonic() - began < 20


def test_a_secret_whose_name_is_not_utf_8_is_flagged(committing):
    committing.git("config", "core.quotePath", "true")
    for name in (b"server\xff.pem", b"\xff/.env", b"plain\xff.txt"):
        place = os.path.join(os.fsencode(str(committing.root)), name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb"):
            pass
    committing.git("add", "-f", "-A", "--", ".", ":!.gatebook")
    flagged = flagged_paths(Git(str(committing.root)))
    assert flagged == {'"server\\377.pem"': "keys", '"\\377/.env"': "environment"}


def test_only_gitignore_counts_as_coverage(git):
    (git.root / ".git/info/exclude").write_text("*.map\n*.log\n")
    (git.root / ".gitignore").write_text("*.log\nlogs\n*.db\n!probe.db\n")
    open_gaps = gaps(Git(str(git.root)))
    assert open_gaps["source-maps"] == ("*.map",)
    assert "logs" not in open_gaps
    assert "*.db" in open_gaps["databases"]


def test_a_tracked_example_that_stays_visible_asks_nothing(house):
    house.write(".env.example", "A=\n")
    house.write(".gitignore", IGNORES.replace(".env\n.env.*\n*.env\n", ""))
    house.git("add", "-A", "--", ".", ":!.gatebook")
    house.git("commit", "-q", "-m", "example")
    assert house.run(*PLAN).returncode == 0
    assert "\n.env.*\n*.env\n!.env.example\n" in (house.root / ".gitignore").read_text()
    assert house.git("status", "--porcelain", "--ignored", ".env.example") == b""
