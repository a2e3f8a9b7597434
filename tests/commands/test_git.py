"""Git runs nothing that a hostile repository's configuration names, and paths survive as bytes."""

import os
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.git import Git, GitFailed, c_quote, line_path, quote_path, run_git, unquote_path
from ledger.errors import Invalid, MissingExecutor, Unavailable


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repo"
    root.mkdir()
    _git(root, "init", "-q", "-b", "main")
    (root / "a.txt").write_text("one\n")
    _git(root, "add", "-A")
    _git(root, "commit", "-q", "-m", "first")
    return root


def _git(root, *args):
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")
    return subprocess.run(["git", *identity, *args], cwd=root, check=True, capture_output=True).stdout


def _trap(tmp_path, name="trap"):
    """A program that leaves a mark when somebody runs it."""
    mark = tmp_path / f"{name}.ran"
    program = tmp_path / f"{name}.sh"
    program.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    program.chmod(0o755)
    return program, mark


def _programs(root, program):
    for key in (
        "core.fsmonitor",
        "core.pager",
        "diff.external",
        "core.sshCommand",
        "core.editor",
        "gpg.program",
    ):
        _git(root, "config", key, str(program))
    for name in ("evil", "with=equals", "UP.dots.x"):
        for key in ("clean", "smudge", "process"):
            _git(root, "config", f"filter.{name}.{key}", str(program))
        _git(root, "config", f"filter.{name}.required", "true")
    _git(root, "config", "diff.evil.textconv", str(program))
    _git(root, "config", "diff.evil.command", str(program))
    (root / ".git/info").mkdir(exist_ok=True)
    (root / ".git/info/attributes").write_text(
        "*.txt filter=evil diff=evil\n*.eq filter=with=equals\n*.up filter=UP.dots.x\n"
    )
    hooks = root / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("post-index-change", "reference-transaction", "post-commit", "pre-commit"):
        (hooks / hook).write_text(f"#!/bin/sh\n{program}\n")
        (hooks / hook).chmod(0o755)


def test_no_program_of_a_hostile_configuration_runs(repository, tmp_path):
    program, mark = _trap(tmp_path)
    _programs(repository, program)
    for name in ("a.txt", "b.eq", "c.up"):
        (repository / name).write_text("changed\n")
    git = Git(str(repository))
    git.run(["status", "--porcelain=v1", "-z", "--untracked-files=all"])
    git.run(["hash-object", "--stdin-paths"], input=b"a.txt\nb.eq\nc.up\n")
    git.run(["diff", "--no-ext-diff", "--no-textconv", "HEAD"])
    git.run(["add", "--", "a.txt", "b.eq", "c.up"])
    tree = git.line(["write-tree"])
    commit = git.line(["-c", "user.name=T", "-c", "user.email=t@x", "commit-tree", tree, "-m", "x"])
    git.run(["update-ref", "refs/heads/side", commit])
    assert not mark.exists()
    assert git.named_filters == {"evil", "with=equals", "UP.dots.x"}


def test_the_trap_itself_works(repository, tmp_path):
    program, mark = _trap(tmp_path)
    _programs(repository, program)
    (repository / "a.txt").write_text("changed\n")
    subprocess.run(["git", "status"], cwd=repository, capture_output=True, timeout=20)
    assert mark.exists()


def test_a_trusted_filter_runs_and_the_others_do_not(repository, tmp_path):
    good, good_mark = _trap(tmp_path, "good")
    bad, bad_mark = _trap(tmp_path, "bad")
    _git(repository, "config", "filter.lfs.clean", str(good))
    _git(repository, "config", "filter.evil.clean", str(bad))
    (repository / ".git/info/attributes").write_text("*.bin filter=lfs\n*.txt filter=evil\n")
    (repository / "x.bin").write_text("x")
    Git(str(repository), trusted_filters=["lfs"]).run(
        ["hash-object", "--stdin-paths"], input=b"x.bin\na.txt\n"
    )
    assert good_mark.exists()
    assert not bad_mark.exists()


def test_a_submodules_own_configuration_runs_nothing_either(repository, tmp_path):
    program, mark = _trap(tmp_path)
    inner = tmp_path / "inner"
    inner.mkdir()
    _git(inner, "init", "-q", "-b", "main")
    (inner / "i.txt").write_text("i\n")
    _git(inner, "add", "-A")
    _git(inner, "commit", "-q", "-m", "i")
    _git(repository, "submodule", "add", "-q", str(inner), "sub")
    sub = repository / "sub"
    _git(sub, "config", "filter.inside.clean", str(program))
    _git(sub, "config", "core.fsmonitor", str(program))
    (repository / ".git/modules/sub/info").mkdir(exist_ok=True)
    (repository / ".git/modules/sub/info/attributes").write_text("* filter=inside\n")
    (sub / "i.txt").write_text("j\n")
    out = Git(str(repository)).run(["status", "--porcelain=v1", "-z", "--ignore-submodules=none"])
    assert b"sub" in out
    assert not mark.exists()


def test_inherited_git_variables_do_not_redirect_a_call(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'core.bare'='true'")
    assert run_git(["rev-parse", "--show-toplevel"], str(repository)).decode().strip() == str(repository)


def test_a_failing_command_is_shown_with_its_first_line(repository):
    with pytest.raises(GitFailed, match="exit code 128: fatal:") as caught:
        run_git(["rev-parse", "--verify", "nothing"], str(repository))
    assert caught.value.code == 128


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(Invalid, match="no such directory"):
        run_git(["status"], str(tmp_path / "gone"))


def test_a_call_past_its_deadline_is_killed(repository):
    began = time.monotonic()
    with pytest.raises(Unavailable, match="did not end within"):
        # A trusted filter that never ends: the one program we let run.
        _git(repository, "config", "filter.slow.clean", "sleep 60")
        (repository / ".git/info/attributes").write_text("*.txt filter=slow\n")
        Git(str(repository), trusted_filters=["slow"], timeout=0.5).run(["hash-object", "a.txt"])
    assert time.monotonic() - began < 10


@given(st.binary(min_size=1, max_size=40).filter(lambda b: b"\0" not in b))
def test_a_quoted_path_is_the_same_bytes_again(path):
    assert unquote_path(quote_path(path)) == path
    assert unquote_path(c_quote(path)) == path
    assert unquote_path(line_path(quote_path(path))) == path
    assert "\n" not in line_path(quote_path(path))


@given(st.text(max_size=20))
def test_a_broken_quotation_is_refused_not_guessed(text):
    try:
        unquote_path('"' + text)
    except Invalid:
        return


def test_git_reads_our_quoting(repository):
    name = b'new\nline "q" \\ \xff'
    with open(os.path.join(os.fsencode(repository), name), "wb") as file:
        file.write(b"x")
    out = run_git(["hash-object", "--stdin-paths"], str(repository), input=c_quote(name).encode() + b"\n")
    assert out.strip() == run_git(["hash-object", "--stdin"], str(repository), input=b"x").strip()


def test_much_said_and_much_heard_at_once_passes_both_ways(repository):
    head = _git(repository, "rev-parse", "HEAD").strip()
    asked = head + b"\n"
    told = run_git(["cat-file", "--batch"], str(repository), input=asked * 30_000)
    assert told.count(head + b" commit ") == 30_000


def test_what_a_call_does_not_read_is_not_waited_for(repository):
    assert (
        run_git(["rev-parse", "--is-inside-work-tree"], str(repository), input=b"x" * 1_000_000) == b"true\n"
    )


def children() -> set[str]:
    """This process' children, ended ones too."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return set(file.read().split())


def test_calls_leave_no_process_and_no_open_file_behind(repository, monkeypatch):
    before, others = sorted(os.listdir("/proc/self/fd")), children()  # servers of other tests may live here
    for _ in range(3):
        run_git(["status"], str(repository), input=b"")
        with pytest.raises(GitFailed):
            run_git(["no-such-command"], str(repository))
        with pytest.raises(Unavailable):
            run_git(["cat-file", "--batch"], str(repository), input=b"HEAD\n" * 200_000, timeout=0.001)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingExecutor, match="git is not installed"):
        run_git(["status"], str(repository))
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert children() <= others


@pytest.mark.parametrize("told", [True, False])
def test_a_program_that_closes_its_output_is_waited_for_until_the_deadline(monkeypatch, told):
    """Whether the system tells when a child ends, or has to be asked."""
    from commands.git import Child

    if not told:
        monkeypatch.delattr(os, "pidfd_open")
    environment = {b"PATH": os.fsencode(os.environ["PATH"])}
    child = Child([b"sh", b"-c", b"exec >&- 2>&-; sleep 0.05; exit 7"], environment, None)
    assert child.attend(10) == 7
    child.end()
    child = Child([b"sh", b"-c", b"exec >&- 2>&-; exec sleep 60"], environment, None)
    began = time.monotonic()
    assert child.attend(0.1) is None
    child.end()
    assert time.monotonic() - began < 10
