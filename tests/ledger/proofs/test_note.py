"""Signed notes, checkpoints and cosignatures: what was parsed prints back, what was changed does not verify."""

from __future__ import annotations

import metamorphic_log
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import Invalid, Refused, Tampered
from ledger.proofs import note as notes

PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
WITNESS = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
KEY = notes.VerifierKey("log.example/a", notes.ED25519, PRIVATE.public_key().public_bytes_raw())
COKEY = notes.VerifierKey("witness.example", notes.COSIGNATURE_V1, WITNESS.public_key().public_bytes_raw())
TEXT = str(notes.Checkpoint("log.example/a", 7, bytes(32)))
SIGNED = notes.sign_note(TEXT, KEY.name, PRIVATE)

# tlog-cosignature.md of C2SP gives this note as its example.
EXAMPLE = """example.com/behind-the-sofa
20852163
CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=
— witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==
"""


def test_the_standards_own_example_parses_and_prints_back():
    note = notes.parse_note(EXAMPLE)
    assert str(note) == EXAMPLE
    head = notes.parse_checkpoint(note.text)
    assert (head.origin, head.size) == ("example.com/behind-the-sofa", 20852163)
    assert [line.name for line in note.signatures] == [
        "example.com/behind-the-sofa",
        "witness.example.com/w1",
    ]
    assert note.signatures[1].timestamp == 1679315147


def test_an_independent_implementation_verifies_our_checkpoint_under_our_key():
    head = metamorphic_log.checkpoint_verify(str(SIGNED), [str(KEY)])
    assert (head.origin, head.size, bytes(head.root)) == ("log.example/a", 7, bytes(32))


def test_an_independent_implementation_refuses_our_checkpoint_under_another_key():
    other = notes.VerifierKey("log.example/a", notes.ED25519, WITNESS.public_key().public_bytes_raw())
    with pytest.raises(metamorphic_log.VerifyError):
        metamorphic_log.checkpoint_verify(str(SIGNED), [str(other)])


def test_a_verifier_key_prints_back():
    assert str(notes.parse_verifier_key(str(KEY))) == str(KEY)
    assert str(notes.parse_verifier_key(str(COKEY))) == str(COKEY)


def test_the_key_that_go_documents_parses():
    """The example verifier key of golang.org/x/mod/sumdb/note's documentation."""
    text = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
    assert str(notes.parse_verifier_key(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a+b",
        "log.example/a+00000000+" + str(KEY).split("+", 2)[2],
        str(KEY).replace("log.example/a", "log.example/b"),
        str(KEY)[:-1],
        str(KEY) + "=",
        str(KEY) + "\n",
        str(KEY).replace("log.example", "log example"),
        "a+" + "00000000" + "+",
        "a+12345678+/" + "A" * 43,
    ],
)
def test_a_malformed_or_altered_verifier_key_is_refused(text):
    with pytest.raises(Invalid):
        notes.parse_verifier_key(text)


def test_a_signature_by_a_known_key_is_found():
    assert notes.check_note(SIGNED, [COKEY, KEY]) == [KEY]


def test_a_changed_text_does_not_verify():
    with pytest.raises(Tampered, match="does not verify"):
        notes.check_note(notes.Note(TEXT.replace("7", "8"), SIGNED.signatures), [KEY])


def test_every_flipped_byte_of_a_signature_is_found():
    line = SIGNED.signatures[0]
    for at in range(len(line.raw)):
        raw = line.raw[:at] + bytes([line.raw[at] ^ 1]) + line.raw[at + 1 :]
        with pytest.raises(Tampered):
            notes.check_note(notes.Note(TEXT, [notes.Signature(line.name, line.key_id, raw)]), [KEY])


def test_a_note_that_no_known_key_signed_is_refused():
    with pytest.raises(Refused, match=r"log\.example/a"):
        notes.check_note(SIGNED, [COKEY])


def test_a_cosignature_verifies_with_its_time_and_not_with_another():
    both = notes.cosign_note(SIGNED, COKEY.name, WITNESS, 1_700_000_000)
    assert notes.check_note(notes.parse_note(str(both)), [KEY, COKEY]) == [KEY, COKEY]
    line = both.signatures[1]
    assert line.timestamp == 1_700_000_000
    moved = notes.Signature(line.name, line.key_id, (1_700_000_001).to_bytes(8, "big") + line.raw[8:])
    with pytest.raises(Tampered):
        notes.check_note(notes.Note(TEXT, [moved]), [COKEY])


def test_a_plain_signature_is_no_cosignature():
    plain = notes.VerifierKey(COKEY.name, notes.ED25519, COKEY.public)
    both = notes.cosign_note(SIGNED, COKEY.name, WITNESS, 1)
    assert notes.check_note(both, [KEY, plain]) == [KEY]


def test_a_second_cosignature_of_one_witness_replaces_its_first():
    once = notes.cosign_note(SIGNED, COKEY.name, WITNESS, 1)
    twice = notes.cosign_note(once, COKEY.name, WITNESS, 2)
    assert [line.timestamp for line in twice.signatures if line.by(COKEY)] == [2]


def test_sixteen_signatures_are_read():
    many = SIGNED
    for number in range(16):
        many = notes.cosign_note(many, f"witness{number}", WITNESS, number)
    assert len(notes.parse_note(str(many)).signatures) == 17


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t[:-1], "cut off"),
        (lambda t: t.replace("\n\n", "\n"), "nobody signed"),
        (lambda t: t + "\n", "signature lines"),
        (lambda t: t.replace("— ", "- "), "signature line"),
        (lambda t: t.replace("— log", "—  log"), "key name"),
        (lambda t: t.replace("\n—", "\r\n—"), "control"),
        (lambda t: t.replace("log.example", "log\x00example"), "control"),
        (lambda t: t.replace("log.example", "log\ud800example"), "surrogates"),
        (lambda t: t[:-4] + "\n", "base64"),
        (lambda t: t.rsplit(" ", 1)[0] + " AAAA\n", "too short"),
        (lambda t: t + "— x\n", "signature line"),
        (lambda t: t + t.splitlines()[-1] + " x\n", "base64"),
        (lambda t: "x" * 70000 + t, "longer"),
        (lambda t: "", "nobody signed"),
    ],
)
def test_a_malformed_note_is_refused_with_its_reason(change, reason):
    with pytest.raises(Invalid, match=reason):
        notes.parse_note(change(str(SIGNED)))


@pytest.mark.parametrize(
    "size", ["", "-1", "+1", "01", "1e3", "٣", "1 ", "9223372036854775808", "9" * 4301, "0x1"]
)
def test_a_size_that_is_not_a_plain_number_is_refused(size):
    with pytest.raises(Invalid):
        notes.parse_checkpoint(TEXT.replace("\n7\n", f"\n{size}\n"))


@pytest.mark.parametrize("root", ["", "AAAA", "A" * 43, "A" * 42 + "B=", "*" * 44])
def test_a_root_that_is_not_a_hash_is_refused(root):
    with pytest.raises(Invalid):
        notes.parse_checkpoint(f"log\n7\n{root}\n")


def test_the_largest_size_is_read():
    assert notes.parse_checkpoint(TEXT.replace("\n7\n", "\n9223372036854775807\n")).size == 2**63 - 1


def test_extension_lines_are_kept_and_an_empty_one_is_refused():
    assert notes.parse_checkpoint(TEXT + "more\n").extensions == ("more",)
    with pytest.raises(Invalid):
        notes.parse_checkpoint(TEXT + "\nmore\n")


@given(st.text(alphabet="ab\n— +/=7", max_size=60))
def test_what_parses_prints_back_to_the_same_text(text):
    try:
        note = notes.parse_note(text)
    except Invalid:
        return
    assert str(note) == text


@given(st.lists(st.sampled_from([*str(SIGNED).split("\n"), "", " "]), max_size=9).map("\n".join))
def test_reordered_lines_print_back_or_are_refused(text):
    try:
        assert str(notes.parse_note(text)) == text
        assert str(notes.parse_checkpoint(notes.parse_note(text).text)) == notes.parse_note(text).text
    except Invalid:
        pass
