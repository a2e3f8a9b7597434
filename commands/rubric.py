"""`rubric …`: which rubric is active, and is it fit for dispatching today (contract page dispatch, Rubric)."""

from __future__ import annotations

from commands.context import Context, emit
from commands.flags import Args, Command, Flag
from ledger.errors import Invalid

_RUBRIC = Flag(
    "--rubric", "F", "this file (default: .gatebook/rubric.yaml, $XDG_CONFIG_HOME/gatebook/rubric.yaml)"
)


def _judge(given: str | None, now: str | None) -> tuple[str, str | None]:
    """(path, why it is refused or None)."""
    from commands.dispatch.health import moment
    from commands.dispatch.rubric import active_path, load_reviewed

    at = moment(now)
    path = active_path(given)
    try:
        load_reviewed(path, at)
    except Invalid as error:
        return path, str(error)
    return path, None


def check(args: Args, _context: Context) -> int:
    """Refuse a rubric that is malformed, a seed, or not reviewed within 14 days."""
    try:
        path, why = _judge(args.rubric, args.now)
    except Invalid as error:
        path, why = "", str(error)
    if why is not None:
        emit({"status": "blocked", "rubric": path, "blockers": [why]})
        return 4
    emit({"status": "valid", "rubric": path})
    return 0


def path(args: Args, _context: Context) -> int:
    """Print the active rubric's path, and nothing else (the scripts that ask read one line)."""
    from commands.context import say
    from commands.dispatch.rubric import active_path

    if args.check:
        found, why = _judge(args.rubric, args.now)
        if why is not None:
            from ledger.errors import Refused

            raise Refused(why)
    else:
        found = active_path(args.rubric)
    say(found)
    return 0


_NOW = Flag("--now", "T", "judge as of this time (default: the clock)")
COMMANDS = {
    "rubric check": Command(
        check,
        "Is the rubric well formed, not a seed, and reviewed within 14 days? Exit 4 with the reason when not.",
        flags=(_RUBRIC, _NOW),
        example="gatebook rubric check --rubric rubric.yaml",
        json_errors=True,
    ),
    "rubric path": Command(
        path,
        "Prints which rubric file is active; with --check it must pass `rubric check` too.",
        flags=(_RUBRIC, Flag("--check", None, "and check it"), _NOW),
        example="gatebook rubric path --rubric rubric.yaml",
    ),
}
