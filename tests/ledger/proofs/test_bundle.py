"""Proof files: every whole one checks with nothing but itself, every changed one is refused with its reason."""

from __future__ import annotations

import json
import subprocess
import sys

import metamorphic_log
import pytest
from chains import Chain
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import GatebookError, Invalid, Refused, Tampered
from ledger.proofs import bundle, tree
from ledger.proofs import note as notes

A = Chain(23)
B = Chain(23, word="b", seed=2)
FORK = Chain(23, word="a")


def test_every_event_of_every_checkpoint_checks_against_the_ledgers_key():
    for size in range(1, 24):
        for seq in range(1, size + 1):
            verdict = bundle.check_file(bytes(A.inclusion(seq, size)), [A.key])
            assert (verdict.seq, verdict.event_hash, verdict.head.size) == (seq, A.events[seq - 1].hash, size)
            assert verdict.attested


def test_every_growth_checks_against_the_ledgers_key():
    for new in range(1, 24):
        for old in range(1, new + 1):
            verdict = bundle.check_file(bytes(A.consistency(old, new)), [A.key])
            assert (verdict.old.size, verdict.head.size) == (old, new)


def test_without_a_key_a_proof_is_only_self_signed():
    assert not bundle.check_file(bytes(A.inclusion(5, 20)), []).attested
    assert not bundle.check_file(bytes(A.consistency(5, 20)), []).attested


def test_an_independent_implementation_checks_the_files():
    """metamorphic-log reads the note, its signature and the path as they stand in the files."""
    for seq, size in [(1, 1), (1, 23), (7, 8), (20, 23), (23, 23)]:
        file = json.loads(bytes(A.inclusion(seq, size)))
        metamorphic_log.checkpoint_verify_inclusion(
            file["note"],
            [str(A.key)],
            seq - 1,
            A.leaves[seq - 1],
            [bytes.fromhex(step) for step in file["path"]],
        )
        with pytest.raises(metamorphic_log.VerifyError):
            metamorphic_log.checkpoint_verify_inclusion(
                file["note"],
                [str(B.key)],
                seq - 1,
                A.leaves[seq - 1],
                [bytes.fromhex(step) for step in file["path"]],
            )
    for old, new in [(1, 23), (8, 16), (7, 22)]:
        file = json.loads(bytes(A.consistency(old, new)))
        metamorphic_log.checkpoint_verify_consistency(
            file["old"], file["new"], [str(A.key)], [bytes.fromhex(step) for step in file["path"]]
        )


def test_the_checker_needs_no_ledger_and_no_database():
    code = "import sys, ledger.proofs.bundle; print([m for m in ('apsw', 'sqlite3', '_sqlite3', 'ledger.sqlite', 'ledger.store') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def changed(raw: bytes, **members) -> bytes:
    return bundle.encode(json.loads(raw) | members) + b"\n"


WHOLE = bytes(A.inclusion(7, 20))
GROWTH = bytes(A.consistency(7, 20))


def test_data_that_was_changed_is_refused():
    data = json.loads(WHOLE)["data"].replace('"n":7', '"n":8')
    with pytest.raises(Tampered, match="data_digest"):
        bundle.check_file(changed(WHOLE, data=data), [A.key])


def test_an_envelope_that_was_changed_leads_to_another_root():
    envelope = json.loads(WHOLE)["envelope"].replace("cli:test", "cli:best")
    with pytest.raises(Tampered, match="leads to root"):
        bundle.check_file(changed(WHOLE, envelope=envelope), [A.key])


def test_another_previous_hash_leads_to_another_root():
    with pytest.raises(Tampered, match="leads to root"):
        bundle.check_file(changed(WHOLE, previous_hash="00" * 32), [A.key])
    with pytest.raises(Tampered, match="32 zero bytes"):
        bundle.check_file(changed(bytes(A.inclusion(1, 3)), previous_hash="01" * 32), [A.key])


def test_a_swapped_event_is_refused():
    other = json.loads(bytes(A.inclusion(8, 20)))
    swapped = changed(
        WHOLE, envelope=other["envelope"], data=other["data"], previous_hash=other["previous_hash"]
    )
    with pytest.raises(Tampered, match="event 8 leads to root"):
        bundle.check_file(swapped, [A.key])


def test_a_path_that_was_cut_or_padded_is_refused():
    path = json.loads(WHOLE)["path"]
    for wrong in (path[:-1], path[1:], [*path, path[0]], []):
        with pytest.raises(Tampered):
            bundle.check_file(changed(WHOLE, path=wrong), [A.key])


def test_a_stale_note_that_does_not_cover_the_event_is_refused():
    with pytest.raises(Tampered, match="too old"):
        bundle.check_file(changed(WHOLE, note=A.note(6)), [A.key])


def test_a_note_of_another_size_is_refused():
    with pytest.raises(Tampered):
        bundle.check_file(changed(WHOLE, note=A.note(21)), [A.key])


def test_a_root_that_nobody_signed_is_refused():
    text = str(A.checkpoint(20))
    with pytest.raises(Invalid):
        bundle.check_file(changed(WHOLE, note=text), [A.key])
    with pytest.raises(Invalid):
        bundle.check_file(changed(WHOLE, note=text + "\n"), [A.key])


def test_a_root_that_a_stranger_signed_in_the_ledgers_name_is_refused():
    stranger = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
    note = str(notes.sign_note(str(A.checkpoint(20)), A.ledger_id, stranger))
    for keys in ([A.key], []):
        with pytest.raises(Refused, match="no signature by a known key"):
            bundle.check_file(changed(WHOLE, note=note), keys)


def test_a_root_that_only_a_witness_signed_is_refused():
    private = Ed25519PrivateKey.from_private_bytes(b"w" * 32)
    witness = notes.VerifierKey("witness", notes.COSIGNATURE_V1, private.public_key().public_bytes_raw())
    both = notes.cosign_note(notes.parse_note(A.note(20)), "witness", private, 5)
    alone = str(notes.Note(both.text, both.signatures[1:]))
    assert witness in bundle.check_file(changed(WHOLE, note=str(both)), [A.key, witness]).signers
    assert not bundle.check_file(changed(WHOLE, note=str(both)), [witness]).attested
    for keys in ([A.key, witness], [witness]):
        with pytest.raises(Refused, match="not signed by the ledger"):
            bundle.check_file(changed(WHOLE, note=alone), keys)


def test_a_forged_signature_of_the_right_key_is_refused():
    text = A.note(20)
    forged = text.replace(A.note(20).splitlines()[2], A.note(19).splitlines()[2])
    with pytest.raises(Tampered, match="does not verify"):
        bundle.check_file(changed(WHOLE, note=forged), [A.key])


def test_a_proof_of_another_ledger_is_refused():
    with pytest.raises(Refused, match="another ledger"):
        bundle.check_file(bytes(B.inclusion(7, 20)), [A.key])
    with pytest.raises(Refused, match="another ledger"):
        bundle.check_file(bytes(B.consistency(7, 20)), [A.key])


def test_the_note_of_another_ledger_under_this_ones_event_is_refused():
    with pytest.raises(Tampered, match="another ledger"):
        bundle.check_file(changed(WHOLE, note=B.note(20)), [])
    with pytest.raises(Tampered, match="leads to root"):
        bundle.check_file(
            changed(WHOLE, note=B.note(20), genesis=json.loads(bytes(B.inclusion(1, 1)))["genesis"]), []
        )


def test_a_genesis_with_another_key_is_refused():
    genesis = json.loads(WHOLE)["genesis"]
    genesis["data"] = genesis["data"].replace(A.key.public.hex(), B.key.public.hex())
    with pytest.raises(Tampered, match="genesis"):
        bundle.check_file(changed(WHOLE, genesis=genesis), [])


def test_notes_of_two_ledgers_do_not_make_a_growth():
    for keys in ([A.key, B.key], []):
        with pytest.raises(Tampered, match="another ledger"):
            bundle.check_file(changed(GROWTH, new=B.note(20)), keys)


def test_swapped_notes_are_a_log_that_shrank():
    file = json.loads(GROWTH)
    with pytest.raises(Tampered, match="shrank"):
        bundle.check_file(changed(GROWTH, old=file["new"], new=file["old"]), [A.key])


def test_a_fork_signed_by_the_same_key_is_found():
    """The same ledger id and key, another event 20: both notes are signed, no path joins them."""
    forked = Chain(23)
    forked.leaves[5] = tree.leaf_hash(b"f" * 32)
    with pytest.raises(Tampered) as caught:
        bundle.check_file(changed(GROWTH, new=forked.note(20)), [A.key])
    assert caught.value.verdict == "forked"
    path = [step.hex() for step in tree.prove_consistency(7, 20, forked.node).path]
    with pytest.raises(Tampered) as caught:
        bundle.check_file(changed(GROWTH, new=forked.note(20), path=path), [A.key])
    assert caught.value.verdict == "forked"


@pytest.mark.parametrize("raw", [WHOLE, GROWTH])
def test_a_file_cut_anywhere_is_refused(raw):
    for end in range(0, len(raw), 13):
        with pytest.raises(Invalid):
            bundle.check_file(raw[:end], [A.key])


@pytest.mark.parametrize("raw", [WHOLE, GROWTH])
def test_a_byte_changed_anywhere_is_refused(raw):
    for at in range(0, len(raw), 3):
        for bit in (1, 0x20):
            with pytest.raises(GatebookError):
                bundle.check_file(raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :], [A.key])


@pytest.mark.parametrize(
    "members",
    [
        {"format": 2},
        {"format": True},
        {"proof": "other"},
        {"proof": []},
        {"extra": 1},
        {"path": "x"},
        {"path": ["00"]},
        {"path": [7]},
        {"path": ["AA" * 32]},
        {"path": ["00" * 32] * 127},
        {"note": None},
        {"envelope": "{ }"},
        {"envelope": "[]"},
        {"envelope": "{}"},
        {"envelope": '{"seq":0}'},
        {"envelope": '{"seq":"7"}'},
        {"data": "{ }"},
        {"previous_hash": ""},
        {"genesis": {}},
        {"genesis": {"data": "{}", "envelope": "{}", "x": "y"}},
    ],
)
def test_members_of_another_shape_are_refused(members):
    with pytest.raises(Invalid):
        bundle.check_file(changed(WHOLE, **members), [A.key])


def test_another_spelling_of_the_same_file_is_refused():
    for raw in (WHOLE + b"\n", b" " + WHOLE, WHOLE[:-1], json.dumps(json.loads(WHOLE)).encode()):
        with pytest.raises(Invalid):
            bundle.parse_file(raw)


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_no_bytes_make_the_parser_fail_in_another_way(raw):
    with pytest.raises(Invalid):
        bundle.parse_file(raw)


def test_a_forged_file_is_refused_for_the_forgery_however_it_is_spaced():
    members = json.loads(bytes(A.inclusion(3, 5))) | {"data": '{"n":-1}'}
    with pytest.raises(Tampered, match="data_digest"):
        bundle.check_file(json.dumps(members, indent=2).encode(), [])
