"""The aggregate of the stream `ledger`: genesis, keys, checkpoints, redactions, restores; the authority policy's place.

Contract page ledger (Vocabulary), DESIGN (Authority, Views).
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType, field

from projections.fact import Fact, Law, digest_text

KIND = "ledger"
FOLD = "ledger/2"
FORMAT = 1


class Signer(Struct, frozen=True, forbid_unknown_fields=True):
    """One OpenSSH public key (`ssh-ed25519 AAAA…`) and the principal it speaks for."""

    principal: str
    key: str


class Policy(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Who may approve: signers, the event types that need one of them, and whether presence at the key is required."""

    signers: tuple[Signer, ...]
    types: tuple[str, ...]
    presence: bool = False
    single_key: bool = False


class Keys(Struct, frozen=True, forbid_unknown_fields=True):
    """The ledger's Ed25519 public keys, 32 bytes as hex."""

    checkpoint: str
    receipt: str


class Opened(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Genesis: the log format, the public keys, the authority policy if one was given."""

    format: int
    keys: Keys
    authority: Policy | UnsetType = UNSET


class Checkpointed(Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint was signed over the first `size` events with RFC 6962 root `root` (hex)."""

    size: int
    root: str


class Redacted(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of these events was erased; the reason is content of this event."""

    events: tuple[int, ...]


class Restored(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A restored or imported ledger goes on: everything open before is void. `lost_*`: the head this machine had seen."""

    after: int
    after_hash: str
    lost_seq: int = 0
    lost_hash: str = ""
    keys: Keys | UnsetType = UNSET


class PolicyChanged(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A new authority policy, and the SSHSIG over its statement (the first one: by a signer of its own)."""

    policy: Policy
    nonce: str
    signature: str = ""
    principal: str = ""
    expires_at: str = ""


class KeyChanged(Struct, frozen=True, forbid_unknown_fields=True):
    """A key was rotated: `name` checkpoint or receipt, the new public key, and the old key's signature over it (hex)."""

    name: str
    key: str
    signature: str


EVENTS = {
    "ledger.opened": Opened,
    "ledger.checkpointed": Checkpointed,
    "ledger.redacted": Redacted,
    "ledger.restored": Restored,
    "authority.changed": PolicyChanged,
    "key.changed": KeyChanged,
}


class State(Struct, omit_defaults=True):
    """What holds for the whole ledger now. `policy_seq`: the event that set the policy, 0 when there is none.

    `restored_clock` (us): the clock of the last restore, 0 without one.
    """

    opened: bool = False
    checkpoint_key: str = ""
    receipt_key: str = ""
    receipt_keys: list[str] = field(default_factory=list)
    checkpoint_keys: list[str] = field(default_factory=list)
    policy: Policy | None = None
    policy_seq: int = 0
    policy_nonces: list[str] = field(default_factory=list)
    checkpointed: int = 0
    checkpoint_root: str = ""
    redacted: int = 0
    restored: int = 0
    restored_clock: int = 0


def initial(_stream: str) -> State:
    """Before genesis."""
    return State()


def _new_keys(state: State, keys: Keys) -> None:
    state.checkpoint_key = keys.checkpoint
    state.receipt_key = keys.receipt
    state.checkpoint_keys.append(keys.checkpoint)
    state.receipt_keys.append(keys.receipt)


def evolve(state: State, fact: Fact) -> State:
    """One event of the ledger's own stream."""
    data = fact.data
    if isinstance(data, Opened):
        state.opened = True
        _new_keys(state, data.keys)
        if data.authority is not UNSET:
            state.policy, state.policy_seq = data.authority, fact.seq
    elif isinstance(data, Checkpointed):
        state.checkpointed, state.checkpoint_root = data.size, data.root
    elif isinstance(data, Redacted):
        state.redacted += len(data.events)
    elif isinstance(data, Restored):
        state.restored, state.restored_clock = fact.seq, fact.clock
        if data.keys is not UNSET:
            _new_keys(state, data.keys)
    elif isinstance(data, PolicyChanged):
        state.policy, state.policy_seq = data.policy, fact.seq
        state.policy_nonces.append(data.nonce)
    elif data.name == "checkpoint":
        state.checkpoint_key = data.key
        state.checkpoint_keys.append(data.key)
    else:
        state.receipt_key = data.key
        state.receipt_keys.append(data.key)
    return state


def _admit_keys(keys: Keys, fact: Fact) -> None:
    digest_text(keys.checkpoint, fact)
    digest_text(keys.receipt, fact)


def admit(state: State, fact: Fact, law: Law) -> None:
    """Genesis first and once; sizes and events that exist; a policy change signed by a listed signer; a key by the old one."""
    data = fact.data
    if isinstance(data, Opened):
        if state.opened or fact.seq != 1:
            law.refuse(fact, "a ledger is opened once, by its first event")
        if data.format != FORMAT:
            law.refuse(fact, "unknown format")
        _admit_keys(data.keys, fact)
        _admit_first_policy(data, fact, law)
        return
    if not state.opened:
        law.refuse(fact, "the ledger is not opened yet")
    if isinstance(data, Checkpointed):
        digest_text(data.root, fact)
        if fact.content_digest is None:
            law.refuse(fact, "a checkpoint has its note as content")
        if not state.checkpointed <= data.size < fact.seq:
            law.refuse(fact, "a checkpoint covers earlier events, never fewer than the last one")
        if state.checkpointed == data.size and state.checkpoint_root != data.root:
            law.refuse(fact, "a checkpoint of the same events has the same root")
    elif isinstance(data, Redacted):
        if (
            not data.events
            or list(data.events) != sorted(set(data.events))
            or not 1 < data.events[0] <= data.events[-1] < fact.seq
        ):
            law.refuse(fact, "a redaction names earlier events, in order, once each")
    elif isinstance(data, Restored):
        digest_text(data.after_hash, fact)
        if data.lost_seq or data.lost_hash:
            digest_text(data.lost_hash, fact)
        if data.after != fact.seq - 1:
            law.refuse(fact, "a restore follows the event that it names")
        if data.keys is not UNSET:
            _admit_keys(data.keys, fact)
    elif isinstance(data, PolicyChanged):
        from projections.authority import admit_policy

        admit_policy(state, fact, law)
    else:
        _admit_key_change(state, fact, law)


def _admit_first_policy(data: Opened, fact: Fact, law: Law) -> None:
    if data.authority is UNSET:
        return
    from projections.authority import policy_fault

    fault = policy_fault(data.authority)
    if fault is not None:
        law.refuse(fact, fault)


def _admit_key_change(state: State, fact: Fact, law: Law) -> None:
    from projections.authority import key_signature_holds

    data = fact.data
    if data.name not in ("checkpoint", "receipt"):
        law.refuse(fact, "unknown key name")
    digest_text(data.key, fact)
    old = state.checkpoint_key if data.name == "checkpoint" else state.receipt_key
    if not key_signature_holds(old, data.name, data.key, data.signature):
        law.refuse(fact, "a new key must be signed by the old one")
