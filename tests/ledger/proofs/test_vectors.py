"""Golden vectors of the proofs, kept for good (F37): recomputed with SHA-256, Ed25519 and BLAKE3, none of our code."""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from hashlib import sha256

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

HERE = os.path.dirname(__file__)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
with open(os.path.join(HERE, "vectors.json"), encoding="utf-8") as _file:
    V = json.load(_file)
with open(os.path.join(HERE, "..", "vectors.json"), encoding="utf-8") as _file:
    EVENTS = json.load(_file)["events"]


def mth(leaves):
    if len(leaves) < 2:
        return leaves[0] if leaves else sha256(b"").digest()
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return sha256(b"\1" + mth(leaves[:k]) + mth(leaves[k:])).digest()


def path(index, leaves):
    if len(leaves) == 1:
        return []
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    if index < k:
        return [*path(index, leaves[:k]), mth(leaves[k:])]
    return [*path(index - k, leaves[k:]), mth(leaves[:k])]


def grown(old, leaves, whole=True):
    if old == len(leaves):
        return [] if whole else [mth(leaves)]
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    if old <= k:
        return [*grown(old, leaves[:k], whole), mth(leaves[k:])]
    return [*grown(old - k, leaves[k:], False), mth(leaves[:k])]


LEAVES = [sha256(b"\0" + bytes.fromhex(event["hash"])).digest() for event in EVENTS]
LOG = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(V["log_seed"]))
WITNESS = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(V["witness_seed"]))


def test_leaves_and_roots():
    assert [leaf.hex() for leaf in LEAVES] == V["leaves"]
    assert [event["hash"] for event in EVENTS] == V["event_hashes"]
    assert [mth(LEAVES[:size]).hex() for size in range(7)] == V["roots"]


def test_paths():
    assert [step.hex() for step in path(V["inclusion"]["seq"] - 1, LEAVES)] == V["inclusion"]["path"]
    assert [step.hex() for step in grown(V["consistency"]["old"], LEAVES)] == V["consistency"]["path"]


def key_of(name, kind, private):
    public = private.public_key().public_bytes_raw()
    key_id = sha256(name.encode() + b"\n" + bytes([kind]) + public).digest()[:4]
    return f"{name}+{key_id.hex()}+{b64encode(bytes([kind]) + public).decode()}", key_id


def test_the_ledger_id_is_the_origin_and_names_the_key():
    assert blake3(EVENTS[0]["envelope"].encode()).digest()[:16].hex() == V["ledger_id"]
    assert key_of(V["ledger_id"], 1, LOG)[0] == V["verifier_key"]
    assert key_of("witness.example", 4, WITNESS)[0] == V["witness_key"]


def test_the_note():
    text = f"{V['ledger_id']}\n6\n{b64encode(mth(LEAVES)).decode()}\n"
    signature = b64encode(key_of(V["ledger_id"], 1, LOG)[1] + LOG.sign(text.encode())).decode()
    assert V["note"] == f"{text}\n— {V['ledger_id']} {signature}\n"


def test_the_cosignature():
    text = V["note"].split("\n\n")[0] + "\n"
    at = V["cosigned_at"]
    signed = WITNESS.sign(f"cosignature/v1\ntime {at}\n{text}".encode())
    raw = key_of("witness.example", 4, WITNESS)[1] + at.to_bytes(8, "big") + signed
    assert V["cosigned"] == f"{V['note']}— witness.example {b64encode(raw).decode()}\n"
    assert b64decode(V["cosigned"].split()[-1]) == raw


def test_the_proof_file():
    event = EVENTS[2]
    members = {
        "proof": "inclusion", "format": 1, "envelope": event["envelope"], "data": event["data"],
        "previous_hash": EVENTS[1]["hash"], "path": V["inclusion"]["path"], "note": V["note"],
        "genesis": {"envelope": EVENTS[0]["envelope"], "data": EVENTS[0]["data"]},
    }  # fmt: skip
    written = json.dumps(members, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n"
    assert written == V["proof_file"]


def test_the_page_shows_these_vectors():
    with open(os.path.join(ROOT, "docs", "format.md"), encoding="utf-8") as file:
        page = file.read()
    shown = [*V["roots"], *V["inclusion"]["path"], *V["consistency"]["path"], V["note"], V["verifier_key"], V["log_seed"], V["witness_seed"], V["cosigned"].splitlines()[-1]]  # fmt: skip
    assert [text for text in shown if text not in page] == []


def test_our_code_writes_and_checks_the_same():
    from ledger.proofs import bundle, note

    file = bundle.parse_file(V["proof_file"].encode())
    assert bytes(file) == V["proof_file"].encode()
    verdict = bundle.check_file(V["proof_file"].encode(), [note.parse_verifier_key(V["verifier_key"])])
    assert verdict.event_hash.hex() == EVENTS[2]["hash"]
    keys = [note.parse_verifier_key(V[name]) for name in ("verifier_key", "witness_key")]
    assert note.check_note(note.parse_note(V["cosigned"]), keys) == keys
