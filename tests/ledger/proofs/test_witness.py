"""The witness cosigns what only grew, and nothing else, whatever it is handed."""

from __future__ import annotations

import os
import stat

import pytest
from chains import Chain

from ledger.errors import Conflict, Invalid, Refused, Tampered, Usage
from ledger.proofs import note as notes
from ledger.proofs import tree
from ledger.proofs import witness as witnesses

A = Chain(23)
B = Chain(23, word="b", seed=2)


@pytest.fixture
def home(tmp_path):
    directory = str(tmp_path / "witness")
    witnesses.create_witness(directory)
    return directory


def cosign(directory, text, keys=(A.key,), path=None, at=1_700_000_000):
    witness = witnesses.load_witness(directory)
    try:
        return witness.cosign(text, keys, path, at)
    finally:
        witness.close()


def path(old, new, chain=A):
    return tree.prove_consistency(old, new, chain.node).path


def memory(directory):
    with open(os.path.join(directory, "memory"), encoding="utf-8") as file:
        return file.read()


def test_a_first_checkpoint_is_cosigned_under_the_witness_key(home):
    text = cosign(home, A.note(5))
    witness = witnesses.load_witness(home)
    assert notes.check_note(notes.parse_note(text), [A.key, witness.key]) == [A.key, witness.key]
    assert memory(home) == text
    witness.close()


def test_the_key_is_for_its_owner_only_and_never_made_twice(home):
    assert stat.S_IMODE(os.stat(os.path.join(home, "key")).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(home).st_mode) == 0o700
    with pytest.raises(Conflict):
        witnesses.create_witness(home)


def test_growth_is_cosigned_with_its_proof(home):
    cosign(home, A.note(5))
    cosign(home, A.note(9), path=path(5, 9))
    cosign(home, A.note(23), keys=(), path=path(9, 23))
    assert notes.parse_checkpoint(notes.parse_note(memory(home)).text).size == 23


def test_the_same_checkpoint_is_cosigned_again(home):
    cosign(home, A.note(5))
    assert (
        notes.parse_note(cosign(home, A.note(5), at=1_700_000_009)).signatures[-1].timestamp == 1_700_000_009
    )


def test_growth_without_a_proof_is_refused_and_not_remembered(home):
    before = cosign(home, A.note(5))
    with pytest.raises(Refused, match="prove --consistency"):
        cosign(home, A.note(9))
    assert memory(home) == before


def test_a_log_that_shrank_is_refused(home):
    before = cosign(home, A.note(9))
    with pytest.raises(Tampered, match="shrank") as caught:
        cosign(home, A.note(5), path=path(5, 9))
    assert caught.value.verdict == "truncated"
    assert memory(home) == before


def test_a_fork_of_the_same_size_is_refused(home):
    before = cosign(home, A.note(9))
    forked = Chain(23)
    forked.leaves[3] = tree.leaf_hash(b"f" * 32)
    with pytest.raises(Tampered) as caught:
        cosign(home, forked.note(9))
    assert caught.value.verdict == "forked"
    with pytest.raises(Tampered) as caught:
        cosign(home, forked.note(20), path=path(9, 20, forked))
    assert caught.value.verdict == "forked"
    assert memory(home) == before


def test_another_ledger_is_refused(home):
    cosign(home, A.note(5))
    with pytest.raises(Refused, match="another ledger"):
        cosign(home, B.note(9), keys=(B.key,), path=path(5, 9, B))


def test_an_unknown_ledger_is_refused_before_anything_is_remembered(home):
    with pytest.raises(Refused, match="--key"):
        cosign(home, A.note(5), keys=(B.key,))
    assert not os.path.exists(os.path.join(home, "memory"))


def test_a_forged_note_is_refused(home):
    forged = A.note(5).replace("\n5\n", "\n6\n")
    with pytest.raises(Tampered, match="does not verify"):
        cosign(home, forged)
    with pytest.raises(Invalid):
        cosign(home, str(A.checkpoint(5)))


def test_a_key_given_later_does_not_replace_the_remembered_one(home):
    cosign(home, A.note(5))
    other = Chain(23, seed=3)
    key = notes.VerifierKey(A.ledger_id, notes.ED25519, other.key.public)
    note = str(notes.sign_note(str(A.checkpoint(9)), A.ledger_id, other.private))
    with pytest.raises(Refused):
        cosign(home, note, keys=(key,), path=path(5, 9))


def test_a_witness_that_lost_its_memory_does_not_begin_anew(home):
    cosign(home, A.note(9))
    os.unlink(os.path.join(home, "memory"))
    with pytest.raises(Refused, match="memory"):
        cosign(home, A.note(5))


def test_a_witness_that_died_before_it_kept_the_key_still_knows_its_log(home):
    cosign(home, A.note(9))
    os.unlink(os.path.join(home, "log-key"))
    with pytest.raises(Refused, match="another ledger"):
        cosign(home, B.note(9), keys=(B.key,))
    with pytest.raises(Tampered, match="shrank"):
        cosign(home, A.note(5))
    cosign(home, A.note(9))


def test_no_witness_and_a_damaged_one_say_so(tmp_path, home):
    with pytest.raises(Usage, match="witness init"):
        witnesses.load_witness(str(tmp_path))
    with open(os.path.join(home, "key"), "wb") as file:
        file.write(b"short")
    with pytest.raises(Invalid, match="damaged"):
        witnesses.load_witness(home)


def test_a_key_that_others_can_read_is_not_used(home):
    os.chmod(os.path.join(home, "key"), 0o644)
    with pytest.raises(Refused, match="others can read"):
        witnesses.load_witness(home)


def test_two_cosigners_at_once_leave_one_whole_memory(home):
    """Each waits for the other; the smaller note is refused after the larger one, never remembered over it."""
    import threading

    outcomes = []

    def ask(size):
        try:
            outcomes.append(cosign(home, A.note(size), path=path(5, size)))
        except (Refused, Tampered) as error:
            outcomes.append(error)

    cosign(home, A.note(5))
    threads = [threading.Thread(target=ask, args=(size,)) for size in (9, 14, 23)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    signed = [
        notes.parse_checkpoint(notes.parse_note(text).text).size for text in outcomes if isinstance(text, str)
    ]
    assert signed
    assert notes.parse_checkpoint(notes.parse_note(memory(home)).text).size == max(signed)
