"""`route …` as a caller sees it: the file, the ledger behind it, times, refusals, many callers at once."""

from __future__ import annotations

import json
import os
import stat

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from program import call, finish, start

from commands.dispatch.healthfile import render
from ledger.access import open_ledger
from projections.cooldowns import Circuit
from projections.times import parse_time, print_time

RUBRIC = """
models:
  - {name: a, effort: high, provider: p1, taste: 10}
  - {name: b, effort: high, provider: p2, via: codex, taste: 9}
  - {name: c, effort: low, provider: p3, via: other, taste: 9}
routing: {orchestrator: b@high, default: a@high, taste: b@high, independent: a@high, taste_min: 9}
fallbacks: {default: [b@high, c@low]}
"""
NOON = "2026-08-25T12:00:00Z"


def at(seconds, base=NOON):
    return print_time(parse_time(base) + seconds * 1_000_000)


@pytest.fixture
def here(tmp_path, home, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rubric.yaml").write_text(RUBRIC, encoding="utf-8")
    return tmp_path


def fail(*more, reason="rate_limit", provider="p1", executor="native"):
    return call(
        "route", "record-failure", "--provider", provider, "--executor", executor, "--reason", reason, *more
    )


def succeed(*more, provider="p1", executor="native"):
    return call("route", "record-success", "--provider", provider, "--executor", executor, *more)


def choose(*more, route="default", executors="codex,other"):
    return call(
        "route",
        "select",
        "--rubric",
        "rubric.yaml",
        "--route",
        route,
        "--native-provider",
        "p1",
        "--executors",
        executors,
        *more,
    )


def circuit(reason="quota", count=1, failed=NOON, until="2026-08-26T12:00:00Z", probe=None):
    return {
        "state": "open", "reason": reason, "failure_count": count, "last_failure_at": failed, "unavailable_until": until,
        "probe_claimed_at": probe,
    }  # fmt: skip


def view(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def recorded(folder):
    ledger = open_ledger(str(folder))
    found = [(event.type, event.stream, json.loads(event.data)) for event in ledger.store.read(2)]
    ledger.close()
    return found


# -- the file and the ledger behind it


def test_a_select_alone_creates_neither_file_nor_ledger(here, home):
    assert choose().json()["candidate"] == "a@high"
    assert not (home / "state" / "gatebook" / "provider-health.json").exists()
    choose("--state", "s.json").json()
    succeed("--state", "s.json").json()
    assert sorted(os.listdir(here)) == ["home", "rubric.yaml"]


def test_a_failure_creates_both_privately(here):
    assert fail("--state", "sub/s.json", "--now", NOON).json() == {
        "status": "recorded", "provider": "p1", "executor": "native", "reason": "rate_limit", "failure_count": 1,
        "unavailable_until": at(900),
    }  # fmt: skip
    path = here / "sub" / "s.json"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(f"{path}.gatebook").st_mode) == 0o700
    assert view(path) == {"version": 1, "circuits": {"p1|native": circuit("rate_limit", 1, NOON, at(900))}}
    ((name, stream, data),) = recorded(f"{path}.gatebook")
    assert (name, stream) == ("circuit.opened", "circuit/p1|native")
    assert data["at_given"] is True


def test_the_default_file_belongs_to_the_user_whatever_the_project_is(here, home, monkeypatch):
    call("init").json()
    monkeypatch.setenv("GATEBOOK_LEDGER", str(here / ".gatebook"))
    fail().json()
    assert (home / "state" / "gatebook" / "provider-health.json").exists()
    assert recorded(here / ".gatebook") == []
    ((_, _, data),) = recorded(home / "state" / "gatebook" / "provider-health.json.gatebook")
    assert "at_given" not in data
    fail("--state", "s.json", provider="p2", executor="codex").json()
    assert list(view("s.json")["circuits"]) == ["p2|codex"]


def test_a_named_ledger_holds_the_circuits_and_the_file_is_its_view(here):
    call("init").json()
    call(
        "--ledger",
        ".gatebook",
        "route",
        "record-failure",
        "--provider",
        "p1",
        "--executor",
        "native",
        "--reason",
        "quota",
        "--state",
        "s.json",
    ).json()
    assert [name for name, *_ in recorded(here / ".gatebook")] == ["circuit.opened"]
    assert not os.path.exists("s.json.gatebook")
    assert list(view("s.json")["circuits"]) == ["p1|native"]


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"null", b"[]", b"{}", b'"x"', b"\xff", b"\xef\xbb\xbf" + b'{"version":1,"circuits":{}}', b'{"version":1}', b'{"circuits":{}}', b'{"version":2,"circuits":{}}',
        b'{"version":"1","circuits":{}}', b'{"version":true,"circuits":{}}', b'{"version":1.0,"circuits":{}}', b'{"version":1,"circuits":[]}', b'{"version":1,"circuits":{},"x":1}', b'{"version":1,"version":1,"circuits":{}}',
        b'{"version":1,"circuits":{}} x', b'{"version":1,"circuits":{"p1|native":null}}', b'{"version":1,"circuits":{"p1|native":[]}}', b'{"version":1,"circuits":{"p1":{}}}', b"[" * 100_000, b'{"version":1,"circuits":{"p":' * 50_000,
        *[json.dumps({"version": 1, "circuits": {"p1|native": {**circuit(), **change}}}).encode() for change in (
            {"state": "closed"}, {"state": None}, {"state": ["open"]}, {"state": {}}, {"reason": "other"}, {"reason": None}, {"reason": ["quota"]}, {"reason": {"quota": 1}}, {"failure_count": 0}, {"failure_count": -1}, {"failure_count": "1"}, {"failure_count": True}, {"failure_count": 1.5}, {"failure_count": 2**53}, {"failure_count": 2**64}, {"failure_count": []}, {"last_failure_at": "2026-08-25T12:00:00"}, {"last_failure_at": 5}, {"last_failure_at": None}, {"unavailable_until": "soon"}, {"unavailable_until": {}}, {"probe_claimed_at": "x"}, {"probe_claimed_at": 0}, {"probe_claimed_at": False}, {"extra": 1},
        )],
        *[json.dumps({"version": 1, "circuits": {key: circuit()}}).encode() for key in ("p1", "|", "p1|", "|native", "a|b|c", "", " |x", "p\u0000|x", "e\u0301|x", "p" * 97 + "|x")],
        json.dumps({"version": 1, "circuits": {"p1|native": {k: v for k, v in circuit().items() if k != "reason"}}}).encode(),
        b'{"version":1,"circuits":{"p1|native":' + json.dumps(circuit()).encode().replace(b'"failure_count": 1', b'"failure_count": NaN') + b"}}",
        b'{"version":1,"circuits":{"p1|native":' + json.dumps(circuit()).encode().replace(b'"failure_count": 1', b'"failure_count": ' + b"1" * 4301) + b"}}",
        b'{"version":1,"circuits":{"p|e":{},"p|e":{}}}',
    ],
    ids=lambda raw: repr(raw[:40]) + str(len(raw)),
)  # fmt: skip
@pytest.mark.parametrize("known", [False, True])
def test_a_malformed_file_blocks_every_command_and_is_left_byte_for_byte(here, raw, known):
    if known:
        fail("--state", "s.json", reason="quota").json()
    (here / "s.json").write_bytes(raw)
    before = recorded(here / "s.json.gatebook") if known else None
    for done in (
        fail("--state", "s.json"),
        succeed("--state", "s.json"),
        choose("--state", "s.json"),
        call("route", "reset", "--state", "s.json"),
    ):
        assert done.code == 4
        reply = done.json()
        assert reply["status"] == "blocked"
        assert "left as it is" in reply["blockers"][0]
        assert len(reply["blockers"][0]) < 500
        assert done.err == ""
    assert (here / "s.json").read_bytes() == raw
    assert known == os.path.exists("s.json.gatebook")
    if known:
        assert recorded(here / "s.json.gatebook") == before


@pytest.mark.parametrize("what", ["directory", "fifo", "device", "dangling link", "huge"])
def test_what_is_no_regular_file_blocks_without_waiting(here, what):
    path = here / "s.json"
    if what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "device":
        path = "/dev/zero"
    elif what == "huge":
        path.write_bytes(b" " * (5 * 1024 * 1024))
    else:
        path.symlink_to(here / "nowhere" / "at" / "all")
    for done in (fail("--state", str(path)), choose("--state", str(path))):
        if what == "dangling link":
            continue  # a place where the file would be
        assert done.code == 4, done.out
        assert done.json()["status"] == "blocked"


@pytest.mark.parametrize("path", ["rubric.yaml/s.json", "/proc/none/s.json", "/dev/null/s.json"])
def test_a_place_where_no_file_can_be_blocks(here, path):
    done = fail("--state", path)
    assert done.code == 4
    assert done.json()["status"] == "blocked"


def test_a_valid_file_of_another_tool_is_adopted(here):
    """Fractions, offsets and its own layout are no difference; what it says is imported with its digest."""
    foreign = {
        "version": 1,
        "circuits": {
            "p1|native": circuit(failed="2026-08-25T14:00:00.25+02:00", until="2026-08-26T12:00:00.75Z"),
            "p2|codex": circuit("rate_limit", 3),
        },
    }
    raw = json.dumps(foreign, indent=4).encode()
    (here / "s.json").write_bytes(raw)
    reply = choose("--state", "s.json", "--now", at(3600)).json()
    assert (reply["candidate"], reply["reason"], reply["skipped"]) == ("c@low", "quota", ["a@high", "b@high"])
    from blake3 import blake3

    events = recorded(here / "s.json.gatebook")
    assert [(name, stream) for name, stream, _ in events] == [
        ("circuit.imported", "circuit/p1|native"),
        ("circuit.imported", "circuit/p2|codex"),
    ]
    assert {data["file_digest"] for _, _, data in events} == {blake3(raw).hexdigest()}
    assert events[0][2]["circuit"]["unavailable_until"] == "2026-08-26T12:00:00Z"
    assert (
        fail("--state", "s.json", "--now", at(3600), provider="p2", executor="codex").json()["failure_count"]
        == 4
    )
    assert len(recorded(here / "s.json.gatebook")) == 3


def test_a_file_that_says_the_same_in_another_layout_is_left_to_its_owner_by_a_select(here):
    fail("--state", "s.json", reason="quota").json()
    pretty = json.dumps(view("s.json"), indent=2).encode()
    (here / "s.json").write_bytes(pretty)
    choose("--state", "s.json").json()
    assert (here / "s.json").read_bytes() == pretty
    assert len(recorded(here / "s.json.gatebook")) == 1


def test_over_an_existing_log_only_what_differs_is_imported(here):
    fail("--state", "s.json", "--now", NOON, reason="quota").json()
    fail("--state", "s.json", "--now", NOON, reason="quota", provider="p2", executor="codex").json()
    changed = view("s.json")
    del changed["circuits"]["p1|native"]
    changed["circuits"]["p3|other"] = circuit("authentication")
    (here / "s.json").write_text(json.dumps(changed), encoding="utf-8")
    reply = choose("--state", "s.json", "--now", at(60)).json()
    assert reply["candidate"] == "a@high"
    assert "probe" not in reply
    imports = [
        (stream, "circuit" in data)
        for name, stream, data in recorded(here / "s.json.gatebook")
        if name == "circuit.imported"
    ]
    assert imports == [("circuit/p1|native", False), ("circuit/p3|other", True)]
    assert view("s.json") == changed


def test_a_lagging_file_is_repaired_and_nothing_imported(here):
    fail("--state", "s.json", "--now", NOON).json()
    old = (here / "s.json").read_bytes()
    fail("--state", "s.json", "--now", at(60)).json()
    new = (here / "s.json").read_bytes()
    for command in (
        lambda: choose("--state", "s.json", "--now", at(120)),
        lambda: succeed("--state", "s.json", "--now", at(120), provider="other"),
    ):
        (here / "s.json").write_bytes(old)
        command().json()
        assert (here / "s.json").read_bytes() == new
    (here / "s.json").write_bytes(old)
    assert fail("--state", "s.json", "--now", at(180)).json()["failure_count"] == 3
    assert {name for name, *_ in recorded(here / "s.json.gatebook")} == {"circuit.opened"}


def test_a_missing_file_is_rendered_again_by_the_next_command(here):
    """Deleting the file forgets nothing; `route reset` does."""
    fail("--state", "s.json", "--now", NOON, reason="quota").json()
    before = (here / "s.json").read_bytes()
    for command in (
        lambda: choose("--state", "s.json", "--now", at(60)),
        lambda: succeed("--state", "s.json", "--now", at(60), provider="other"),
    ):
        os.unlink("s.json")
        command().json()
        assert (here / "s.json").read_bytes() == before
    assert choose("--state", "s.json", "--now", at(60)).json()["reason"] == "quota"
    assert call("route", "reset", "--state", "s.json", "--now", at(60)).json() == {
        "status": "reset",
        "circuits": 1,
    }
    assert view("s.json") == {"version": 1, "circuits": {}}
    assert choose("--state", "s.json", "--now", at(60)).json()["candidate"] == "a@high"


def test_a_blocked_select_adopts_and_repairs_the_file_all_the_same(here):
    everywhere = {"p1|native": circuit(), "p2|codex": circuit(), "p3|other": circuit()}
    (here / "s.json").write_text(json.dumps({"version": 1, "circuits": everywhere}), encoding="utf-8")
    assert choose("--state", "s.json", "--now", at(60)).code == 4
    assert len(recorded(here / "s.json.gatebook")) == 3
    os.unlink("s.json")
    assert choose("--state", "s.json", "--now", at(60)).code == 4
    assert view("s.json")["circuits"] == everywhere


def test_without_a_native_provider_nothing_runs_natively(here):
    """As the script took it: `--native-provider ""` where no provider is the caller's own."""
    reply = call(
        "route", "select", "--rubric", "rubric.yaml", "--route", "default", "--native-provider", "", "--executors", "codex"
    ).json()  # fmt: skip
    assert (reply["candidate"], reply["reason"], reply["skipped"]) == (
        "b@high",
        "missing_executor",
        ["a@high"],
    )


def test_a_retry_time_left_empty_is_no_retry_time(here):
    """A shell caller passes what it has: `--retry-at "$RETRY_AT"`."""
    assert fail("--state", "s.json", "--now", NOON, "--retry-at", "").json()["unavailable_until"] == at(900)


def test_an_authoring_provider_among_the_independent_blocks_every_route(here):
    """As the script did: the inventory says who wrote the target, and the rubric does not suit it."""
    done = choose("--authoring-providers", "p1")
    assert done.code == 4
    assert "authoring provider p1" in done.json()["blockers"][0]


def test_a_file_that_cannot_be_written_is_said_and_the_record_stands(here, monkeypatch):
    """F102: the event first, then the file."""
    from ledger import files

    def refuse(*_args, **_more):
        raise OSError(28, "No space left on device")

    fail("--state", "s.json", "--now", NOON).json()
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", refuse)
        done = fail("--state", "s.json", "--now", at(1))
    assert done.code == 0
    assert "the view lags" in done.err
    assert choose("--state", "s.json", "--now", at(2)).json()["reason"] == "rate_limit"
    assert view("s.json")["circuits"]["p1|native"]["failure_count"] == 2


def test_a_linked_state_file_stays_a_link(here):
    (here / "real").mkdir()
    (here / "s.json").symlink_to(here / "real" / "s.json")
    fail("--state", "s.json").json()
    assert (here / "s.json").is_symlink()
    assert list(view(here / "real" / "s.json")["circuits"]) == ["p1|native"]
    assert (here / "real" / "s.json.gatebook").is_dir()


def test_no_raw_text_of_a_provider_can_get_in(here):
    """F94: names and typed reasons only; bad ones are refused before any file is read."""
    for words in (
        ("--reason", "HTTP 500 upstream said: boom"),
        ("--reason", "missing_executor"),
        ("--reason", ""),
    ):
        done = call(
            "route", "record-failure", "--provider", "p1", "--executor", "native", *words, "--state", "s.json"
        )
        assert done.code == 2
        assert done.json()["status"] == "error"
    assert [name for name in os.listdir(here) if name.startswith("s.json")] == []


SECRET = "ghp_" + "a" * 36


def test_a_credential_gets_in_by_no_name(here):
    """F94: what is refused names the field, not the value, and nothing is made."""
    dones = [fail("--state", "s.json", provider=SECRET), succeed("--state", "s.json", executor=SECRET)]
    assert [done.code for done in dones] == [2, 2]
    (here / "t.json").write_text(
        json.dumps({"version": 1, "circuits": {f"p|{SECRET}": circuit()}}), encoding="utf-8"
    )
    dones.append(choose("--state", "t.json"))
    (here / "rubric.yaml").write_text(RUBRIC.replace("name: a,", f"name: {SECRET},"), encoding="utf-8")
    dones.append(choose("--state", "s.json"))
    assert [done.code for done in dones[2:]] == [4, 4]
    for done in dones:
        assert "carries what looks like a credential" in done.json()["blockers"][0]
        assert SECRET not in done.out + done.err
    assert sorted(os.listdir(here)) == ["home", "rubric.yaml", "t.json"]


@pytest.mark.parametrize(
    "words",
    [
        ["record-failure"], ["record-failure", "--provider", "p"], ["record-failure", "--provider", "", "--executor", "e", "--reason", "quota"], ["record-failure", "--provider", "a|b", "--executor", "e", "--reason", "quota"],
        ["record-failure", "--provider", "p", "--executor", "e", "--reason", "rate_limit", "--retry-at", "2026-08-25T12:00:00Z"], ["record-failure", "--provider", "p", "--executor", "e", "--reason", "quota", "--retry-at", "2026-08-25T12:00:00"],
        ["record-failure", "--provider", "p", "--executor", "e", "--reason", "quota", "--now", "yesterday"], ["record-failure", "--provider", "p" * 97, "--executor", "e", "--reason", "quota"], ["record-failure", "--provider", "e\u0301", "--executor", "e", "--reason", "quota"],
        ["record-failure", "--provider", "p", "--executor", "e", "--reason", "quota", "--state", ""], ["record-failure", "--provider", os.fsdecode(b"\xff"), "--executor", "e", "--reason", "quota"],
        ["record-success", "--provider", "p"], ["record-success", "--provider", "p", "--executor", "e", "--reason", "quota"], ["select"], ["select", "--rubric", "missing.yaml", "--route", "default", "--native-provider", "p1"],
        ["select", "--rubric", "missing.yaml", "--route", "default", "--native-provider", "p1", "--executors", '{"a":1}'],
        ["select", "--rubric", "missing.yaml", "--route", "default", "--native-provider", "p1", "--executors", "[1]"], ["select", "--rubric", "missing.yaml", "--route", "default", "--native-provider", "p1", "--executors", "[", "--state", "s.json"],
        ["select", "--rubric", "missing.yaml", "--route", "default", "--native-provider", "p1", "--executors", "", "--attempted", "a"], ["select", "--rubric", "missing.yaml", "--route", "default", "--native-provider", "p1", "--executors", "", "--now", "2026-08-25"],
        ["select", "--rubric", "missing.yaml", "--route", "default", "--native-provider", "p1", "--executors", "", "--state", ""],
        ["validate", "--rubric", "missing.yaml", "--native-provider", "p1", "--executors", "codex", "--authoring-providers", '[""]'],
        ["validate", "--rubric", "missing.yaml", "--native-provider", "p1"], ["validate", "--rubric", "missing.yaml", "--native-provider", "p1", "--executors", "null"], ["select", "--nope"],
    ],
)  # fmt: skip
def test_bad_arguments_are_found_before_any_file_is_read(here, words):
    """Exit 2, JSON on stdout; the rubric that is not there is not even looked for."""
    (here / "s.json").write_text("malformed")
    done = call("route", *words)
    assert done.code == 2, done.out
    reply = done.json()
    assert reply["status"] == "error"
    assert len(reply["blockers"]) == 1
    assert "missing.yaml" not in reply["blockers"][0]


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"models: []", b"\xff", b"models: *x", b"a: &a [*a]", b"x" * 10_000_000]
)
def test_a_hostile_rubric_blocks_and_claims_no_probe(here, raw):
    fail("--state", "s.json", "--now", NOON).json()
    (here / "rubric.yaml").write_bytes(raw)
    before = (here / "s.json").read_bytes()
    done = choose("--state", "s.json", "--now", at(7200))
    assert done.code == 4
    assert done.json()["status"] == "blocked"
    assert (here / "s.json").read_bytes() == before
    assert len(recorded(here / "s.json.gatebook")) == 1


# -- times


@pytest.mark.parametrize(
    ("reason", "retry", "seconds"),
    [
        ("quota", None, 86_400), ("authentication", None, 86_400), ("rate_limit", None, 900), ("provider_unavailable", None, 900),
        ("quota", at(60), 60), ("quota", "2026-08-25T16:30:00+04:00", 1800), ("quota", NOON, 86_400), ("quota", at(-60), 86_400), ("quota", at(40 * 86_400), 40 * 86_400),
    ],
)  # fmt: skip
def test_the_edges_of_a_cooldown_are_exact_to_the_second(here, reason, retry, seconds):
    more = ("--retry-at", retry) if retry else ()
    assert fail("--state", "s.json", "--now", NOON, *more, reason=reason).json()["unavailable_until"] == at(
        seconds
    )
    assert choose("--state", "s.json", "--now", at(seconds - 1)).json()["reason"] == reason
    first = choose("--state", "s.json", "--now", at(seconds)).json()
    assert (first["candidate"], first["probe"]) == ("a@high", True)
    assert choose("--state", "s.json", "--now", at(seconds + 899)).json()["candidate"] == "b@high"
    assert choose("--state", "s.json", "--now", at(seconds + 900)).json()["probe"] is True


@pytest.mark.parametrize(
    ("now", "retry", "until"),
    [
        (
            NOON,
            "2026-08-25T12:00:00.5Z",
            at(86_400),
        ),  # in this same second: nothing that whole seconds can wait for
        (NOON, "2026-08-25T12:01:00.999999Z", at(60)),
        ("2026-08-25T12:00:00.9Z", "2026-08-25T12:00:01.1Z", at(1)),
        ("1969-12-31T23:59:00Z", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
    ],
)
def test_a_retry_time_is_taken_in_whole_seconds_by_who_records_and_by_who_admits(here, now, retry, until):
    done = fail("--state", "s.json", "--now", now, "--retry-at", retry, reason="quota")
    assert (done.code, done.json()["unavailable_until"]) == (0, until)


def test_times_with_offsets_and_odd_forms_mean_the_same_moment(here):
    """F92"""
    for n, form in enumerate(
        [
            "2026-08-25T12:00:00Z",
            "2026-08-25t12:00:00z",
            "2026-08-25 12:00:00Z",
            "2026-08-25T14:00:00+02:00",
            "2026-08-24T22:30:00-13:30",
            "2026-08-25T12:00:00.999999Z",
            "20260825T120000Z",
            "2026-08-25T12:00Z",
        ]
    ):
        assert fail("--state", f"s{n}.json", "--now", form).json()["unavailable_until"] == at(900), form
    assert (
        fail("--state", "leap.json", "--now", "2016-12-31T23:59:60Z").json()["unavailable_until"]
        == "2017-01-01T00:15:00Z"
    )


def test_failures_count_by_reason_and_start_again_with_another(here):
    steps = [
        ("rate_limit", 900),
        ("rate_limit", 3600),
        ("rate_limit", 21_600),
        ("rate_limit", 86_400),
        ("rate_limit", 86_400),
        ("provider_unavailable", 900),
        ("quota", 86_400),
        ("quota", 86_400),
        ("rate_limit", 900),
    ]
    counts = []
    for n, (reason, seconds) in enumerate(steps):
        reply = fail("--state", "s.json", "--now", at(n), reason=reason).json()
        assert reply["unavailable_until"] == at(n + seconds)
        counts.append(reply["failure_count"])
    assert counts == [1, 2, 3, 4, 5, 1, 1, 2, 1]
    succeed("--state", "s.json", "--now", at(20)).json()
    assert fail("--state", "s.json", "--now", at(21)).json()["failure_count"] == 1


def test_a_failed_probe_reopens_with_the_next_step(here):
    fail("--state", "s.json", "--now", NOON).json()
    assert choose("--state", "s.json", "--now", at(900)).json()["probe"] is True
    reply = fail("--state", "s.json", "--now", at(910)).json()
    assert (reply["failure_count"], reply["unavailable_until"]) == (2, at(910 + 3600))
    assert view("s.json")["circuits"]["p1|native"]["probe_claimed_at"] is None


def test_a_clock_that_runs_back_or_jumps_hands_out_no_second_probe(here):
    """F75, F90: `at` may lie in the past; the order is the log's."""
    fail("--state", "s.json", "--now", NOON).json()
    assert choose("--state", "s.json", "--now", at(900)).json()["probe"] is True
    for when in (at(899), at(-86_400), "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z"):
        assert choose("--state", "s.json", "--now", when).json()["candidate"] == "b@high"
    assert choose("--state", "s.json", "--now", "9999-12-31T23:59:59Z").json()["probe"] is True
    assert (
        fail("--state", "s.json", "--now", "9999-12-31T23:59:59Z").json()["unavailable_until"]
        == "9999-12-31T23:59:59Z"
    )


def test_failures_years_old_are_one_probe_and_go_on_counting(here):
    """F74"""
    for n in range(4):
        fail("--state", "s.json", "--now", at(n)).json()
    years = at(5 * 366 * 86_400)
    assert choose("--state", "s.json", "--now", years).json()["probe"] is True
    reply = fail("--state", "s.json", "--now", years).json()
    assert reply["failure_count"] == 5


def test_an_event_says_when_its_time_was_given(here):
    fail("--state", "s.json").json()
    fail("--state", "s.json", "--now", NOON).json()
    now, given = recorded(here / "s.json.gatebook")
    assert "at_given" not in now[2]
    assert given[2]["at_given"] is True
    assert given[2]["at"] == NOON


# -- lists, active and attempted candidates


def test_an_attempted_candidate_needs_its_recorded_failure(here):
    done = choose("--state", "s.json", "--attempted", "a@high", "--now", NOON)
    assert done.code == 4
    assert "no recorded availability failure" in done.json()["blockers"][0]
    fail("--state", "s.json", "--now", NOON).json()
    reply = choose("--state", "s.json", "--attempted", '["a@high"]', "--now", at(7200)).json()
    assert (reply["candidate"], reply["reason"], reply["resolution"]) == ("b@high", "rate_limit", "fallback")
    assert "probe" not in reply  # an attempted candidate is not probed
    exhausted = choose("--state", "s.json", "--attempted", "a@high", "--now", at(7200), executors="")
    assert exhausted.code == 4
    assert exhausted.json() == {
        "status": "blocked", "blockers": exhausted.json()["blockers"], "attempted": ["a@high"], "skipped": ["a@high", "b@high", "c@low"],
    }  # fmt: skip


def test_a_missing_executor_is_never_recorded(here):
    assert choose("--state", "s.json", route="taste", executors="").code == 4
    assert not os.path.exists("s.json.gatebook")


# -- many at once


@pytest.mark.slow
def test_of_sixteen_selectors_exactly_one_gets_the_probe(here):
    fail("--state", "s.json", "--now", NOON).json()
    words = (
        "route",
        "select",
        "--rubric",
        "rubric.yaml",
        "--route",
        "default",
        "--native-provider",
        "p1",
        "--executors",
        "codex",
        "--state",
        "s.json",
        "--now",
    )
    for moment in (at(900), at(1800)):  # and again when the lease is over
        replies = [finish(process).json() for process in [start(*words, moment, cwd=here) for _ in range(16)]]
        assert sorted(reply["candidate"] for reply in replies) == ["a@high"] + ["b@high"] * 15
        assert sum(reply.get("probe", False) for reply in replies) == 1
    assert [name for name, *_ in recorded(here / "s.json.gatebook")].count("circuit.probed") == 2
    assert view("s.json")["circuits"]["p1|native"]["probe_claimed_at"] == at(1800)


@pytest.mark.slow
def test_sixteen_failures_at_once_are_each_counted_once(here):
    """F82: and the first of them makes the ledger."""
    words = (
        "route",
        "record-failure",
        "--provider",
        "p1",
        "--executor",
        "native",
        "--reason",
        "rate_limit",
        "--state",
        "s.json",
        "--now",
        NOON,
    )
    replies = [finish(process).json() for process in [start(*words, cwd=here) for _ in range(16)]]
    assert sorted(reply["failure_count"] for reply in replies) == list(range(1, 17))
    assert view("s.json")["circuits"]["p1|native"]["failure_count"] == 16
    assert len(recorded(here / "s.json.gatebook")) == 16
    assert [name for name in os.listdir(here) if name.endswith(".tmp")] == []


# -- the whole against a model


class Health(RuleBasedStateMachine):
    """Commands in any order, with any clock, against a dictionary; the file always says what the model says."""

    ENDPOINTS = {"p1": "native", "p2": "codex", "p3": "other"}

    @initialize()
    def begin(self):
        import tempfile

        self.folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.state = os.path.join(self.folder, "s.json")
        self.rubric = os.path.join(self.folder, "rubric.yaml")
        with open(self.rubric, "w", encoding="utf-8") as file:
            file.write(RUBRIC)
        self.now = parse_time(NOON)
        self.circuits = {}
        self.before_foreign = (
            None  # what the log says while no command has seen a file that another tool wrote
        )

    def teardown(self):
        import shutil

        shutil.rmtree(self.folder)

    def words(self, *words):
        self.before_foreign = None
        return call("route", *words, "--state", self.state, "--now", print_time(self.now))

    @rule(seconds=st.sampled_from([0, 1, 899, 900, 901, 3600, 86_399, 86_400, -1, -900, -86_400]))
    def time_passes(self, seconds):
        self.now += seconds * 1_000_000

    @rule(
        provider=st.sampled_from(sorted(ENDPOINTS)),
        reason=st.sampled_from(["quota", "authentication", "rate_limit", "provider_unavailable"]),
        retry=st.none() | st.integers(-2, 4000),
    )
    def failure(self, provider, reason, retry):
        more = (
            ["--retry-at", print_time(self.now + retry * 1_000_000)]
            if retry is not None and reason == "quota"
            else []
        )
        key = f"{provider}|{self.ENDPOINTS[provider]}"
        before = self.circuits.get(key)
        count = before.failure_count + 1 if before and before.reason == reason else 1
        if reason == "quota" and more and retry > 0:
            until = self.now + retry * 1_000_000
        else:
            steps = [900, 3600, 21_600, 86_400]
            until = self.now + 1_000_000 * (
                86_400 if reason in ("quota", "authentication") else steps[min(count, 4) - 1]
            )
        reply = self.words(
            "record-failure",
            "--provider",
            provider,
            "--executor",
            self.ENDPOINTS[provider],
            "--reason",
            reason,
            *more,
        ).json()
        assert (reply["failure_count"], reply["unavailable_until"]) == (count, print_time(until))
        self.circuits[key] = Circuit(reason, count, self.now, until)

    @rule(provider=st.sampled_from(sorted(ENDPOINTS)))
    def success(self, provider):
        key = f"{provider}|{self.ENDPOINTS[provider]}"
        assert (
            self.words(
                "record-success", "--provider", provider, "--executor", self.ENDPOINTS[provider]
            ).json()["status"]
            == "cleared"
        )
        self.circuits.pop(key, None)

    @rule(executors=st.sampled_from(["codex,other", "codex", "", "other"]))
    def selection(self, executors):
        done = self.words(
            "select",
            "--rubric",
            self.rubric,
            "--route",
            "default",
            "--native-provider",
            "p1",
            "--executors",
            executors,
        )
        for reference, provider in (("a@high", "p1"), ("b@high", "p2"), ("c@low", "p3")):
            executor = self.ENDPOINTS[provider]
            if executor != "native" and executor not in executors.split(","):
                continue
            circuit = self.circuits.get(f"{provider}|{executor}")
            if circuit and (
                self.now < circuit.unavailable_until
                or (
                    circuit.probe_claimed_at is not None and self.now < circuit.probe_claimed_at + 900_000_000
                )
            ):
                continue
            reply = done.json()
            assert reply["candidate"] == reference
            assert reply.get("probe", False) == (circuit is not None)
            if circuit:
                circuit.probe_claimed_at = self.now
            return
        assert done.code == 4

    @rule()
    def the_file_is_deleted(self):
        if os.path.exists(self.state):
            os.unlink(self.state)
        if self.before_foreign is not None:
            self.circuits, self.before_foreign = self.before_foreign, None

    @rule(provider=st.sampled_from(sorted(ENDPOINTS)), count=st.integers(1, 5))
    def another_tool_writes(self, provider, count):
        if not os.path.exists(self.state):
            return
        key = f"{provider}|{self.ENDPOINTS[provider]}"
        circuits = dict(self.circuits)
        circuits[key] = Circuit("authentication", count, self.now, self.now + 5_000_000, None)
        if circuits != self.circuits:
            with open(self.state, "wb") as file:
                file.write(b" " + render(circuits))
            if self.before_foreign is None:
                self.before_foreign = self.circuits
            self.circuits = circuits

    @invariant()
    def the_file_is_the_model(self):
        if not hasattr(self, "state") or not os.path.exists(self.state):
            return
        with open(self.state, "rb") as file:
            raw = file.read()
        assert raw.strip() == render(self.circuits).strip()


TestHealth = pytest.mark.slow(Health.TestCase)
# No shrinking: a failing course of 25 commands is read as it is, sooner than after minutes of smaller ones.
TestHealth.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, phases=[Phase.explicit, Phase.generate]
)
