"""The dirty map, the delta and the fingerprint against git itself."""

import os
import subprocess
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commands.git import Git, GitFailed, quote_path
from commands.sessions import tree as t
from commands.sessions.tree import (
    DELETED,
    UNBORN,
    changed_between,
    commits_between,
    parse_status,
    read_tree,
    round_delta,
)
from ledger.errors import Invalid

LONG = "".join(f"line {i}\n" for i in range(40))


def write(git, name, text="x\n"):
    path = os.path.join(os.fsencode(git.root), name if isinstance(name, bytes) else name.encode())
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def commit(git, message="c"):
    git("add", "-A")
    git("commit", "-q", "-m", message)


def blob(git, name):
    return git("hash-object", "--", name).decode().strip()


def read(git, **options):
    return read_tree(str(git.root), **options)


@pytest.fixture
def filled(git):
    for name in ("a", "b", "c", "d", "e", "f", "g"):
        write(git, name, f"{name}\n{LONG}")
    commit(git)
    return git


def test_every_code_that_real_states_give(filled):
    git = filled
    write(git, "a", "work\n")  # " M"
    write(git, "b", "index\n")
    git("add", "b")  # "M "
    write(git, "c", "index\n")
    git("add", "c")
    write(git, "c", "work\n")  # "MM"
    os.unlink(git.root / "d")  # " D"
    git("rm", "-q", "--cached", "e")  # "D " and "??"
    git("mv", "f", "f2")  # "R "
    write(git, "g2", "intent\n")
    git("add", "-N", "g2")  # " A"
    write(git, "new", "new\n")
    git("add", "new")
    os.unlink(git.root / "new")  # "AD"
    write(git, "deep/er/x", "u\n")  # "??"
    git("mv", "g", "g3")
    write(git, "g3", f"g\n{LONG}more\n")  # "RM"
    codes = {line[:2] for line in git("status", "--porcelain").decode().splitlines()}
    assert {" M", "M ", "MM", " D", "D ", "??", "R ", " A", "AD", "RM"} <= codes
    assert read(git).dirty == {
        "a": blob(git, "a"),
        "b": blob(git, "b"),
        "c": blob(git, "c"),
        "d": DELETED,
        "e": blob(git, "e"),
        "f": DELETED,
        "f2": blob(git, "f2"),
        "g": DELETED,
        "g2": blob(git, "g2"),
        "g3": blob(git, "g3"),
        "new": DELETED,
        "deep/er/x": blob(git, "deep/er/x"),
    }


def test_copies_renames_and_deleted_renames(filled):
    git = filled
    git("config", "status.renames", "copies")
    write(git, "a", (git.root / "a").read_text() + "1\n")
    write(git, "copy", (git.root / "a").read_text())
    git("add", "-A")
    git("mv", "b", "b2")
    os.unlink(git.root / "b2")
    os.rename(git.root / "c", git.root / "c2")
    git("add", "-N", "c2")
    codes = {line[:2] for line in git("status", "--porcelain").decode().splitlines()}
    assert {"C ", "RD", " R"} <= codes
    dirty = read(git).dirty
    assert dirty == {
        "a": blob(git, "a"),
        "copy": blob(git, "copy"),
        "b": DELETED,
        "b2": DELETED,
        "c": DELETED,
        "c2": blob(git, "c2"),
    }


@pytest.mark.parametrize("code", ["DD", "AU", "UD", "UA", "DU", "AA", "UU", " U"])
def test_an_unmerged_path_is_an_error(code):
    with pytest.raises(Invalid, match="unmerged: f"):
        parse_status(f"{code} f\0".encode())


@pytest.mark.parametrize("code", ["!!", "X ", " X", "  ", "? ", "M?"])
def test_an_unknown_code_is_an_error(code):
    with pytest.raises(Invalid, match="unknown git state"):
        parse_status(f"{code} f\0".encode())


RULES = {
    "R": {" ": "index", "M": "work", "T": "work", "A": "work", "R": "work", "C": "work", "D": DELETED},
    "": {"D": DELETED, "M": "work", "T": "work", "A": "work"},
}


@given(st.sampled_from(" MTADRC"), st.sampled_from(" MTADRC"))
def test_the_eight_rules(x, y):
    if x == y == " " or (x + y) in ("AA", "DD"):
        return
    renamed = x in "RC" or y in "RC"
    table = RULES["R"] if renamed else RULES[""]
    want = table.get(y, DELETED if x == "D" else "index")
    kinds = parse_status(f"{x}{y} new\0".encode() + (b"old\0" if renamed else b""))
    assert kinds.pop(b"new") == want
    assert kinds == ({b"old": DELETED} if "R" in (x, y) else {})


def test_a_real_conflict_is_an_error(filled):
    git = filled
    git("checkout", "-q", "-b", "side")
    write(git, "a", "side\n")
    commit(git)
    git("checkout", "-q", "main")
    write(git, "a", "main\n")
    commit(git)
    git("merge", "side", check=False)
    with pytest.raises(Invalid, match="unmerged: a"):
        read(git)


def test_odd_names_are_the_same_bytes(git):
    names = [
        b"with space",
        b'q"uote',
        b"new\nline",
        b"tab\t",
        b"b\\slash",
        b"\xff\xfe",
        "ü".encode(),
        b'"lead',
        b"-dash",
        b":(glob)x",
    ]
    write(git, "first")
    commit(git)
    for name in names:
        write(git, name, name)
    dirty = read(git).dirty
    assert set(dirty) == {quote_path(n) for n in names}
    for name in names:
        assert dirty[quote_path(name)] == git("hash-object", "--stdin", data=name).decode().strip()
    git("add", "-A")
    assert read(git).dirty == dirty


def test_links_modes_and_type_changes(filled):
    git = filled
    os.symlink("nowhere", git.root / "link")
    os.chmod(git.root / "a", 0o755)
    os.unlink(git.root / "b")
    os.symlink("a", git.root / "b")  # " T"
    tree = read(git)
    assert tree.dirty["link"] == git("hash-object", "--stdin", data=b"nowhere").decode().strip()
    assert tree.dirty["b"] == git("hash-object", "--stdin", data=b"a").decode().strip()
    assert tree.entries["a"] == "100755 " + blob(git, "a")
    assert tree.entries["b"].startswith("120000 ")


def test_a_sha256_repository_hashes_links_its_way(tmp_path, git):
    git("init", "-q", "--object-format=sha256", "other")
    root = git.root / "other"
    os.symlink("nowhere", root / "link")
    tree = read_tree(str(root))
    assert tree.dirty["link"] == git("hash-object", "--stdin", cwd=root, data=b"nowhere").decode().strip()


def test_attributes_convert_as_git_does(filled):
    git = filled
    write(git, ".gitattributes", "*.txt text eol=crlf\n")
    commit(git)
    write(git, "x.txt", "one\r\ntwo\r\n")
    assert read(git).dirty["x.txt"] == git("hash-object", "--stdin", data=b"one\ntwo\n").decode().strip()


def test_a_submodule_counts_by_its_commit(filled, tmp_path):
    git = filled
    inner = tmp_path / "inner"
    inner.mkdir()
    git("init", "-q", "-b", "main", cwd=inner)
    (inner / "x").write_text("1")
    git("add", "-A", cwd=inner)
    git("commit", "-q", "-m", "1", cwd=inner)
    git("submodule", "--quiet", "add", str(inner), "sub")
    commit(git)
    assert read(git).dirty == {}
    (git.root / "sub" / "x").write_text("2")
    head = git("rev-parse", "HEAD", cwd=git.root / "sub").decode().strip()
    assert read(git).dirty == {"sub": head}
    git("commit", "-qam", "2", cwd=git.root / "sub")
    assert read(git).dirty == {"sub": git("rev-parse", "HEAD", cwd=git.root / "sub").decode().strip()}


def test_a_nested_repository_counts_by_its_commit_and_needs_one(filled):
    git = filled
    git("init", "-q", "nested")
    write(git, "nested/x")
    with pytest.raises(Invalid, match="nested.* is a repository without a commit"):
        read(git)
    git("add", "-A", cwd=git.root / "nested")
    git("commit", "-q", "-m", "1", cwd=git.root / "nested")
    assert read(git).dirty == {"nested/": git("rev-parse", "HEAD", cwd=git.root / "nested").decode().strip()}


def test_unborn_and_detached_heads(git):
    write(git, "a")
    git("add", "a")
    write(git, "b")
    tree = read(git)
    assert tree.head == UNBORN
    assert tree.dirty == {"a": blob(git, "a"), "b": blob(git, "b")}
    commit(git)
    git("checkout", "-q", "--detach")
    assert read(git).head == git("rev-parse", "HEAD").decode().strip()
    assert read(git).dirty == {}


def test_a_linked_worktree_and_a_sparse_checkout(filled, tmp_path):
    git = filled
    write(git, "dir/in", "in\n")
    write(git, "out/x", "x\n")
    commit(git)
    other = tmp_path / "other"
    git("worktree", "add", "-q", str(other), "-b", "side")
    (other / "a").write_text("changed")
    assert list(read_tree(str(other)).dirty) == ["a"]
    git("sparse-checkout", "set", "dir")
    assert not (git.root / "out").exists()
    assert read(git).dirty == {}
    write(git, "dir/in", "changed\n")
    assert list(read(git).dirty) == ["dir/in"]


def test_our_own_files_are_outside(filled):
    git = filled
    before = read(git)
    for name in (".review-loop/sessions/x.md", ".review-loop/tmp/y", ".gatebook/ledger.db"):
        write(git, name)
    after = read(git)
    assert (after.entries, after.fingerprint) == (before.entries, before.fingerprint)
    write(git, ".review-loop/config.md", "auto_commit: true\n")
    assert list(read(git).dirty) == [".review-loop/config.md"]


def test_ignored_files_are_outside_and_untracked_directories_are_listed_whatever_the_configuration(filled):
    git = filled
    write(git, ".gitignore", "*.o\n")
    commit(git)
    git("config", "status.showUntrackedFiles", "no")
    git("config", "diff.ignoreSubmodules", "all")
    write(git, "x.o")
    write(git, "z/1")
    write(git, "z/2")
    assert list(read(git).dirty) == ["z/1", "z/2"]


def test_the_fingerprint_changes_with_content_mode_index_and_untracked_files_but_not_with_a_commit(filled):
    git = filled
    seen = [read(git).fingerprint]

    def step():
        seen.append(read(git).fingerprint)
        assert len(set(seen)) == len(seen)

    write(git, "a", "1\n")
    step()
    git("add", "a")
    step()
    os.chmod(git.root / "b", 0o755)
    step()
    write(git, "u", "u\n")
    step()
    os.unlink(git.root / "c")
    step()
    git("rm", "-q", "--cached", "d")
    step()
    git("add", "-A")
    staged = read(git).fingerprint
    git("commit", "-q", "-m", "x")
    assert read(git).fingerprint == staged


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_change_hidden_by_an_index_flag_still_changes_the_fingerprint(filled, flag):
    git = filled
    git("update-index", flag, "a")
    before = read(git).fingerprint
    write(git, "a", "hidden\n")
    assert git("status", "--porcelain") == b""
    assert read(git).fingerprint != before


def test_a_dirty_path_under_an_untrusted_filter_is_named(filled):
    git = filled
    git("config", "filter.lfs.clean", "tr a-z A-Z")
    write(git, ".gitattributes", "*.bin filter=lfs\n")
    commit(git)
    write(git, "x.bin", "abc")
    tree = read(git)
    assert tree.distrusted == ("x.bin",)
    assert tree.dirty["x.bin"] == git("hash-object", "--stdin", data=b"abc").decode().strip()
    trusted = read(git, trusted_filters=["lfs"])
    assert trusted.distrusted == ()
    assert trusted.dirty["x.bin"] == git("hash-object", "--stdin", data=b"ABC").decode().strip()


def test_outside_a_repository_the_failure_is_shown(tmp_path):
    with pytest.raises(GitFailed, match="not a git repository"):
        read_tree(str(tmp_path))


def test_a_round_delta_is_by_content(filled):
    git = filled
    write(git, "a", "dirty before\n")
    write(git, "b", "dirty before\n")
    before = read(git)
    write(git, "a", "again\n")  # changed within the round
    git("add", "b")  # only staged: the same content
    write(git, "c", "new change\n")
    os.chmod(git.root / "d", 0o755)
    after = read(git)
    assert round_delta(before.entries, after.entries) == ("a", "c", "d")
    git("commit", "-qam", "in the round")
    late = read(git)
    moved = changed_between(Git(str(git.root)), before.head, late.head)
    assert round_delta(before.entries, late.entries, moved) == ("a", "b", "c", "d")


def test_commits_since(filled):
    git = filled
    g = Git(str(git.root))
    first = read(git).head
    write(git, "a", "1\n")
    commit(git)
    second = read(git).head
    assert commits_between(g, first, first) == ()
    assert commits_between(g, first, second) == (second,)
    assert commits_between(g, second, first) is None
    assert commits_between(g, UNBORN, second) == (second, first)
    assert commits_between(g, "0" * 40, second) is None


NAMES = ["a", "b b", "d/c", "ü"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "delete", "add", "uncache", "link", "chmod", "move", "commit"]),
        st.sampled_from(NAMES),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)


@given(STEPS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_mix_of_changes_gives_what_git_itself_says_path_by_path(tmp_path_factory, steps):
    root = tmp_path_factory.mktemp("mix")

    def git(*args, check=True):
        identity = ("-c", "user.name=T", "-c", "user.email=t@x")
        return subprocess.run(["git", *identity, *args], cwd=root, check=check, capture_output=True).stdout

    git("init", "-q")
    for kind, name, number in steps:
        path = root / name
        if kind in ("write", "link"):
            path.parent.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)
            path.symlink_to(str(number)) if kind == "link" else path.write_text(f"{number}\n")
        elif kind == "delete":
            path.unlink(missing_ok=True)
        elif kind == "chmod" and path.is_file() and not path.is_symlink():
            path.chmod(0o755 if number else 0o644)
        elif kind == "move" and (path.is_file() or path.is_symlink()):
            target = root / NAMES[number]
            target.parent.mkdir(exist_ok=True)
            path.rename(target)
        elif kind == "add":
            git("add", "-A", "--", name, check=False)
        elif kind == "uncache":
            git("rm", "-q", "--cached", "--", name, check=False)
        elif kind == "commit":
            git("commit", "-q", "-m", "c", check=False)
    # Path by path: a path is dirty where HEAD, index and work tree are not all the same; its value is what lies there.
    head = {}
    for line in git("ls-tree", "-r", "-z", "HEAD", check=False).decode().split("\0"):
        if line:
            head[line.partition("\t")[2]] = line.split()[0] + line.split()[2]
    index = {
        line.partition("\t")[2]: line.split()[0] + line.split()[1]
        for line in git("ls-files", "-s", "-z").decode().split("\0")
        if line
    }
    expected = {}
    for name in NAMES:
        path = root / name
        work = None
        if path.is_symlink():
            text = subprocess.run(
                ["git", "hash-object", "--stdin"],
                cwd=root,
                input=os.readlink(path).encode(),
                capture_output=True,
            ).stdout
            work = "120000" + text.decode().strip()
        elif path.is_file():
            work = ("100755" if os.access(path, os.X_OK) else "100644") + git(
                "hash-object", "--", name
            ).decode().strip()
        if not head.get(name) == index.get(name) == work:
            expected[name] = DELETED if work is None else work[6:]
    tree = read_tree(str(root))
    assert tree.dirty == expected
    assert tree.head == (git("rev-parse", "-q", "--verify", "HEAD", check=False).decode().strip() or UNBORN)


@pytest.mark.slow
def test_20000_dirty_files_in_seconds(git):
    for i in range(20_000):
        if i % 200 == 0:
            (git.root / f"d{i // 200}").mkdir()
        (git.root / f"d{i // 200}" / f"f{i}").write_bytes(b"%d\n" % i)
    git("add", "-A")
    git("commit", "-q", "-m", "many")
    for i in range(20_000):
        (git.root / f"d{i // 200}" / f"f{i}").write_bytes(b"%d changed\n" % i)
    calls = []
    real = subprocess.Popen
    began = time.monotonic()
    try:
        subprocess.Popen = lambda *a, **k: calls.append(a) or real(*a, **k)
        tree = read(git)
    finally:
        subprocess.Popen = real
    assert len(tree.dirty) == 20_000
    assert time.monotonic() - began < 15
    assert len(calls) < 12
    assert t.dirty_map(tree.entries) == tree.dirty
