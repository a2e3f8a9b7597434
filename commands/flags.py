"""The command line's own small parser: argparse costs 6.5 ms of start-up, which every step would pay.

A command is a `Command` record; parsing, `--help` and shell completion all read the same record.
"""

from __future__ import annotations

from ledger.errors import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from commands.context import Context

MAX_NUMBER = 2**53 - 1
WIDTH = 100  # of a usage line
GLOBAL = ("--ledger", "--actor", "--log-format", "--log-level")  # what stands before the command


class Flag:
    """One option. `metavar` None makes it a switch; `number` a whole number 0 to 2^53-1; `many` may be repeated."""

    __slots__ = ("choices", "help", "many", "metavar", "name", "number", "required")

    def __init__(
        self,
        name: str,
        metavar: str | None = None,
        help: str = "",
        *,
        many: bool = False,
        number: bool = False,
        required: bool = False,
        choices: tuple[str, ...] | None = None,
    ) -> None:
        self.name = name
        self.metavar = metavar
        self.help = help
        self.many = many
        self.number = number
        self.required = required
        self.choices = choices

    @property
    def attribute(self) -> str:
        """Its name in `Args`."""
        return self.name.lstrip("-").replace("-", "_")


class Word:
    """One positional argument: required unless `optional`; `many` takes all that remain; Tab proposes what `offers` gives."""

    __slots__ = ("help", "many", "name", "offers", "optional")

    def __init__(
        self,
        name: str,
        help: str = "",
        *,
        optional: bool = False,
        many: bool = False,
        offers: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.name = name
        self.help = help
        self.optional = optional
        self.many = many
        self.offers = offers

    @property
    def attribute(self) -> str:
        """Its name in `Args`."""
        return self.name.lower().replace("-", "_")


class Args:
    """The parsed values as attributes; a switch is a bool, a missing option None, a repeated one a list."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Command:
    """One command: what it takes, what its help says, and the function that does it.

    `json_errors`: a drop-in whose callers read stdout: a bad call prints `{"status":"error","blockers":[…]}` there.
    """

    __slots__ = ("example", "flags", "json_errors", "run", "text", "words")

    def __init__(
        self,
        run: Callable[[Args, Context], int],
        text: str,
        *,
        words: tuple[Word, ...] = (),
        flags: tuple[Flag, ...] = (),
        example: str = "",
        json_errors: bool = False,
    ) -> None:
        self.json_errors = json_errors
        self.run = run
        self.text = text
        self.words = words
        self.flags = flags
        self.example = example


def whole_number(text: str, what: str) -> int:
    """A whole number 0 to 2^53-1 in plain digits, or Usage."""
    if not (text.isascii() and text.isdigit()) or len(text) > 16 or int(text) > MAX_NUMBER:
        shown = text if len(text) <= 24 else f"{text[:20]}…"
        raise Usage(f"{what}: {shown!r} is not a whole number from 0 to 2^53-1")
    return int(text)


def _value(flag: Flag, text: str) -> object:
    if flag.number:
        return whole_number(text, flag.name)
    if flag.choices and text not in flag.choices:
        raise Usage(f"{flag.name}: {text!r} is not one of {', '.join(flag.choices)}")
    return text


def _set(args: Args, flag: Flag, value: object, seen: set[str]) -> None:
    if flag.many:
        getattr(args, flag.attribute).append(value)
        return
    if flag.name in seen:
        raise Usage(f"{flag.name} is given twice")
    seen.add(flag.name)
    setattr(args, flag.attribute, value)


def _unknown(name: str, command: Command) -> Usage:
    if name in GLOBAL:
        return Usage(f"{name} stands before the command: gatebook {name} … COMMAND")
    import difflib

    near = difflib.get_close_matches(name, [flag.name for flag in command.flags], 1, 0.75)
    return Usage(f"unknown option {name}" + (f"; did you mean {near[0]}?" if near else "; see --help"))


def parse(command: Command, argv: Sequence[str]) -> Args:
    """The arguments of `command` from `argv`.

    Raises:
        Usage: an unknown, repeated, missing or malformed option or argument; the message names it.
    """
    args = Args()
    by_name: dict[str, Flag] = {}
    for flag in command.flags:
        by_name[flag.name] = flag
        setattr(args, flag.attribute, [] if flag.many else False if flag.metavar is None else None)
    words: list[str] = []
    seen: set[str] = set()
    rest = list(argv)
    while rest:
        item = rest.pop(0)
        if item == "--":
            words += rest
            break
        if item == "-" or not item.startswith("-"):
            words.append(item)
            continue
        name, equals, inline = item.partition("=")
        if item[:2] in by_name and item[:2] != name:  # -n5
            name, equals, inline = item[:2], "=", item[2:]
        found = by_name.get(name)
        if found is None:
            raise _unknown(name, command)
        if found.metavar is None:
            if equals:
                raise Usage(f"{name} takes no value")
            _set(args, found, value=True, seen=seen)
        elif equals or rest:
            _set(args, found, _value(found, inline if equals else rest.pop(0)), seen)
        else:
            raise Usage(f"{name} needs a value: {name} {found.metavar}")
    for flag in command.flags:
        value = getattr(args, flag.attribute)
        if flag.required and (value is None or value == []):
            raise Usage(f"{flag.name} is needed: {flag.name} {flag.metavar}")
    _words(args, command, words)
    return args


def _words(args: Args, command: Command, words: list[str]) -> None:
    for word in command.words:
        if word.many:
            if not words and not word.optional:
                raise Usage(f"{word.name} is needed; see --help")
            setattr(args, word.attribute, words)
            words = []
        elif words:
            setattr(args, word.attribute, words.pop(0))
        elif word.optional:
            setattr(args, word.attribute, None)
        else:
            raise Usage(f"{word.name} is needed; see --help")
    if words:
        raise Usage(f"unexpected argument {words[0]!r}; see --help")


def _usage_of(flag: Flag) -> str:
    text = flag.name
    if flag.metavar is not None:
        text = f"{text} {flag.metavar}"
    if not flag.required:
        text = f"[{text}]"
    return text + ("…" if flag.many else "")


def usage(name: str, command: Command) -> str:
    """The usage, in lines of at most 100 characters where its parts allow it."""
    parts = [_usage_of(flag) for flag in command.flags if flag.required]
    parts += [
        f"[{word.name}]" if word.optional else word.name + ("…" if word.many else "")
        for word in command.words
    ]
    parts += [_usage_of(flag) for flag in command.flags if not flag.required]
    lines = [f"usage: gatebook {name}"]
    for part in parts:
        if len(lines[-1]) + 1 + len(part) > WIDTH:
            lines.append("      ")
        lines[-1] += f" {part}"
    return "\n".join(lines)


def help_text(name: str, command: Command) -> str:
    """What `gatebook NAME --help` prints."""
    lines = [usage(name, command), "", command.text.strip(), ""]
    rows = [(word.name, word.help) for word in command.words]
    for flag in command.flags:
        note = f" ({'|'.join(flag.choices)})" if flag.choices else ""
        rows.append((f"{flag.name} {flag.metavar}" if flag.metavar else flag.name, flag.help + note))
    width = min(28, max((len(left) for left, _ in rows), default=0))
    for left, right in rows:
        lines.append(
            f"  {left:<{width}}  {right}" if len(left) <= width else f"  {left}\n  {'':<{width}}  {right}"
        )
    if rows:
        lines.append("")
    lines += ["Example:", *(f"  {line}" for line in command.example.strip().splitlines())]
    return "\n".join(lines) + "\n"
