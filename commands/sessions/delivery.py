"""Delivery (4): the gate over the stages' fingerprints, a commit of what executors listed, the summary.

Contract `review-sessions`, Delivery. The commit is made from a temporary index, so that what the user had staged
stays out of it; no hook runs.
"""

from __future__ import annotations

import contextlib
import os
import sys

from commands.git import Git, GitFailed, c_quote, unquote_path
from commands.sessions.progress import next_action
from commands.sessions.rounds import Capped, stuck_summary
from commands.sessions.tree import DELETED, UNBORN, hash_work_tree
from commands.sessions.view import content_of, stream_events
from commands.sessions.writer import digest, entries_content, tree_struct
from ledger.errors import Invalid, Refused
from projections import session_events as e
from projections.engine import fact_of
from projections.session_rules import missing_stage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.sessions.tree import Tree
    from commands.sessions.writer import Writer
    from projections.session import State


def deliver(writer: Writer) -> str:
    """Deliver the session: commit if asked for, record, return the summary's text.

    Raises:
        Capped: a stage does not stand for the tree as it is now; delivery is blocked by the first such stage.
    """
    state = writer.state()
    if next_action(state) != "delivery":
        raise Refused(f"delivery is not due; next: {next_action(state)}")
    _docs_path(writer)  # a wrong one is said before anything is delivered
    if not state.commit:
        tree = writer.tree()
        missing = missing_stage(state.stages, tree.fingerprint)
        if missing is not None:
            why = "the tree is not the one that this stage was minted for"
            writer.tell("delivery.blocked", e.Blocked(writer.fence, missing, why))
            sys.stderr.write(stuck_summary(writer, missing, why, ""))
            raise Capped(missing, why)
        if writer.config.auto_commit:
            commit(writer, state, tree)
            state = writer.state()
    if state.commit:
        finish_commit(writer, state)
        after = writer.require_known_tree(state)
        if state.known.head != after.head or state.known.fingerprint != after.fingerprint:
            writer.record(lambda _state: [writer.verified(after)])
        state = writer.state()
    from commands.sessions.summary import summary_text

    text = summary_text(writer, state)
    done = e.Completed(writer.fence, next(iter(state.stages.values())), digest(text.encode()))
    writer.record(lambda _state: [("delivery.completed", done, text.encode())])
    # Crash here: the next start of this session does the rest.
    after_delivery(writer)
    return text


def after_delivery(writer: Writer) -> None:
    """What follows a recorded delivery, each once however often this runs: docs_file, the baseline, no round files."""
    _append_to_docs(writer, recorded_summary(writer))
    tree, state = writer.tree(), writer.state()
    if (state.verified.head, state.verified.fingerprint) != (tree.head, tree.fingerprint):
        writer.record(lambda _state: [writer.verified(tree)])
    remove_round_files(writer)


def recorded_summary(writer: Writer) -> str:
    """The summary of a session that is delivered."""
    done = [
        event for event in stream_events(writer.ledger, writer.uuid) if event.type == "delivery.completed"
    ]
    return (writer.ledger.store.artifact(done[-1]) or b"").decode("utf-8")


def listed_paths(writer: Writer, *, all_of_them: bool = False) -> tuple[str, ...]:
    """Every path that a valid executor report of this session listed; `all_of_them` refuses when one was redacted."""
    paths: set[str] = set()
    for event in stream_events(writer.ledger, writer.uuid):
        if event.type == "round.executed":
            fact = fact_of(event, writer.ledger.store.artifact)
            if fact.content is None and not all_of_them:
                continue
            listed = content_of(fact)["paths"]
            assert isinstance(listed, list)
            paths.update(listed)
    return tuple(sorted(paths))


def session_title(writer: Writer) -> str:
    """The session's title: as given, or the first line of an imported problem description."""
    from commands.sessions.session_file import parse_session

    title = "review session"
    for event in stream_events(writer.ledger, writer.uuid):
        fact = fact_of(event, writer.ledger.store.artifact) if event.type.startswith("session.") else None
        if fact is None or fact.content is None:
            continue
        if fact.type == "session.opened":
            title = str(content_of(fact)["title"])
        elif fact.type == "session.imported":
            body = parse_session(fact.content.decode("utf-8")).body("Problem Description") or ""
            title = next((line.strip().lstrip("# ") for line in body.split("\n") if line.strip()), title)
    return " ".join(title.split())[:200]


def commit(writer: Writer, state: State, tree: Tree) -> None:
    """Make the commit object and record it; HEAD moves only after the record (`finish_commit`)."""
    paths = [path for path in listed_paths(writer, all_of_them=True) if path in tree.entries]
    if not paths:
        return
    git = Git(writer.root, trusted_filters=writer.config.trusted_filters)
    _store_blobs(git, writer, tree, paths)
    tree_id = _tree_of(git, tree, paths)
    title = session_title(writer)
    prefix = writer.config.commit_message_prefix
    message = f"{prefix}: {title}\n" if prefix else f"{title}\n"
    parents = [] if tree.head == UNBORN else ["-p", tree.head]
    sha = git.run(["commit-tree", tree_id, *parents], input=message.encode()).decode("ascii").strip()
    recorded = e.Committed(writer.fence, sha, tree.head, tree_id, len(paths), tree_struct(tree))
    content = entries_content(tree, paths=paths)
    del state
    # Crash before this: an unreferenced commit object. Crash after it: `finish_commit` moves HEAD at the next start.
    writer.record(lambda _state: [("commit.recorded", recorded, content)])


def _store_blobs(git: Git, writer: Writer, tree: Tree, paths: list[str]) -> None:
    """Put the files' blobs into git, only if they are the fingerprinted ones."""
    present = [unquote_path(path) for path in paths if tree.entries[path] != DELETED]
    files = [p for p in present if not os.path.islink(os.path.join(os.fsencode(writer.root), p))]
    modes = {unquote_path(path): tree.entries[path].partition(" ")[0] for path in paths}
    now = hash_work_tree(git, writer.root, present, modes)
    for path in paths:
        want = tree.entries[path]
        if want != DELETED and now[unquote_path(path)] != want:
            raise Refused(f"{path} changed while it was being committed; nothing was committed")
    regular = [p for p in files if now[p].startswith("100")]
    if regular:
        git.run(
            ["hash-object", "-w", "--stdin-paths"], input="".join(c_quote(p) + "\n" for p in regular).encode()
        )
    for raw in present:
        if now[raw].startswith("120000"):
            target = os.readlink(os.path.join(os.fsencode(writer.root), raw))
            git.run(["hash-object", "-w", "--stdin"], input=target)


def _index_lines(tree: Tree, paths: list[str], zero: str) -> bytes:
    lines = []
    for path in paths:
        value = tree.entries[path]
        mode_and_sha = f"0 {zero}" if value == DELETED else value
        lines.append(f"{mode_and_sha}\t".encode() + _index_path(path) + b"\0")
    return b"".join(lines)


def _index_path(path: str) -> bytes:
    """A path as the index has it: a nested repository without the slash that `git status` shows."""
    return unquote_path(path).removesuffix(b"/")


def _tree_of(git: Git, tree: Tree, paths: list[str]) -> str:
    """The tree of HEAD with these paths as they are now, made in a temporary index."""
    folder = os.path.join(git.line(["rev-parse", "--absolute-git-dir"]))
    zero = "0" * (40 if git.line(["rev-parse", "--show-object-format"]) == "sha1" else 64)
    index = os.path.join(folder, f"gatebook-{os.urandom(8).hex()}.index")
    env = {"GIT_INDEX_FILE": index}
    try:
        if tree.head == UNBORN:
            git.run(["read-tree", "--empty"], env=env)
        else:
            git.run(["read-tree", tree.head], env=env)
        git.run(["update-index", "-z", "--index-info"], input=_index_lines(tree, paths, zero), env=env)
        return git.run(["write-tree"], env=env).decode("ascii").strip()
    finally:
        for name in (index, f"{index}.lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)


def finish_commit(writer: Writer, state: State) -> None:
    """Move HEAD to the recorded commit, and the index entries of its paths that the user had not staged otherwise.

    Done again after a crash it changes nothing more. Raises Refused when HEAD is somewhere else by now.
    """
    git = Git(writer.root, trusted_filters=writer.config.trusted_filters)
    from commands.sessions.tree import read_head

    head = read_head(git)
    event = writer.ledger.store.reader().event(state.commit_seq)
    assert event is not None
    content = content_of(fact_of(event, writer.ledger.store.artifact))
    paths, entries = content["paths"], content["entries"]
    assert isinstance(paths, list)
    assert isinstance(entries, dict)
    if head == state.commit_parent:
        old = "" if head == UNBORN else head
        zero = "0" * len(state.commit)
        message = f"gatebook: deliver session {writer.uuid}"
        git.run(["update-ref", "-m", message, "HEAD", state.commit, old or zero])
    elif head != state.commit:
        raise Refused(
            f"HEAD is {head[:12]}, neither the delivery's commit {state.commit[:12]} nor its parent; look at it first"
        )
    _settle_index(git, state, entries, paths)


def _settle_index(git: Git, state: State, entries: dict[str, str], paths: list[str]) -> None:
    """Index entries that still show the parent's content get the commit's; what the user staged is left alone."""
    parent: dict[bytes, str] = {}
    if state.commit_parent != UNBORN:
        out = git.run(["ls-tree", "-r", "-z", state.commit_parent])
        for record in out.split(b"\0"):
            if record:
                info, _, raw = record.partition(b"\t")
                mode, _kind, sha = info.decode("ascii").split(" ")
                parent[raw] = f"{mode} {sha}"
    index: dict[bytes, str] = {}
    for record in git.run(["ls-files", "--stage", "-z"]).split(b"\0"):
        if record:
            info, _, raw = record.partition(b"\t")
            mode, sha, _stage = info.decode("ascii").split(" ")
            index[raw] = f"{mode} {sha}"
    # `git add -N` stages no content: left alone, the next commit would delete what this one added.
    intended = git.run(["diff-files", "-z", "--name-only", "--diff-filter=A", "--ignore-submodules=all"])
    for raw in intended.split(b"\0"):
        index.pop(raw, None)
    zero = "0" * len(state.commit)
    lines = []
    for path in paths:
        value, raw = entries[path], _index_path(path)
        mode_and_sha = f"0 {zero}" if value == DELETED else value
        if index.get(raw) == parent.get(raw) and (value != DELETED or raw in index):
            lines.append(f"{mode_and_sha}\t".encode() + raw + b"\0")
    if lines:
        git.run(["update-index", "-z", "--index-info"], input=b"".join(lines))


def docs_path(root: str, name: str) -> str:
    """Where the summary is appended, by `docs_file`; '' when that is not set. Invalid when it is no file of the work tree."""
    if not name:
        return ""
    root = os.path.realpath(root)
    path = os.path.realpath(os.path.join(root, name))
    inside = os.path.relpath(path, root).split(os.sep)
    above = os.path.dirname(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if (
        inside[0] == os.pardir
        or {".git", ".gatebook"} & set(inside)
        or not os.path.isdir(above)
        or (os.path.lexists(path) and not os.path.isfile(path))
    ):
        raise Invalid(f"docs_file {name} is not a file of the work tree")
    return path


def _docs_path(writer: Writer) -> str:
    try:
        return docs_path(writer.root, writer.config.docs_file)
    except Invalid as error:
        raise Refused(f"{error}; correct it, then deliver again") from None


def _append_to_docs(writer: Writer, text: str) -> None:
    path = _docs_path(writer)
    if not path or not text:
        return
    summary = text.encode()
    try:
        with open(path, "rb") as file:
            if summary in file.read():
                return
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "ab") as file:
        file.write(b"\n" + summary)


def remove_round_files(writer: Writer) -> None:
    """Remove this session's prompts and outputs; the session file stays."""
    for folder in ("tmp", "sessions"):
        base = os.path.join(writer.root, ".review-loop", folder)
        try:
            names = os.listdir(base)
        except FileNotFoundError:
            continue
        for name in names:
            if name.startswith(f"{writer.uuid}-") and name.endswith(".txt"):
                os.unlink(os.path.join(base, name))


__all__ = ["GitFailed", "commit", "deliver", "finish_commit"]
