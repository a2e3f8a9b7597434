"""Every command: its name, the module that holds its `COMMANDS` record, and one line for the overview.

Plain data, so that finding one command imports one module.
"""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("commands.init", "make a ledger here"),
    "append": ("commands.append", "record an event of an open type (x.…)"),
    "log": ("commands.log", "the events, oldest first"),
    "show": ("commands.show", "one event, whole, with its causes and effects"),
    "verify": ("commands.verify", "check every hash, link, number, digest and form"),
    "replay": ("commands.replay", "verify, and check that every step was lawful"),
    "export": ("commands.archive", "the whole ledger as JSON lines"),
    "import": ("commands.archive", "a read-only archive from an export"),
    "backup": ("commands.archive", "a consistent, verified copy while others write"),
    "resume": ("commands.recover", "a restored or imported ledger takes writes again"),
    "trust": ("commands.recover", "accept a found ledger on this machine"),
    "redact": ("commands.redact", "erase an event's content, on record"),
    "state": ("commands.state", "a projection now or as of a moment"),
    "diff": ("commands.state", "what changed between two moments, and by which events"),
    "rebuild": ("commands.views", "the read models from nothing"),
    "query": ("commands.views", "read-only SQL, or a named forensic query"),
    "doctor": ("commands.doctor", "check the ledger's surroundings; say how to mend"),
    "schema": ("commands.schema", "JSON Schema of the event types"),
    "completion": ("commands.completion", "shell completion for bash, zsh or fish"),
    "tour": ("commands.tour", "a real run in a scratch repository, then an audit and a tampering"),
    "bench": ("commands.bench", "this machine's speed, with the limit beside each"),
    "rubric check": ("commands.rubric", "is the rubric fit for dispatching today?"),
    "rubric path": ("commands.rubric", "which rubric file is active"),
    "route validate": ("commands.route", "every candidate of a rubric is reachable"),
    "route select": ("commands.route", "the candidate for a route, by circuits and cooldowns"),
    "route record-failure": ("commands.route", "a typed outage opens a circuit"),
    "route record-success": ("commands.route", "success closes a circuit"),
    "route reset": ("commands.route", "forget every circuit of a state file"),
}

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("The ledger", ("init", "append", "log", "show", "state", "diff")),
    ("Audit", ("verify", "replay", "query", "rebuild", "redact")),
    ("Copies", ("export", "import", "backup", "resume", "trust")),
    ("Dispatch", tuple(name for name in COMMANDS if name.split()[0] in ("rubric", "route"))),
    ("This machine", ("tour", "doctor", "bench", "schema", "completion")),
)
