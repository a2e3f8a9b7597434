"""The parser of the command line over generated calls, and every record in the table against it."""

from __future__ import annotations

import contextlib
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import entry, flags, table
from commands.flags import Command, Flag, Word
from ledger.errors import Usage


def nothing(_args, _context):
    return 0


COMMAND = Command(
    nothing,
    "text",
    words=(Word("FIRST"), Word("REST", optional=True, many=True)),
    flags=(
        Flag("--text", "T"),
        Flag("--many", "M", many=True),
        Flag("--number", "N", number=True),
        Flag("--choice", "C", choices=("one", "two")),
        Flag("-n", "N", number=True),
        Flag("--on"),
    ),
)
TEXT = st.text(max_size=8)
WORD = TEXT.filter(lambda text: text == "-" or not text.startswith("-"))
WORDS_ON_OFFER = (
    "--text",
    "-n",
    "-n5",
    "--many",
    "--number",
    "--choice",
    "--on",
    "--",
    "-",
    "--text=",
    "--on=",
    "--x",
    "-",
    "7",
    "",
)


@st.composite
def calls(draw):
    """(argv, the values it means): every flag at most once but --many, in any order and either form."""
    meant = {
        "text": draw(st.none() | TEXT),
        "many": draw(st.lists(TEXT, max_size=3)),
        "number": draw(st.none() | st.integers(0, 2**53 - 1)),
        "choice": draw(st.none() | st.sampled_from(("one", "two"))),
        "on": draw(st.booleans()),
        "words": draw(st.lists(WORD, min_size=1, max_size=4)),
    }
    pieces = [[word] for word in meant["words"]]
    options = [
        [f"--{name}", str(meant[name])] for name in ("text", "number", "choice") if meant[name] is not None
    ]
    options += [["--many", value] for value in meant["many"]]
    options = [[f"{name}={value}"] if draw(st.booleans()) else [name, value] for name, value in options]
    options += [["--on"]] if meant["on"] else []
    many = [piece for piece in options if piece[0].startswith("--many")]
    places = draw(st.permutations([0] * len(pieces) + [1] * len(many) + [2] * (len(options) - len(many))))
    others = [piece for piece in options if not piece[0].startswith("--many")]
    queues = {0: iter(pieces), 1: iter(many), 2: iter(others)}
    argv = [item for place in places for item in next(queues[place])]
    return argv, meant


@given(calls())
def test_what_is_written_in_any_order_and_form_is_what_is_read(call):
    argv, meant = call
    args = flags.parse(COMMAND, argv)
    assert (args.text, args.many, args.number, args.choice, args.on) == tuple(
        meant[name] for name in ("text", "many", "number", "choice", "on")
    )
    assert [args.first, *args.rest] == meant["words"]


@pytest.mark.parametrize("argv", [["-n", "5"], ["-n5"], ["-n=5"]])
def test_the_value_of_a_short_option_may_stand_right_behind_it(argv):
    assert flags.parse(COMMAND, ["first", *argv]).n == 5


@given(st.lists(st.sampled_from(WORDS_ON_OFFER) | TEXT, max_size=8))
def test_no_call_ends_in_anything_but_arguments_or_a_usage_error(argv):
    with contextlib.suppress(Usage):
        flags.parse(COMMAND, argv)


@given(st.lists(TEXT, max_size=5))
def test_after_two_dashes_everything_is_a_word(words):
    args = flags.parse(COMMAND, ["first", "--on", "--", *words])
    assert (args.first, args.rest, args.on) == ("first", words, True)


@pytest.mark.parametrize("text", ["0", "00", "7", "0000000000000007", str(2**53 - 1)])
def test_a_number_is_plain_digits_up_to_2_53_minus_1(text):
    assert flags.parse(COMMAND, ["f", "--number", text]).number == int(text)


DIGITS_ELSEWHERE = [
    chr(point) for point in range(0x80, 0x20000) if unicodedata.category(chr(point)) in ("Nd", "No")
]


@pytest.mark.parametrize(
    "text",
    ["", " ", "-1", "+1", "1.0", "1e3", "0x10", "1_000", " 1", "1\n", "٣", "²", "１", "①", "Ⅷ", "NaN", "true"]
    + [str(2**53), str(2**63), str(2**64), "9" * 4301, "0" * 17, "-" + "9" * 4301],
    ids=lambda text: ascii(text)[:16],
)  # fmt: skip
def test_any_other_number_is_refused_by_name_and_shown_short(text):
    """F32"""
    with pytest.raises(Usage) as raised:
        flags.parse(COMMAND, ["f", "--number", text])
    message = str(raised.value)
    assert message.startswith("--number: ")
    assert "whole number" in message
    assert len(message) < 120


def test_no_digit_outside_ascii_is_a_number():
    for digit in DIGITS_ELSEWHERE:
        with pytest.raises(Usage):
            flags.whole_number(digit, "--number")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["f", "--text", "a", "--text", "a"], "--text is given twice"),
        (["f", "--text", "a", "--text=b"], "--text is given twice"),
        (["f", "--on", "--on"], "--on is given twice"),
        (["f", "--number", "1", "--number", "1"], "--number is given twice"),
        (["f", "--on=yes"], "--on takes no value"),
        (["f", "--text"], "--text needs a value: --text T"),
        (["f", "--choice", "three"], "is not one of one, two"),
        (["f", "--txt"], "did you mean --text?"),
        (["f", "--zzz"], "see --help"),
        ([], "FIRST is needed"),
    ],
)
def test_the_message_names_what_is_wrong(argv, words):
    with pytest.raises(Usage, match=words.replace("?", r"\?")):
        flags.parse(COMMAND, argv)


@pytest.mark.parametrize("name", ["--ledger", "--actor", "--log-format", "--log-level"])
def test_a_global_option_after_the_command_is_told_where_it_belongs(name):
    for given_as in ([name, "x"], [f"{name}=x"]):
        with pytest.raises(Usage, match=f"{name} stands before the command"):
            flags.parse(COMMAND, ["f", *given_as])


@pytest.mark.parametrize("name", sorted(table.COMMANDS))
def test_every_record_can_be_parsed_into_distinct_attributes(name):
    command = entry.load(name)
    attributes = [flag.attribute for flag in command.flags] + [word.attribute for word in command.words]
    assert len(attributes) == len(set(attributes)), attributes
    names = [flag.name for flag in command.flags]
    assert len(names) == len(set(names)), names
    assert not {"--help", "-h", "--", "-"} & set(names)
    for flag in command.flags:
        assert flag.metavar is not None or not (flag.number or flag.choices or flag.many or flag.required)
    # Only the last word may take all that remains, and none that is needed follows one that is not.
    assert all(not word.many for word in command.words[:-1])
    optional = [word.optional for word in command.words]
    assert optional == sorted(optional)


@pytest.mark.parametrize("name", sorted(table.COMMANDS))
def test_every_numeric_option_of_every_command_refuses_what_is_no_number(name):
    """F32, in every numeric option."""
    command = entry.load(name)
    for flag in command.flags:
        if not flag.number:
            continue
        for text in (str(2**53), "9" * 4301, "-1", "٣"):
            with pytest.raises(Usage, match="whole number"):
                flags.parse(command, [flag.name, text])


def test_the_frame_takes_the_global_options_that_the_parser_knows():
    assert tuple(entry._GLOBAL) == flags.GLOBAL
