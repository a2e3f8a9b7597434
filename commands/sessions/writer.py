"""One session under its lock: fold, check the fence, record, bring the view up to the log."""

from __future__ import annotations

import os

from commands.sessions.lock_file import remove_lock
from commands.sessions.tree import Tree, changed_between, commits_between, read_tree, round_delta
from commands.sessions.view import entries_of, write_view
from ledger.canonical import encode
from ledger.errors import Conflict, Invalid, Refused
from projections import session_events as e
from projections.engine import Proposal, state_of, submit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from msgspec import Struct

    from commands.context import Context
    from commands.sessions.config import Config
    from commands.sessions.drift import Drift
    from ledger.access import Ledger
    from projections.engine import World
    from projections.session import State

    Decision = Callable[[State], Sequence[tuple[str, Struct, bytes | None]]]

_TOKEN_HEX = 32


class Writer:
    """The holder of a session's lock. Every event it records carries its fence; a newer fence refuses it (exit 5)."""

    def __init__(
        self, context: Context, ledger: Ledger, root: str, uuid: str, fence: int, config: Config
    ) -> None:
        self.context = context
        self.ledger = ledger
        self.root = root
        self.uuid = uuid
        self.fence = fence
        self.config = config
        self.stream = f"session/{uuid}"

    def state(self) -> State:
        """The session now."""
        state: State = state_of(self.ledger, self.stream)[0]
        return state

    def record(self, decide: Decision, *, view: bool = True) -> list[int]:
        """Record what `decide` proposes for the state it is given; returns the events' seqs.

        Raises:
            Conflict: the lock was recovered by another, or given back.
        """

        def proposals(world: World) -> list[Proposal]:
            state = world.state(self.stream)
            check_fence(state, self.fence)
            next_seq = world.reader.head().seq + 1
            drafts = []
            for place, (name, data, content) in enumerate(decide(state)):
                cause = next_seq + place - 1 if place else _cause(state, name)
                drafts.append(Proposal(self.stream, name, data, content=content, causation=cause or None))
            return drafts

        def then() -> None:
            if view:
                write_view(self.ledger, self.root, self.uuid)

        recorded = submit(self.ledger, self.context.origin(), proposals, then=then)
        return [event.seq for event in recorded.events]

    def tell(self, name: str, data: Struct, content: bytes | None = None) -> int:
        """Record one event."""
        return self.record(lambda _state: [(name, data, content)])[0]

    def tree(self) -> Tree:
        """Index and work tree now."""
        return read_tree(self.root, trusted_filters=self.config.trusted_filters)

    def known_entries(self, state: State) -> dict[str, str]:
        """The entries of the tree that the session knows."""
        return entries_of(self.ledger, state.known)

    def delta(self, state: State, tree: Tree) -> tuple[str, ...]:
        """The paths whose content differs between the known tree and `tree`."""
        from commands.git import Git

        moved = changed_between(Git(self.root), state.known.head, tree.head)
        return round_delta(self.known_entries(state), tree.entries, moved)

    def drift(self, state: State, tree: Tree) -> Drift | None:
        """How the tree, or a pinned setting, differs from what the session knows."""
        from commands.git import Git
        from commands.sessions.drift import check_drift
        from commands.sessions.tree import dirty_map

        changed = changed_settings(state, self.config)
        if changed:
            return changed
        if tree.head == state.known.head and tree.fingerprint == state.known.fingerprint:
            return None
        commits = commits_between(Git(self.root), state.known.head, tree.head)
        return check_drift(
            verified_head=state.known.head,
            verified_dirty=dirty_map(self.known_entries(state)),
            head=tree.head,
            dirty=tree.dirty,
            commits=commits,
            session_commits=state.session_commits,
        )

    def require_known_tree(self, state: State) -> Tree:
        """The tree now, which must be the one the session knows.

        Raises:
            Refused: it drifted; the message names the reason and how to answer.
        """
        tree = self.tree()
        drift = self.drift(state, tree)
        if drift is not None:
            raise Refused(
                f"{drift.text(5)}; end this session's lock and `session start --session {self.uuid}` to answer it"
            )
        return tree

    def verified(self, tree: Tree) -> tuple[str, Struct, bytes | None]:
        """The proposal that makes `tree` the baseline."""
        return "baseline.verified", e.Verified(self.fence, tree_struct(tree)), entries_content(tree)

    def unlock(self, reason: str) -> None:
        """Give the lock back: the event, then the file."""
        state = self.state()
        check_fence(state, self.fence)
        assert state.lock is not None
        nonce = state.lock.nonce
        self.record(lambda _state: [("session.unlocked", e.Unlocked(self.fence, reason), None)], view=False)
        # Crash here: a lock file whose nonce no open lock carries; the next start takes it away.
        remove_lock(self.root, self.uuid, nonce)


def _cause(state: State, name: str) -> int:
    """The event that led to this one: what a report answers, else what the session recorded last."""
    if name in ("round.executed", "round.rejected"):
        return state.started_seq
    if name == "gate.returned":
        return state.review_seq
    return state.last_seq


def check_fence(state: State, fence: int) -> None:
    """Raise Conflict unless the lock with this fencing number still stands."""
    if state.fence != fence:
        raise Conflict(
            f"session {state.uuid}: the lock was taken over (fence {state.fence}, yours is {fence})"
        )
    if state.lock is None:
        raise Conflict(
            f"session {state.uuid}: the lock was given back; run `gatebook session start --session {state.uuid}`"
        )


def pinned(config: Config) -> e.Pinned:
    """The settings that can lower a gate."""
    return e.Pinned(
        list(config.adversarial_gate_skip_paths), config.skip_quality_polish, config.soft_limit_exec
    )


def changed_settings(state: State, config: Config) -> Drift | None:
    """Drift when a pinned setting changed in mid-session."""
    from commands.sessions.drift import CONFIG_CHANGED, Drift

    now = pinned(config)
    then = state.pinned
    if then is None or then == now:
        return None
    fields = [name for name in now.__struct_fields__ if getattr(now, name) != getattr(then, name)]
    return Drift(
        CONFIG_CHANGED, [f"{name}: {getattr(then, name)!r} -> {getattr(now, name)!r}" for name in fields]
    )


def tree_struct(tree: Tree) -> e.Tree:
    """A tree as events name it."""
    return e.Tree(tree.head, digest(encode_json(tree.entries)), tree.fingerprint)


def entries_content(tree: Tree, **more: object) -> bytes:
    """The content that lists a tree's entries, with other members beside."""
    return encode_json({"entries": tree.entries, **more})


def encode_json(value: Mapping[str, object]) -> bytes:
    """Canonical JSON."""
    return encode(dict(value), what="session content")


def digest(data: bytes) -> str:
    """BLAKE3 as hex."""
    import blake3

    return blake3.blake3(data).hexdigest()


def new_token(uuid: str) -> str:
    """A random owner token; it begins with the session's uuid, so that it finds its session."""
    return f"{uuid}.{os.urandom(_TOKEN_HEX // 2).hex()}"


def check_uuid(text: str, flag: str = "--session") -> str:
    """A UUID in lower case; `Usage` for anything else, before it becomes a file name."""
    from ledger.errors import Usage

    lowered = text.lower()
    groups = lowered.split("-")
    if [len(group) for group in groups] != [8, 4, 4, 4, 12] or lowered.replace("-", "").strip(
        "0123456789abcdef"
    ):
        raise Usage(f"{flag}: {text[:60]!r} is not a UUID")
    return lowered


def attach(context: Context, token: str | None) -> Writer:
    """The writer that an owner token stands for, in the work tree of the working directory.

    Raises:
        Usage: no token, or a malformed one. Conflict: the token's lock is gone. Refused: the view was changed.
    """
    from commands.sessions.config import load_config
    from commands.sessions.tree import top_level
    from ledger.errors import Usage

    if not token:
        raise Usage("--owner TOKEN is needed: `gatebook session start` prints it")
    uuid, dot, secret = token.partition(".")
    if not dot or len(secret) != _TOKEN_HEX or secret.strip("0123456789abcdef"):
        raise Usage("--owner: this is not a token that `session start` printed")
    check_uuid(uuid, "--owner")
    root = top_level(os.getcwd())
    config = load_config(root)
    ledger = context.ledger()
    state: State = state_of(ledger, f"session/{uuid}")[0]
    if state.lock is None or state.lock.token_digest != digest(token.encode()):
        raise Conflict(
            f"session {uuid}: this token holds no lock now; run `gatebook session start --session {uuid}`"
        )
    return Writer(context, ledger, root, uuid, state.fence, config)


def read_report(path: str) -> bytes:
    """A report's bytes from a file or stdin; `Invalid` over 512 KiB or when it is not UTF-8."""
    from commands.append import read_input

    data = read_input(path, "--report")
    if len(data) > 512 * 1024:
        raise Invalid(f"--report {path}: over 512 KiB; a report is a page or two")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"--report {path}: not UTF-8 at byte {error.start}") from None
    return data
