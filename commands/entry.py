"""The program: global options, the command's module, errors as one line and an exit code."""

from __future__ import annotations

import os
import sys

from commands import flags
from commands.context import Context, emit, say
from commands.table import COMMANDS, GROUPS
from ledger.errors import GatebookError, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

VERSION = "0.1.0"
AS_PROCESS = [sys.executable, "-c", "from commands.entry import main; main()"]  # gatebook, started by itself
JSON_FAMILIES = ("codex", "route")  # drop-ins, whose callers read every answer from stdout
_HOOKS = (["guard", "stop"], ["guard", "capture"])
_GLOBAL = {
    "--ledger": "ledger_given",
    "--actor": "actor_given",
    "--log-format": "log_format",
    "--log-level": "log_level",
}
_CHOICES = {"--log-format": ("console", "json"), "--log-level": ("debug", "info", "warning", "error")}


def load(name: str) -> flags.Command:
    """The command called `name` in the table."""
    module = __import__(COMMANDS[name][0], fromlist=["COMMANDS"])
    found: flags.Command = module.COMMANDS[name]
    return found


def _overview() -> str:
    lines = [
        "usage: gatebook [--ledger L] [--actor KIND:ID] [--log-format console|json] [--log-level L] COMMAND …",
        "",
        "The ledger for people who run coding agents: a hash-chained log that refuses illegal steps.",
    ]
    for title, names in GROUPS:
        lines += ["", f"{title}:"]
        lines += [f"  {name:<24}{COMMANDS[name][1]}" for name in names if name in COMMANDS]
    lines += [
        "",
        "`gatebook COMMAND --help` shows one with an example; `gatebook tour` shows it at work.",
        "",
    ]
    return "\n".join(lines)


def _group(first: str) -> str:
    names = [name for name in COMMANDS if name.split()[0] == first]
    return "\n".join(
        [
            f"usage: gatebook {first} COMMAND …",
            "",
            *(f"  {name:<24}{COMMANDS[name][1]}" for name in names),
            "",
        ]
    )


def _globals(argv: list[str], context: Context) -> list[str]:
    """Take the global options off the front; what remains begins with the command."""
    rest = list(argv)
    while rest and rest[0].startswith("--"):
        name, equals, inline = rest[0].partition("=")
        if name not in _GLOBAL:
            break
        rest.pop(0)
        if not equals and not rest:
            raise Usage(f"{name} needs a value")
        value = inline if equals else rest.pop(0)
        if not value:
            raise Usage(f"{name} must not be empty")
        if name in _CHOICES and value not in _CHOICES[name]:
            raise Usage(f"{name}: {value!r} is not one of {', '.join(_CHOICES[name])}")
        setattr(context, _GLOBAL[name], value)
    return rest


def _split(rest: list[str]) -> tuple[str, list[str]]:
    for length in (2, 1):
        name = " ".join(rest[:length])
        if len(rest) >= length and name in COMMANDS:
            return name, rest[length:]
    known = sorted({name.split()[0] for name in COMMANDS})
    first = rest[0]
    if first in known:
        inner = [name.split()[1] for name in COMMANDS if name.startswith(f"{first} ")]
        raise Usage(f"gatebook {first} needs one of: {', '.join(inner)}")
    import difflib

    near = difflib.get_close_matches(first, known, 1)
    raise Usage(
        f"unknown command {first!r}" + (f"; did you mean {near[0]}?" if near else "; see gatebook --help")
    )


def _dispatch(argv: list[str], context: Context) -> int:
    rest = _globals(argv, context)
    context.take_notices()
    if not rest:
        sys.stderr.write(_overview())
        return 2
    if rest[0] in ("--help", "-h", "help"):
        if len(rest) == 1:
            say(_overview().rstrip("\n"))
            return 0
        rest = [*rest[1:], "--help"]  # `gatebook help NAME`
    if rest[0] == "--version":
        sys.stdout.write(f"gatebook {VERSION} (log format 1)\n")
        return 0
    if rest[0].startswith("-"):
        raise Usage(f"unknown option {rest[0]}; see gatebook --help")
    if (
        len(rest) > 1
        and rest[1] in ("--help", "-h")
        and rest[0] not in COMMANDS
        and any(name.startswith(f"{rest[0]} ") for name in COMMANDS)
    ):
        say(_group(rest[0]).rstrip("\n"))
        return 0
    try:
        name, arguments = _split(rest)
    except Usage as error:
        if rest[0] in JSON_FAMILIES:
            return _bad_call(error)
        raise
    context.via = name
    command = load(name)
    before_words = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--help" in before_words or "-h" in before_words:
        say(flags.help_text(name, command).rstrip("\n"))
        return 0
    if not command.json_errors:
        return command.run(flags.parse(command, arguments), context)
    try:
        return command.run(flags.parse(command, arguments), context)
    except Usage as error:
        return _bad_call(error)


def _bad_call(error: Usage) -> int:
    emit({"status": "error", "blockers": [str(error)]})
    return error.exit_code


def _is_hook(argv: list[str]) -> bool:
    """Whether an agent's hook is called, however wrongly: its caller takes any other exit code than 0 for a veto."""
    rest = list(argv)
    while rest and rest[0].startswith("--"):
        del rest[: 2 if rest[0] in _GLOBAL else 1]
    return rest[:2] in _HOOKS


def _let_go() -> int:
    """A hook's answer when it could not be asked: the agent goes on."""
    try:
        emit({})
        sys.stdout.flush()
    except OSError:
        pass  # nobody reads it; the exit code says the same
    return 0


def _escaped(c: str) -> str:
    """A character that could break the line or steer the terminal, written out; what is not UTF-8 goes to the stream."""
    return " " if c == "\n" else c if "\ud800" <= c <= "\udfff" else c.encode("unicode_escape").decode()


def _report(error: BaseException, context: Context) -> None:
    """One line on stderr; where that takes nothing (a full disk), the exit code says it alone."""
    try:
        _say_error(error, context)
    except OSError:
        pass


def _say_error(error: BaseException, context: Context) -> None:
    text = "".join(c if c.isprintable() else _escaped(c) for c in str(error))
    if context.log_format == "json":
        context.log().error(text, command=context.via)
    else:
        try:
            sys.stderr.write(f"gatebook: {text}\n")
        except UnicodeEncodeError:
            sys.stderr.write("gatebook: " + text.encode("ascii", "backslashreplace").decode() + "\n")


def _damage(context: Context) -> GatebookError | None:
    """What is wrong with the ledger that was open when something unexpected happened: mostly that is the reason."""
    ledger = context.opened
    if ledger is None:
        return None
    from ledger.errors import Tampered

    try:
        from ledger.verify import verify

        report = verify(ledger.store)
    except Exception:  # noqa: BLE001 - the first fault is the one to tell
        return None
    if report.ok:
        return None
    seq = (report.first_wrong or {}).get("seq")
    where = f"event {seq}" if seq else "no event"
    return Tampered(
        f"{ledger.path}: is not as recorded ({report.verdict}, {where}): run `gatebook verify`",
        verdict=report.verdict,
    )


def run(argv: list[str]) -> int:
    """Do what `argv` (without the program's name) says; returns the exit code. Never raises for a user's mistake."""
    context = Context()
    try:
        code = _dispatch(argv, context)
        sys.stdout.flush()
    except GatebookError as error:
        _report(error, context)
        code = error.exit_code
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing more to say, and Python must not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        _report(Usage("interrupted"), context)
        code = 130
    except OSError as error:
        name = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        _report(Usage(f"{name}{error.strerror or error}"), context)
        code = 1
    except UnicodeEncodeError as error:
        # Bytes of an argument that are no UTF-8 stand as lone surrogates: lawful in a path, never in a name or value.
        shown = f"{error.object[error.start : error.start + 60]!a}"
        if "\\ud" in shown:
            _report(Usage(f"{shown} is not UTF-8 text"), context)
        else:
            _report(Usage(f"stdout takes only {error.encoding}, not {shown}: set LC_ALL=C.UTF-8"), context)
        code = 1
    except MemoryError:
        _report(Usage("out of memory; nothing more was recorded"), context)
        code = 75
    except Exception as error:  # noqa: BLE001 - whoever's fault it is, one line; the trace only when asked for
        fault = _damage(context) or Usage(
            f"internal error ({type(error).__name__}: {error}): please report it; --log-level debug shows where"
        )
        _report(fault, context)
        if context.log_level == "debug":
            import traceback

            traceback.print_exc()
        code = 3 if fault.exit_code == 3 else 1
    if code and _is_hook(argv):
        code = _let_go()
    try:
        context.close()
    except Exception as error:  # noqa: BLE001
        _report(error, context)
    if "ledger.notice" in sys.modules:
        sys.modules["ledger.notice"].divert(None)
    return code


def _stand_in() -> None:
    """Where a caller closed stdin, stdout or stderr, the null device: else the ledger's files would get their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def main() -> NoReturn:
    """The `gatebook` script: run, flush, and leave without tearing the interpreter down (1 to 2 ms a call)."""
    _stand_in()
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 1
    os._exit(code)
