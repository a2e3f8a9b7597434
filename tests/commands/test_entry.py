"""The frame every command stands in: global options, usage errors, one line for a mistake, odd streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from program import PATH, call, finish, start

from commands import entry, flags
from ledger.errors import Invalid, Usage

NOTE = ("append", "--stream", "x-n/1", "--type", "x.n.added")


@pytest.fixture
def here(tmp_path, home, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("init").json()
    return tmp_path


def test_without_a_command_the_overview_goes_to_stderr_with_exit_2():
    done = call()
    assert done.code == 2
    assert done.out == ""
    assert "usage: gatebook" in done.err


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["-h"],
        ["help"],
        ["append", "--help"],
        ["append", "--stream", "x", "-h"],
        ["route", "--help"],
        ["route", "select", "--help"],
    ],
)
def test_help_is_exit_0_on_stdout(words):
    done = call(*words)
    assert done.code == 0
    assert done.out.startswith("usage: gatebook")


def test_help_words_after_two_dashes_are_arguments():
    call("append", "--", "--help").refused(2, "unexpected argument '--help'")


def test_the_version_names_the_log_format():
    assert call("--version").out == f"gatebook {entry.VERSION} (log format 1)\n"


@pytest.mark.parametrize(
    "words",
    [
        ["nope"],
        ["appendd"],
        ["--nope"],
        ["plan", "nope"],
        ["--ledger"],
        ["--log-format", "xml", "append"],
        ["--log-level=loud", "append"],
        [""],
        ["--actor", "x"],
        ["append", "--log-level"],
    ],
)
def test_an_unknown_word_is_one_line_and_exit_2(words):
    done = call(*words)
    assert done.code == 2
    assert done.out == ""
    if words != ["--actor", "x"]:
        assert done.err.count("\n") == 1


def test_a_drop_ins_caller_reads_every_answer_from_stdout():
    done = call("route", "nope")
    assert done.code == 2
    assert json.loads(done.out)["status"] == "error"
    assert done.err == ""


def test_a_near_miss_is_named():
    call("apend").refused(2, "did you mean append?")
    call("append", "--strem", "x").refused(2, "did you mean --stream?")


@pytest.mark.parametrize("flag", ["--ledger", "--actor", "--log-format", "--log-level"])
def test_a_global_option_that_is_empty_is_not_taken_for_one_not_given(here, flag):
    """An unset shell variable in --ledger "$L" must not send the event to another ledger."""
    for words in ((flag, ""), (f"{flag}=",)):
        call(*words, *NOTE).refused(2, "must not be empty")
    assert call(*NOTE).json()["seq"] == 2


def test_the_actor_is_the_first_that_is_given(here, monkeypatch):
    import pwd

    from ledger.access import open_ledger

    monkeypatch.delenv("GATEBOOK_ACTOR", raising=False)
    call(*NOTE).json()
    monkeypatch.setenv("CODEX_THREAD_ID", "0199-ab")
    call(*NOTE).json()
    monkeypatch.setenv("GATEBOOK_ACTOR", "agent:env")
    call(*NOTE).json()
    call("--actor", "person:flag", *NOTE).json()
    ledger = open_ledger(str(here))
    actors = [event.actor for event in ledger.store.read(2)]
    ledger.close()
    assert actors == [
        f"cli:{pwd.getpwuid(os.geteuid()).pw_name}",
        "codex:0199-ab",
        "agent:env",
        "person:flag",
    ]
    for bad in ("nocolon", "cli:", "CLI:x", "cli:\x1b[31m"):
        call("--actor", bad, *NOTE).refused(1, "actor")


def test_the_ledger_is_the_first_that_is_given(here, tmp_path, monkeypatch):
    other = tmp_path / "other"
    call("--ledger", str(other), "init").json()
    monkeypatch.setenv("GATEBOOK_LEDGER", str(other))
    assert call(*NOTE).json()["seq"] == 2
    assert call("--ledger", str(here), *NOTE).json()["seq"] == 2
    assert call("--ledger", str(other / "ledger.db"), *NOTE).json()["seq"] == 3
    call("--ledger", str(tmp_path / "nowhere"), *NOTE).refused(2, "no ledger here")
    assert not (tmp_path / "nowhere").exists()
    monkeypatch.setenv("GATEBOOK_LEDGER", str(tmp_path / "nowhere"))
    call(*NOTE).refused(2, "no ledger here")  # never the one of the folder instead


def test_a_mistake_is_one_printable_line_whatever_it_quotes(here):
    done = call("append", "--stream", "x-n/\x1b[2J\r\nx", "--type", "x.n.\x07").refused(1)
    assert done.err[:-1].isprintable()
    done = call("--ledger", os.fsdecode(b"/nowhere/\xff\x1b[1m\n"), *NOTE)
    assert done.code == 2
    assert "\x1b" not in done.err


def test_names_that_are_not_utf_8_are_printed_as_the_terminal_can(here):
    done = finish(start("--ledger", os.fsdecode(b"/nowhere/\xff"), *NOTE))
    assert done.code == 2
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_the_output_is_json_whatever_encoding_stdout_has(here, encoding):
    """F85"""
    process = start(
        "append",
        "--stream",
        "x-n/\u4e16",
        "--type",
        "x.n.added",
        env={"PYTHONIOENCODING": encoding, "LC_ALL": "C"},
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    import json

    assert json.loads(out)["stream"] == "x-n/\u4e16"


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", ">&- 2>&- <&-"])
def test_a_closed_stream_loses_no_event_and_lends_its_number_to_no_file(here, closed):
    shell = f'"{sys.executable}" -m commands append --stream x-n/1 --type x.n.added --data {{}} {closed}'
    done = subprocess.run(
        ["sh", "-c", shell], env={**os.environ, "PYTHONPATH": PATH}, capture_output=True, text=True
    )
    assert done.returncode == 0, done
    assert done.stderr == ""
    from ledger.access import open_ledger

    ledger = open_ledger(str(here))
    assert ledger.store.head().seq == 2
    ledger.close()


def test_a_reader_that_went_away_is_no_fault(here):
    shell = f'"{sys.executable}" -m commands --help | true; "{sys.executable}" -m commands append --help | head -1'
    done = subprocess.run(
        ["sh", "-c", shell], env={**os.environ, "PYTHONPATH": PATH}, capture_output=True, text=True
    )
    assert done.stderr == ""


def test_an_event_whose_receipt_could_not_be_printed_is_recorded_and_it_is_said(here):
    shell = f'"{sys.executable}" -m commands append --stream x-n/1 --type x.n.added > /dev/full'
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    done = subprocess.run(
        ["sh", "-c", shell], env={**os.environ, "PYTHONPATH": PATH}, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert "No space" in done.stderr


def test_errors_can_be_json(here):
    import json

    done = finish(start("--log-format", "json", "append", "--stream", "x-n/1"))
    assert done.code == 2
    assert json.loads(done.err)["level"] == "error"


def test_what_is_told_beside_the_answer_follows_the_log_format_and_level(here, monkeypatch):
    import json

    def no_room(*_words):
        raise OSError(28, "No space left on device")

    (here / "proof").write_text("{}\n")
    assert json.loads(call("--log-format", "json", "check-proof", "proof").err)["level"] == "error"
    assert call("--log-level", "error", "check-proof", "proof").err.startswith("gatebook: proof file:")
    monkeypatch.setattr("ledger.home.HeadMemory.write", no_room)
    assert json.loads(call("--log-format", "json", *NOTE).err)["level"] == "warning"
    assert call("--log-level", "error", *NOTE).err == ""
    assert "gatebook: warning: " in call(*NOTE).err


def test_a_fault_of_ours_is_told_as_such_in_one_line(here, monkeypatch):
    monkeypatch.setattr(entry, "_dispatch", lambda _argv, _context: 1 / 0)
    done = call(*NOTE)
    assert done.code == 1
    assert "internal error (ZeroDivisionError" in done.err
    assert done.err.count("\n") == 1


# -- the parser itself

COMMAND = flags.Command(
    lambda _args, _context: 0, "text", words=(flags.Word("FILE"), flags.Word("MORE", optional=True, many=True)),
    flags=(flags.Flag("--a-b", "X"), flags.Flag("--many", "M", many=True), flags.Flag("--on"), flags.Flag("--n", "N", number=True), flags.Flag("--one", "O", choices=("x", "y"))),
)  # fmt: skip


def test_words_and_options_may_come_in_any_order():
    args = flags.parse(
        COMMAND, ["f", "--a-b", "1", "--many", "p", "m1", "--on", "--many=q", "m2", "--", "-x", "--on"]
    )
    assert (args.file, args.more, args.a_b, args.many, args.on, args.n, args.one) == (
        "f",
        ["m1", "m2", "-x", "--on"],
        "1",
        ["p", "q"],
        True,
        None,
        None,
    )


def test_a_value_may_look_like_an_option_and_a_dash_is_a_word():
    args = flags.parse(COMMAND, ["-", "--a-b", "--on"])
    assert (args.file, args.a_b, args.on) == ("-", "--on", False)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["f", "--a-b"],
        ["f", "--a-b=1", "--a-b", "2"],
        ["f", "--on", "--on"],
        ["f", "--on=1"],
        ["f", "--one", "z"],
        ["f", "--n", "x"],
        ["f", "-z"],
        ["f", "--a"],
        ["f", "--x"],
    ],
)
def test_what_the_parser_cannot_read_is_usage(argv):
    with pytest.raises(Usage):
        flags.parse(COMMAND, argv)


def test_escaped_output_stays_json():
    import json

    from commands.context import dumps

    for value in ({"a": "\ud800"}, {"a": "ü\n\x1b"}, {"b": 1, "a": [None, True, 1.5]}):
        assert json.loads(dumps(value)) == value
    assert dumps({"b": 1, "a": 2}) == '{"b":1,"a":2}'
    assert issubclass(Invalid, Exception)
