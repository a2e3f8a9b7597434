"""Who we are to a server: users, tokens, nkeys, creds and TLS, against real servers; and what each may do."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hashlib
import ipaddress
import json
import os
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats_servers import Server
from store_contract import add, draft, whole

from commands.fleet_checks import _replication, check_fleet, subject_matches
from ledger.errors import GatebookError, Invalid, Refused, Unavailable, Usage
from ledger.event import Origin
from ledger.fleet import create_fleet, open_fleet
from ledger.follow import PAGE, WORTH_DELIVERING
from ledger.jetstream import Stream
from ledger.nats_client import Connection
from ledger.nats_login import Login, find_login, sign_nonce

ORIGIN = Origin("cli:tester", "test")
NAME = "team"
READ = (
    f"$JS.API.STREAM.INFO.{NAME}", f"$JS.API.STREAM.INFO.OBJ_{NAME}", f"$JS.API.DIRECT.GET.{NAME}",
    f"$JS.API.DIRECT.GET.OBJ_{NAME}", f"$JS.API.STREAM.MSG.GET.{NAME}", f"$JS.API.STREAM.MSG.GET.OBJ_{NAME}",
    "$SYS.REQ.USER.INFO",
)  # fmt: skip
THIN = (*(name for name in READ if "DIRECT.GET.OBJ" not in name), f"gatebook.{NAME}", f"$O.{NAME}.C.>")
WRITE = (*READ, f"gatebook.{NAME}", f"gatebook.{NAME}.turn", f"$O.{NAME}.>", "$JS.API.STREAM.INFO.unmade")


class Nkey:
    """A key pair in NATS' own text forms; `kind` is the prefix letter: U user, A account, O operator."""

    def __init__(self, kind):
        prefix = {"U": 20, "A": 0, "O": 14}[kind] << 3
        self.key = Ed25519PrivateKey.generate()
        raw = self.key.private_bytes_raw()
        head = bytes([(18 << 3) | (prefix >> 5), (prefix & 31) << 3])
        self.seed = self._text(head + raw)
        self.public = self._text(bytes([prefix]) + self.key.public_key().public_bytes_raw())

    @staticmethod
    def _text(raw):
        return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def jwt(issuer, subject, kind, **more):
    def part(value):
        return base64.urlsafe_b64encode(value).decode().rstrip("=")

    claims = {
        "iat": int(time.time()),
        "iss": issuer.public,
        "name": kind,
        "sub": subject,
        "nats": {"type": kind, "version": 2, **more},
    }
    claims["jti"] = (
        base64.b32encode(hashlib.sha256(json.dumps(claims).encode()).digest()).decode().rstrip("=")
    )
    body = part(b'{"typ":"JWT","alg":"ed25519-nkey"}') + "." + part(json.dumps(claims).encode())
    return body + "." + part(issuer.key.sign(body.encode()))


def context(monkeypatch, tmp_path, **members):
    """A NATS context, chosen by $NATS_CONTEXT."""
    folder = tmp_path / "config" / "nats" / "context"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.json").write_text(json.dumps(members))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("NATS_CONTEXT", "mine")


def subjects(names):
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with an administrator, a writer, a reader, and an nkey user."""
    nkey = Nkey("U")
    inbox = f'subscribe: {{ allow: ["_INBOX.>", "gatebook.{NAME}.turn"] }}'
    users = [
        '{ user: admin, password: "a" }',
        f'{{ user: writer, password: "w", permissions: {{ publish: {{ allow: {subjects(WRITE)} }}, {inbox} }} }}',
        f'{{ user: reader, password: "r", permissions: {{ publish: {{ allow: {subjects(READ)} }}, {inbox} }} }}',
        f'{{ user: thin, password: "t", permissions: {{ publish: {{ allow: {subjects(THIN)} }} }} }}',
        f'{{ user: nosy, password: "n", permissions: {{ publish: {{ allow: {subjects((*READ, f"$O.{NAME}.>"))} }} }} }}',
        f"{{ nkey: {nkey.public} }}",
    ]
    accounts = f"accounts {{ A {{ jetstream: enabled, users: [{', '.join(users)}] }} }}"
    server = Server(tmp_path_factory.mktemp("guarded"), extra=accounts).start()
    server.nkey = nkey
    yield server
    server.kill()


@pytest.fixture
def url(guarded, home, monkeypatch, tmp_path):
    context(monkeypatch, tmp_path, user="admin", password="a")
    made = f"nats://{guarded.address}/{NAME}"
    create_fleet(made, ORIGIN, {})
    return made


class Site(BaseHTTPRequestHandler):
    """Something that speaks HTTP and is no monitoring port."""

    def do_GET(self):
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n<html>")

    def log_message(self, *_):
        pass


def levels(ledger):
    return {(each.name, each.level) for each in check_fleet(ledger)}


def test_who_may_make_no_consumer_reads_a_long_stream_all_the_same(url, monkeypatch, tmp_path, home):
    """The server says no to the consumer, and direct gets go on from there, without a wait."""
    ledger = open_fleet(url)
    while ledger.store.head().seq < WORTH_DELIVERING + PAGE + 1000:
        ledger.append([draft() for _ in range(1000)], ORIGIN)
    head = ledger.store.head()
    for user, delivered in (("reader", False), ("admin", True)):
        context(monkeypatch, tmp_path, user=user, password=user[0])
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / user))
        other = open_fleet(url)
        assert other.store.stream.delivers is delivered
        assert other.store.head().hash == head.hash
        other.close()
    ledger.close()


def test_a_writer_needs_no_administration_and_a_reader_cannot_write(url, monkeypatch, tmp_path, home):
    context(monkeypatch, tmp_path, user="writer", password="w")
    assert create_fleet(url, ORIGIN, {})["created"] is False
    with pytest.raises(Refused, match="an administrator makes the stream first"):
        create_fleet(f"nats://{url.split('/')[2]}/unmade", ORIGIN, {})
    ledger = open_fleet(url)
    (event,) = add(ledger, draft(content=b"words")).events
    assert ("permissions", "ok") in levels(ledger)
    assert ("permissions", "note") not in levels(ledger)
    ledger.close()
    context(monkeypatch, tmp_path, user="reader", password="r")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    ledger = open_fleet(url)
    assert whole(ledger.store)[-1].content == b"words"
    assert any("only read" in each.found for each in check_fleet(ledger))
    with pytest.raises(Refused, match="may not"):
        add(ledger, draft())
    ledger.store.follow()
    assert ledger.store.head().seq == event.seq
    ledger.close()


def test_the_accounts_that_the_page_shows_give_each_what_it_needs_and_no_more(tmp_path, home, monkeypatch):
    page = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "scale.md")
    with open(page, encoding="utf-8") as file:
        (accounts,) = re.findall(r"```conf\n(.*?)```", file.read(), re.DOTALL)
    server = Server(tmp_path / "s", extra=accounts.replace("…", "pw")).start()
    url = f"nats://{server.address}/team"
    context(monkeypatch, tmp_path, user="admin", password="pw")
    create_fleet(url, ORIGIN, {})
    found = {}
    for user in ("writer", "reader"):
        context(monkeypatch, tmp_path, user=user, password="pw")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / user))
        ledger = open_fleet(url)
        if user == "writer":
            add(ledger, draft(content=b"words"))
            add(ledger, draft())
        assert whole(ledger.store)[1].content == b"words"
        found[user] = [each.found for each in check_fleet(ledger) if each.name == "permissions"]
        ledger.close()
    assert found == {"writer": ["this user may write"], "reader": ["this user may only read"]}
    server.kill()


def test_doctor_says_who_may_administer_and_whether_servers_flush(url, guarded, monkeypatch, tmp_path):
    monkeypatch.setenv("GATEBOOK_NATS_MONITOR", f"http://127.0.0.1:{guarded.monitor}")
    ledger = open_fleet(url)
    found = {each.name: each for each in check_fleet(ledger)}
    assert "administer" in found["permissions"].found
    assert found["flushing"].level == "ok"
    assert found["replicas"].level == "note"
    assert found["stream"].level == "ok"
    # A closed port, one that speaks another protocol, another server's, a web site: this one is not seen.
    another = Server(tmp_path / "another", "n2").start()
    site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    for port in (9, guarded.port, another.monitor, site.server_port):
        monkeypatch.setenv("GATEBOOK_NATS_MONITOR", f"http://127.0.0.1:{port}")
        last = [each for each in check_fleet(ledger) if each.name == "flushing"][-1]
        assert last.level == "note"
        assert "not seen: n1" in last.found
        assert "not known" in last.found
    site.shutdown()
    site.server_close()
    another.kill()
    ledger.close()


def test_doctor_says_what_a_user_lacks_and_what_a_reader_has_too_much(url, monkeypatch, tmp_path, home):
    def permissions(user, password):
        context(monkeypatch, tmp_path, user=user, password=password)
        ledger = open_fleet(url)
        found = [(each.level, each.found) for each in check_fleet(ledger) if each.name == "permissions"]
        ledger.close()
        return found

    lacks = f"this user may not publish to $JS.API.DIRECT.GET.OBJ_{NAME}, $O.{NAME}.M.>"
    assert permissions("thin", "t") == [
        ("ok", "this user may write"),
        ("problem", lacks),
        ("note", f"this user may not publish and subscribe to gatebook.{NAME}.turn: under load it waits longer than others"),
    ]  # fmt: skip
    assert permissions("nosy", "n")[0] == ("ok", "this user may only read")
    assert "replace or erase contents" in permissions("nosy", "n")[1][1]
    for user in ("writer", "reader"):
        assert len(permissions(user, user[0])) == 1


@pytest.mark.parametrize(
    ("stream", "setting", "value", "finding"),
    [
        (NAME, "allow_msg_ttl", True, "stream"), (NAME, "max_msg_size", 900, "stream"), (NAME, "max_bytes", 10**6, "stream"),
        (f"OBJ_{NAME}", "max_age", 10**12, "contents"), (f"OBJ_{NAME}", "max_bytes", 10**6, "contents"),
        (f"OBJ_{NAME}", "allow_msg_ttl", True, "contents"),
    ],
)  # fmt: skip
def test_doctor_finds_each_setting_by_which_something_could_be_dropped(
    tmp_path, home, stream, setting, value, finding
):
    server = Server(tmp_path / "s").start()
    url = f"nats://{server.address}/{NAME}"
    create_fleet(url, ORIGIN, {})
    ledger = open_fleet(url)
    assert not {"stream", "contents"} & {each.name for each in check_fleet(ledger) if each.level != "ok"}
    config = Stream(ledger.store.link, stream).info()["config"] | {setting: value}
    answer = ledger.store.link.request(f"$JS.API.STREAM.UPDATE.{stream}", json.dumps(config).encode())
    assert b'"error"' not in answer.payload
    (found,) = [each for each in check_fleet(ledger) if each.level == "problem" and each.name == finding]
    assert setting in found.found
    ledger.close()
    server.kill()


@pytest.mark.parametrize(
    ("peers", "level", "word"),
    [
        ([{"current": True}, {"current": True}], "ok", "all current"),
        ([{"current": True}, {"current": False}], "note", "not current: n2"),
        ([{"current": False}, {"current": False}], "note", "not current: n1, n2"),
        ([{"current": True}, {"current": False, "offline": True}], "note", "not current: n2"),
        ([{"current": False, "offline": True}, {"current": False, "offline": True}], "problem", "no majority is left"),
    ],
)  # fmt: skip
def test_doctor_tells_servers_that_lag_from_a_majority_that_is_gone(peers, level, word):
    named = [{"name": f"n{number}", **peer} for number, peer in enumerate(peers, 1)]
    found = _replication("team", {"config": {"num_replicas": 3}, "cluster": {"replicas": named}})
    assert (found.name, found.level) == ("replicas", level)
    assert word in found.found


def test_doctor_finds_a_server_that_does_not_flush_and_a_stream_that_forgets(tmp_path, home, monkeypatch):
    server = Server(tmp_path / "s")
    config = open(server.config).read()
    with open(server.config, "w") as file:
        file.write(config.replace("sync_interval: always", 'sync_interval: "2m"'))
    server.start()
    url = f"nats://{server.address}/loose"
    from ledger.nats_client import Link

    link = Link([("127.0.0.1", server.port)], Login())
    link.request(
        "$JS.API.STREAM.CREATE.loose",
        b'{"name":"loose","subjects":["gatebook.loose"],"storage":"file","allow_direct":true,"max_age":86400000000000}',
    )
    create_fleet(url, ORIGIN, {})
    monkeypatch.setenv("GATEBOOK_NATS_MONITOR", f"http://127.0.0.1:{server.monitor}")
    ledger = open_fleet(url)
    found = {each.name: each for each in check_fleet(ledger)}
    assert "120 s" in found["flushing"].found
    assert found["flushing"].level == found["stream"].level == "problem"
    for setting in ("max_age", "deny_delete", "deny_purge", "discard", "allow_atomic"):
        assert setting in found["stream"].found
    ledger.close()
    server.kill()


def test_a_wrong_password_is_refused_and_is_not_in_the_message(url, monkeypatch, tmp_path):
    context(monkeypatch, tmp_path, user="writer", password="wrong-secret")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nothing-yet"))
    with pytest.raises(Refused, match="NATS_CONTEXT") as seen:
        open_fleet(url)
    assert "wrong-secret" not in str(seen.value)


def test_an_nkey_signs_the_servers_nonce(url, guarded, monkeypatch, tmp_path):
    seed = tmp_path / "user.nk"
    seed.write_text(guarded.nkey.seed + "\n")
    seed.chmod(0o644)
    context(monkeypatch, tmp_path, nkey=str(seed))
    ledger = open_fleet(url)
    add(ledger, draft())
    assert ("credentials", "problem") in levels(ledger)
    seed.chmod(0o600)
    assert ("credentials", "problem") not in levels(ledger)
    ledger.close()


def test_a_creds_file_of_an_operators_account_works(tmp_path, home, monkeypatch):
    operator, account, system, user = Nkey("O"), Nkey("A"), Nkey("A"), Nkey("U")
    unlimited = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True, "conn": -1,
                 "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}  # fmt: skip
    own = jwt(
        operator, account.public, "account", limits=unlimited, default_permissions={"pub": {}, "sub": {}}
    )
    extra = (
        f"operator: {jwt(operator, operator.public, 'operator', system_account=system.public)}\n"
        f"system_account: {system.public}\nresolver: MEMORY\nresolver_preload {{ {account.public}: {own}, "
        f"{system.public}: {jwt(operator, system.public, 'account', limits={**unlimited, 'mem_storage': 0, 'disk_storage': 0})} }}\n"
    )
    server = Server(tmp_path / "s", extra=extra).start()
    token = jwt(account, user.public, "user", pub={}, sub={}, subs=-1, data=-1, payload=-1)
    creds = tmp_path / "user.creds"
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    url = f"nats://{server.address}/{NAME}"
    with pytest.raises(Refused):
        create_fleet(url, ORIGIN, {})
    monkeypatch.setenv("NATS_CREDS", str(creds))
    assert create_fleet(url, ORIGIN, {})["created"]
    ledger = open_fleet(url)
    add(ledger, draft())
    ledger.close()
    server.kill()


def certificate(tmp_path, name, issuer=None):
    """(path of certificate, path of key, (certificate, key)) for loopback, signed by `issuer` or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime(2026, 1, 1)
    built = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now).not_valid_after(now + dt.timedelta(days=36500))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        # Python 3.13 asks for these (VERIFY_X509_STRICT).
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key((issuer[1] if issuer else key).public_key()), critical=False)
        .add_extension(x509.KeyUsage(True, False, False, False, False, issuer is None, issuer is None, False, False), critical=True)
        .sign(issuer[1] if issuer else key, hashes.SHA256())
    )  # fmt: skip
    paths = (tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
    paths[0].write_bytes(built.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return str(paths[0]), str(paths[1]), (built, key)


def test_tls_is_used_and_checked(tmp_path, home, monkeypatch):
    ca, _, issuer = certificate(tmp_path, "ca")
    cert, key, _ = certificate(tmp_path, "server", issuer)
    client, client_key, _ = certificate(tmp_path, "client", issuer)
    other, _, _ = certificate(tmp_path, "other")
    tls = f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{ca}", verify: true }}'
    server = Server(tmp_path / "s", extra=tls).start()
    url = f"nats://{server.address}/{NAME}"
    for members in ({}, {"ca": other, "cert": client, "key": client_key}, {"ca": ca}):
        context(monkeypatch, tmp_path, **members)
        with pytest.raises(Refused):
            create_fleet(url, ORIGIN, {})
    context(monkeypatch, tmp_path, ca=ca, cert=client, key=client_key)
    assert create_fleet(url, ORIGIN, {})["created"]
    server.kill()
    plain = Server(tmp_path / "p").start()
    with pytest.raises(Refused, match="offers none"):
        create_fleet(f"nats://{plain.address}/{NAME}", ORIGIN, {})
    plain.kill()


def test_a_server_that_does_not_take_us_is_passed_over_for_one_that_does(tmp_path, home, monkeypatch):
    """One node's certificate is another's: the cluster's other nodes still serve; alone it is a refusal."""
    ca, _, issuer = certificate(tmp_path, "ca")
    cert, key, _ = certificate(tmp_path, "server", issuer)
    false, false_key, _ = certificate(tmp_path, "other")
    bad = Server(tmp_path / "b", extra=f'tls {{ cert_file: "{false}", key_file: "{false_key}" }}').start()
    good = Server(tmp_path / "g", extra=f'tls {{ cert_file: "{cert}", key_file: "{key}" }}').start()
    context(monkeypatch, tmp_path, ca=ca)
    with pytest.raises(Refused, match="TLS failed"):
        create_fleet(f"nats://{bad.address}/{NAME}", ORIGIN, {})
    assert create_fleet(f"nats://{bad.address},{good.address}/{NAME}", ORIGIN, {})["created"]
    bad.kill()
    good.kill()


def test_a_server_that_wants_tls_first_is_hinted_at(tmp_path, home, monkeypatch):
    ca, _, issuer = certificate(tmp_path, "ca")
    cert, key, _ = certificate(tmp_path, "server", issuer)
    tls = f'tls {{ cert_file: "{cert}", key_file: "{key}", handshake_first: true }}'
    server = Server(tmp_path / "s", extra=tls).start()
    url = f"nats://{server.address}/{NAME}"
    context(monkeypatch, tmp_path, ca=ca)
    with pytest.raises(Unavailable, match="tls_first"):
        create_fleet(url, ORIGIN, {})
    context(monkeypatch, tmp_path, ca=ca, tls_first=True)
    assert create_fleet(url, ORIGIN, {})["created"]
    server.kill()


def test_the_selected_context_is_used_only_for_its_own_servers(tmp_path, monkeypatch):
    folder = tmp_path / "config" / "nats"
    (folder / "context").mkdir(parents=True)
    (folder / "context" / "prod.json").write_text(
        '{"url":"nats://a.example:4222,nats://b.example:4222","token":"t"}'
    )
    (folder / "context.txt").write_text("prod")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    assert find_login([("b.example", 4222)]).answer("") == {"auth_token": "t"}
    assert find_login([("evil.example", 4222)]).answer("") == {}


@pytest.mark.parametrize("held", [None, "{", '["a"]'])
def test_a_selected_context_that_cannot_be_read_is_said_and_blocks_no_server(
    held, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    (tmp_path / "nats" / "context.txt").write_text("gone")
    if held:
        (folder / "gone.json").write_text(held)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    assert find_login([("a", 1)]).answer("") == {}
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "gone.json" in said
    assert "is not used" in said


@pytest.mark.parametrize("name", ["none", "../x", ".x", ""])
def test_a_context_that_is_not_there_is_said(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("NATS_CONTEXT", name)
    if name:
        with pytest.raises(Usage):
            find_login([("a", 1)])
    else:
        assert find_login([("a", 1)]).answer("") == {}


def test_a_creds_file_that_is_not_there_is_said_with_where_it_was_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("NATS_CREDS", "/no/such/file")
    with pytest.raises(Usage, match=r"NATS login: /no/such/file: No such file .*\$NATS_CREDS"):
        find_login([("a", 1)]).answer("")


def test_what_is_not_supported_is_refused_not_ignored():
    with pytest.raises(Usage, match="jetstream_domain"):
        Login({"jetstream_domain": "hub"})


def test_a_seed_is_checked_before_it_is_used():
    good = Nkey("U")
    assert sign_nonce(good.seed, "n")[1] == good.public
    for bad in (good.seed[:-1], "SU" + good.seed[2:][::-1], Nkey("A").seed, "", "ü"):
        with pytest.raises(Invalid) as seen:
            sign_nonce(bad, "n")
        assert not bad or bad not in str(seen.value)


def test_what_is_no_nats_server_is_said(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as fake:

        def serve():
            for reply in (b"HTTP/1.1 400 Bad\r\n\r\n", b"\x00" * 70_000, b""):
                one, _ = fake.accept()
                one.sendall(reply)
                one.close()

        threading.Thread(target=serve, daemon=True).start()
        for _ in range(3):
            with pytest.raises(GatebookError):
                Connection("127.0.0.1", fake.getsockname()[1], Login())


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("2.11.11", True), ("2.9", True), ("1.4.1", True), ("0.0.0", True), ("2.12.0", False), ("2.12.0-RC.1", False), ("2.100.1", False),
        ("3.0.0", False), ("", False), ("v2.11", False), ("2", False), ("²." + "9" * 5000, False), ("9" * 5000 + ".1", False), ("-1.2", False),
    ],
)  # fmt: skip
def test_a_server_that_would_store_a_batch_in_pieces_is_too_old(version, old):
    """It ignores what makes a batch one; what is no version of nats-server's is left to do what it can."""
    with socket.create_server(("127.0.0.1", 0)) as fake:

        def serve():
            one, _ = fake.accept()
            with one:
                one.sendall(b"INFO " + json.dumps({"version": version, "headers": True}).encode() + b"\r\n")
                one.recv(4096)
                one.sendall(b"PONG\r\n")

        threading.Thread(target=serve, daemon=True).start()
        if old:
            with pytest.raises(Unavailable, match=f"nats-server {version} is too old"):
                Connection("127.0.0.1", fake.getsockname()[1], Login())
        else:
            Connection("127.0.0.1", fake.getsockname()[1], Login()).close()


@pytest.mark.parametrize(
    ("pattern", "subject", "covers"),
    [
        (">", "a.b", True), ("a.>", "a", False), ("a.>", "a.b.c", True), ("a.*", "a.b", True), ("a.*", "a.b.c", False),
        ("*.b", "a.b", True), ("a.b", "a.b", True), ("a.b", "a", False), ("$JS.API.STREAM.*.x", "$JS.API.STREAM.UPDATE.x", True),
    ],
)  # fmt: skip
def test_subject_patterns_cover_as_the_server_says(pattern, subject, covers):
    assert subject_matches(pattern, subject) is covers


def test_os_environ_is_left_alone():
    assert "NATS_CREDS" not in os.environ


def test_a_writer_who_may_not_delete_messages_erases_and_says_what_stays(
    url, monkeypatch, tmp_path, home, capfd
):
    context(monkeypatch, tmp_path, user="writer", password="w")
    ledger = open_fleet(url)
    (event,) = add(ledger, draft(content=b"words to forget")).events
    capfd.readouterr()
    ledger.store.objects.erase([event.content_digest])
    assert "the servers' files keep the erased bytes" in capfd.readouterr().err
    assert ledger.store.objects.get([event.content_digest]) == {}
    ledger.close()
