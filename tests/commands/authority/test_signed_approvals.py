"""Approvals signed by real ssh-keygen; what is forged, replayed, in another namespace or by another key is refused."""

import hashlib
import json
import subprocess
import sys
from binascii import b2a_base64
from datetime import timedelta
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "plan_runs"))
from plan_house import House, in_utc


def make_key(folder, name):
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", folder / name], check=True
    )
    return folder / name


def sign(key, path, namespace="gatebook"):
    subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-q", "-n", namespace, "-f", key, path], check=True, capture_output=True
    )
    return Path(f"{path}.sig")


@pytest.fixture(autouse=True)
def _the_zone_is_utc():
    with in_utc():
        yield


@pytest.fixture
def house(tmp_path, home, capfd, monkeypatch):
    """A ledger whose genesis lets ann and bob approve; cyd is not listed."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    made = House(tmp_path, capfd, monkeypatch)
    lines = [f"{name} {make_key(tmp_path, name).with_suffix('.pub').read_text()}" for name in ("ann", "bob")]
    make_key(tmp_path, "cyd")
    (tmp_path / "signers").write_text("".join(lines))
    assert made.cli("init", "--signers", tmp_path / "signers")[0] == 0
    return made


APPROVE = ("plan", "approve", "--text", "1,3")


def test_a_signed_approval_is_recorded_with_its_principal(house):
    found = house.ok(*APPROVE, "--sign", "--key", house.folder / "bob")
    assert found["signed_by"] == "bob"
    house.ok("run", "claim")


def test_an_unsigned_approval_is_refused_and_recorded_and_the_plan_untouched(house):
    before = (house.run / "plan.json").read_bytes()
    assert "must be signed" in house.refused(4, *APPROVE)
    assert (house.run / "plan.json").read_bytes() == before
    assert house.types() == ["ledger.opened", "admission.refused"]


def test_an_unlisted_key_signs_nothing(house):
    assert "not listed" in house.refused(4, *APPROVE, "--sign", "--key", house.folder / "cyd")
    assert "no listed key signs here" in house.refused(4, *APPROVE, "--sign")
    assert house.types() == ["ledger.opened", *["admission.refused"] * 2]
    first, second = refusals(house)
    assert (first["type"], first["stream"]) == ("plan.approved", f"run/1-{house.today}")
    assert first["digest"] != second["digest"]  # of the statements, which have nonces


def refusals(house):
    """The data of all refusals, in order."""
    from ledger.access import open_ledger

    opened = open_ledger(str(house.folder / ".gatebook"))
    found = [json.loads(event.data) for event in opened.store.read() if event.stream.startswith("refusal/")]
    opened.close()
    return found


def test_an_approval_that_is_refused_before_any_signature_is_recorded(house):
    house.refused(4, *APPROVE, "--session", "s2")
    house.be(None)
    house.refused(4, *APPROVE)
    assert [one["reason"] for one in refusals(house)] == ["the approval was refused"] * 2


@pytest.mark.parametrize(
    "flags",
    [("--key", "ann"), ("--statement", "x"), ("--signature", "x"), ("--sign", "--statement", "x", "--signature", "y")],
)  # fmt: skip
def test_flags_that_name_no_way_or_two_ways_to_sign_are_a_usage_error(house, flags):
    house.refused(2, *APPROVE, *flags)
    assert house.types() == ["ledger.opened"]


def test_an_approval_is_not_recorded_in_another_stream_than_was_signed(house, monkeypatch):
    """Another runs folder takes the number between signing and recording."""
    from commands.authority import signing

    other = house.folder / "other" / house.today
    other.mkdir(parents=True)
    house.plan(other)
    made = signing.sign

    def slow(*words):
        house.ok("plan", "record", run=other)
        return made(*words)

    monkeypatch.setattr(signing, "sign", slow)
    assert house.on(*APPROVE, "--sign", "--key", house.folder / "ann")[0] == 5
    monkeypatch.setattr(signing, "sign", made)
    house.ok(*APPROVE, "--sign", "--key", house.folder / "ann")
    assert house.cli("replay", "--json")[0] == 0


def test_a_statement_from_before_a_restore_is_not_fresh_again(house):
    """What it allowed may be spent in the history that was lost, and its nonce is lost with it."""
    copy = house.folder / "copy.db"
    words = issue_words(house, "assignment.comment")
    receipt, approval, policy = (house.folder / name for name in ("r", "a", "p"))
    assert house.cli("backup", copy)[0] == 0
    assert house.cli(*words, "--statement-out", receipt)[0] == 0
    house.ok("plan", "statement", "--text", "all", "--out", approval)
    change = ("authority", "require", "--signers", house.folder / "signers")
    assert house.cli(*change, "--out", policy)[0] == 0
    calls = {
        receipt: words,
        approval: (*APPROVE[:2], "--run-dir", house.run, "--text", "all"),
        policy: change,
    }
    signed = {path: sign(house.folder / "ann", path) for path in calls}

    def bring_all():
        return [
            house.cli(*call, "--statement", path, "--signature", signed[path])[0]
            for path, call in calls.items()
        ]

    plan = (house.run / "plan.json").read_bytes()
    assert bring_all() == [0, 0, 0]
    (house.run / "plan.json").write_bytes(plan)
    house.restore(copy)
    assert bring_all() == [4, 4, 4]
    assert {one["reason"] for one in refusals(house)} == {"the signed statement is from before the ledger was restored"}  # fmt: skip
    house.ok(*APPROVE, "--sign", "--key", house.folder / "ann")
    assert house.cli("replay", "--json")[0] == 0


def issue_words(house, action):
    return ["receipt", "issue", "--origin", "https://c.edu", "--course", "1", "--target-type", "assignment", "--target", "2", "--action", action,
            "--session", "s1", "--expires", (house.now + timedelta(hours=1)).isoformat(), "--authority", "yes", "--out", house.folder / "r.json"]  # fmt: skip


def statement(house, text="1,3", name="statement"):
    path = house.folder / name
    house.ok("plan", "statement", "--text", text, "--out", path)
    return path


def bring(house, path, signature, text="1,3"):
    return house.on("plan", "approve", "--text", text, "--statement", path, "--signature", signature)


def test_a_statement_signed_elsewhere_is_accepted_as_those_bytes_only(house):
    path = statement(house)
    signature = sign(house.folder / "ann", path)
    assert json.loads(path.read_bytes())["decisions"]["3"] == "approve"
    path.write_bytes(path.read_bytes() + b"\n")
    assert bring(house, path, signature)[0] == 4
    path.write_bytes(path.read_bytes()[:-1])
    assert bring(house, path, signature, text="all")[0] == 4
    code, found, _ = bring(house, path, signature)
    assert (code, found["signed_by"]) == (0, "ann")


def test_a_forged_a_foreign_namespace_and_an_unlisted_signature_are_refused(house):
    path = statement(house)
    before = (house.run / "plan.json").read_bytes()
    other = house.folder / "other"
    other.write_bytes(b"something else")
    attempts = [
        sign(house.folder / "ann", other),
        sign(house.folder / "ann", path, "git"),
        sign(house.folder / "cyd", path),
    ]
    for signature in attempts[:1]:
        assert bring(house, path, signature)[0] == 4
    path.with_suffix(".sig").unlink(missing_ok=True)
    for key, namespace in (("ann", "git"), ("cyd", "gatebook")):
        Path(f"{path}.sig").unlink(missing_ok=True)
        assert bring(house, path, sign(house.folder / key, path, namespace))[0] == 4
    (house.folder / "junk.sig").write_text("no signature")
    assert bring(house, path, house.folder / "junk.sig")[0] in (1, 4)
    assert (house.run / "plan.json").read_bytes() == before
    assert "plan.approved" not in house.types()
    assert house.types().count("admission.refused") >= 3


def test_a_signature_is_not_replayed_on_another_plan_ledger_session_or_twice(house):
    path = statement(house)
    signature = sign(house.folder / "ann", path)
    house.be("s2")
    assert bring(house, path, signature)[0] == 4
    house.be("s1")
    plan = (house.run / "plan.json").read_bytes()
    house.plan(house.run, note="another plan")
    assert bring(house, path, signature)[0] == 4
    (house.run / "plan.json").write_bytes(plan)
    assert bring(house, path, signature)[0] == 0
    # The plan is decided by now: the same bytes are no statement about it.
    assert bring(house, path, signature)[0] == 4
    house.cli("--ledger", house.folder / "two", "init", "--signers", house.folder / "signers")
    (house.run / "plan.json").write_bytes(plan)
    code, _, err = house.cli("--ledger", house.folder / "two", "plan", "approve", "--run-dir", house.run, "--text", "1,3", "--statement", path, "--signature", signature)  # fmt: skip
    assert code == 4
    assert "ledger differs" in err


def test_a_nonce_is_used_once(house):
    """The decisions change nothing (all is deferred already), so that the statement would fit again."""
    house.ok("plan", "approve", "--text", "skip", "--sign", "--key", house.folder / "ann")
    path = statement(house, "skip")
    signature = sign(house.folder / "ann", path)
    assert bring(house, path, signature, "skip")[0] == 0
    code, _, err = bring(house, path, signature, "skip")
    assert code == 4
    assert "nonce" in err


def test_an_expired_statement_is_refused(house):
    path = statement(house)
    fields = json.loads(path.read_bytes())
    fields["expires_at"] = "2020-01-01T00:00:00Z"
    path.write_bytes(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
    code, _, err = bring(house, path, sign(house.folder / "ann", path))
    assert code == 4
    assert "expired" in err


def test_a_receipt_is_issued_signed_without_a_terminal(house):
    words = issue_words(house, "assignment.comment")
    assert house.cli(*words)[0] == 4
    assert house.cli(*words, "--sign", "--key", house.folder / "cyd")[0] == 4
    assert not (house.folder / "r.json").exists()
    assert house.cli(*words, "--sign", "--key", house.folder / "ann")[0] == 0
    path = house.folder / "receipt-statement"
    assert house.cli(*words, "--statement-out", path)[0] == 0
    signature = sign(house.folder / "bob", path)
    brought = ("--statement", path, "--signature", signature)
    assert house.cli(*[word if word != "yes" else "no" for word in words], *brought)[0] == 4
    assert house.cli(*[word if word != "2" else "3" for word in words], *brought)[0] == 4
    assert [one["type"] for one in refusals(house)] == ["receipt.issued"] * 4
    assert house.cli(*words, *brought)[0] == 0
    assert house.cli(*words, *brought)[0] == 4  # the same nonce is the same receipt
    assert house.types().count("receipt.issued") == 2


def test_an_agent_that_reaches_a_key_issues_nothing_where_the_policy_asks_for_no_signature(house):
    (house.folder / "new").write_text((house.folder / "signers").read_text() + "# types: plan.approved\n")
    assert (
        house.cli("authority", "require", "--signers", house.folder / "new", "--key", house.folder / "ann")[0]
        == 0
    )
    words = (*issue_words(house, "assignment.comment"), "--sign", "--key", house.folder / "ann")
    code, _, err = house.cli(*words)
    assert (code, "agent session" in err) == (4, True)
    house.be(None)
    assert "terminal" in house.cli(*words)[2]
    assert "receipt.issued" not in house.types()


def test_a_policy_change_is_signed_by_a_signer_of_the_one_that_holds(house):
    (house.folder / "new").write_text(
        f"cyd {(house.folder / 'cyd.pub').read_text()}ann {(house.folder / 'ann.pub').read_text()}# types: plan.approved\n"
    )
    words = ("authority", "require", "--signers", house.folder / "new")
    assert house.cli(*words)[0] == 4
    assert house.cli(*words, "--key", house.folder / "cyd")[0] == 4
    assert house.cli("authority", "signers")[1]["signers"][1]["principal"] == "bob"
    path = house.folder / "policy"
    assert house.cli(*words, "--out", path)[1]["expires_at"] == json.loads(path.read_bytes())["expires_at"]
    fields = {**json.loads(path.read_bytes()), "expires_at": "2020-01-01T00:00:00Z"}
    path.write_bytes(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
    brought = ("--statement", path, "--signature", sign(house.folder / "ann", path))
    assert "expired" in house.cli(*words, *brought)[2]
    old = ("authority", "require", "--signers", house.folder / "signers")
    assert house.cli(*old, *brought)[0] == 4
    assert [one["type"] for one in refusals(house)] == ["authority.changed"] * 4
    code, found, err = house.cli(*words, "--key", house.folder / "bob")
    assert (code, found["signed_by"]) == (0, "bob")
    assert "ssh-agent" in err
    assert house.cli("authority", "show")[1]["policy"]["types"] == ["plan.approved"]
    assert "not listed" in house.refused(4, *APPROVE, "--sign", "--key", house.folder / "bob")
    house.ok(*APPROVE, "--sign", "--key", house.folder / "cyd")


def test_the_first_policy_signs_itself(tmp_path, home, capfd, monkeypatch):
    house = House(tmp_path, capfd, monkeypatch)
    house.cli("init")
    for name in ("ann", "bob"):
        make_key(tmp_path, name)
    (tmp_path / "signers").write_text(
        "".join(f"{name} {(tmp_path / f'{name}.pub').read_text()}" for name in ("ann", "bob"))
    )
    assert house.cli("authority", "show")[1]["policy"] is None
    house.ok(*APPROVE)
    path = tmp_path / "policy"
    assert house.cli("authority", "require", "--signers", tmp_path / "signers", "--out", path)[0] == 0
    signature = sign(tmp_path / "ann", path)
    code, found, _ = house.cli(
        "authority",
        "require",
        "--signers",
        tmp_path / "signers",
        "--statement",
        path,
        "--signature",
        signature,
    )
    assert (code, found["signed_by"]) == (0, "ann")
    assert house.on(*APPROVE)[0] == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cyd ssh-ed25519 AAAAC3NzaC1lZDI1NTE5", "line 3: the public key is cut off"),
        ("cyd ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOV8rQ==", "line 3: the public key is cut off"),
        ("# presence: yes", "line 3: presence is `required`"),
    ],
)
def test_a_line_that_would_weaken_a_policy_unseen_is_refused(house, line, said):
    text = (house.folder / "signers").read_text()
    (house.folder / "new").write_text(f"{text}{line}\n")
    code, _, err = house.cli("authority", "require", "--signers", house.folder / "new", "--out", house.folder / "p")  # fmt: skip
    assert (code, said in err) == (1, True), err


def test_one_key_in_two_spellings_is_one_key(house):
    """The last letter before `=` has bits that no byte needs: base64 spells one key in many ways."""
    from commands.authority.signers import read_policy
    from ledger.errors import Invalid

    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (b"ssh-ed25519", b"k" * 34))
    body = b2a_base64(blob, newline=False).decode()
    assert body.endswith("s=")
    other = body.replace("s=", "t=")
    (house.folder / "new").write_text(f"ann ssh-ed25519 {body}\nbob ssh-ed25519 {other}\n")
    with pytest.raises(Invalid, match="two keys"):
        read_policy(str(house.folder / "new"))


@pytest.mark.parametrize("text", ["", "ann ssh-ed25519 AAAA\n", "ann\n", "# types: x.y\n", "\xff"])
def test_a_malformed_signers_file_is_refused(tmp_path, home, capfd, monkeypatch, text):
    house = House(tmp_path, capfd, monkeypatch)
    key = make_key(tmp_path, "ann").with_suffix(".pub").read_text()
    (tmp_path / "signers").write_bytes(text.encode("latin-1"))
    assert house.cli("init", "--signers", tmp_path / "signers")[0] == 1
    (tmp_path / "signers").write_text(f"ann {key}")
    assert house.cli("init", "--signers", tmp_path / "signers")[0] == 1
    assert house.cli("init", "--signers", tmp_path / "signers", "--single-key")[0] == 0


def test_presence_accepts_only_keys_that_were_touched(house):
    (house.folder / "new").write_text((house.folder / "signers").read_text() + "# presence: required\n")
    code, found, err = house.cli(
        "authority", "require", "--signers", house.folder / "new", "--key", house.folder / "ann"
    )
    assert (code, "nobody can sign" in err, len(found["warnings"])) == (0, True, 1)
    assert "nobody can sign" in house.cli("doctor", "--json")[1].__repr__()
    assert "presence" in house.refused(4, *APPROVE, "--sign", "--key", house.folder / "ann")


def test_a_touched_security_key_approves_under_presence(house):
    """The key is made of software here; its signature has the form of one that a token makes (PROTOCOL.u2f)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    def strings(*parts):
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)

    key, kind = Ed25519PrivateKey.generate(), b"sk-ssh-ed25519@openssh.com"
    public = strings(kind, key.public_key().public_bytes_raw(), b"ssh:")
    (house.folder / "new").write_text(
        f"eve {kind.decode()} {b2a_base64(public, newline=False).decode()}\n# presence: required\n"
    )
    words = ("authority", "require", "--signers", house.folder / "new", "--single-key")
    code, found, err = house.cli(*words, "--key", house.folder / "ann")
    assert (code, found["warnings"], err) == (0, [], "")
    path = statement(house)
    signature = house.folder / "touch.sig"
    for flags, expected in ((b"\0", 4), (b"\1", 0)):
        digest = hashlib.sha512(path.read_bytes()).digest()
        told = b"SSHSIG" + strings(b"gatebook", b"", b"sha512", digest)
        end = flags + b"\0\0\0\1"
        made = key.sign(hashlib.sha256(b"ssh:").digest() + end + hashlib.sha256(told).digest())
        whole = strings(public, b"gatebook", b"", b"sha512", strings(kind, made) + end)
        signature.write_bytes(b2a_base64(b"SSHSIG\0\0\0\1" + whole))
        assert bring(house, path, signature)[0] == expected
    assert house.cli("replay", "--json")[0] == 0


def test_a_rotated_receipt_key_signs_and_older_receipts_stay_valid(house):
    words = ["receipt", "issue", "--origin", "https://c.edu", "--course", "1", "--target-type", "quiz", "--target", "2", "--action", "quiz.start",
             "--session", "s1", "--expires", (house.now + timedelta(hours=1)).isoformat(), "--authority", "yes", "--sign", "--key", house.folder / "ann"]  # fmt: skip
    use = [
        "--origin",
        "https://c.edu",
        "--course",
        "1",
        "--target-type",
        "quiz",
        "--target",
        "2",
        "--action",
        "quiz.start",
    ]
    assert house.cli(*words, "--out", house.folder / "before.json")[0] == 0
    assert house.cli("authority", "rotate", "receipt")[0] == 0
    assert house.cli(*words, "--out", house.folder / "after.json")[0] == 0
    for name in ("before.json", "after.json"):
        assert house.cli("receipt", "consume", house.folder / name, *use)[1]["allowed"] is True
    assert house.cli("authority", "rotate", "checkpoint")[0] == 0


def test_replay_admits_a_ledger_of_signed_events(house):
    from ledger.access import open_ledger
    from projections.authority import check_fact
    from projections.engine import fact_of
    from projections.ledger_stream import evolve, initial
    from projections.replay import replay

    house.ok(*APPROVE, "--sign", "--key", house.folder / "ann")
    (house.folder / "new").write_text((house.folder / "signers").read_text() + "# types: plan.approved\n")
    assert (
        house.cli("authority", "require", "--signers", house.folder / "new", "--key", house.folder / "ann")[0]
        == 0
    )
    opened = open_ledger(str(house.folder / ".gatebook"))
    assert replay(opened.store)[0].ok
    state = initial("ledger")
    for event in opened.store.read():
        fact = fact_of(event)
        check_fact(fact, state, opened.id)
        if fact.stream == "ledger":
            state = evolve(state, fact)
        if fact.type == "plan.approved":
            with pytest.raises(Exception, match="does not fit"):
                check_fact(fact, state, "0" * 32)
    opened.close()


def test_signers_are_read_as_allowed_signers_and_as_public_keys(tmp_path):
    from commands.authority.signers import read_policy
    from ledger.errors import Invalid

    ann, bob = (make_key(tmp_path, name).with_suffix(".pub").read_text().strip() for name in ("ann", "bob"))
    path = tmp_path / "signers"
    path.write_text(f'{ann}\n# types: plan.approved\nbob namespaces="gatebook" {bob}\n')
    policy = read_policy(str(path))
    assert [signer.principal for signer in policy.signers] == ["ann", "bob"]
    assert policy.types == ("plan.approved",)
    for line in (
        f'bob valid-before="20300101" {bob}',
        f"bob,eve {bob}",
        f"* {bob}",
        " ".join(bob.split()[:2]),
        f'bob namespaces="git" {bob}',
    ):
        path.write_text(f"{ann}\n{line}\n")
        with pytest.raises(Invalid, match="line 2"):
            read_policy(str(path))
