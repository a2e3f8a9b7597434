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
    "checkpoint": ("commands.checkpoint", "sign size and root of the log as it stands"),
    "prove": ("commands.prove", "a proof that an event is in, or that the log only grew"),
    "check-proof": ("commands.prove", "check a proof file; needs no ledger"),
    "trace": ("commands.trace", "why was this allowed, and what did it cause?"),
    "timeline": ("commands.timeline.command", "lanes over time, in the terminal, as SVG or as a page"),
    "witness init": ("commands.witness", "make a second party with its own key and memory"),
    "witness cosign": ("commands.witness", "sign a checkpoint that continues the last one seen"),
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
    "session check-report": ("commands.sessions.check", "judge one executor's or reviewer's report"),
    "gate adapt": ("commands.sessions.gate", "an adversarial review's output becomes a verdict"),
    "gate run": ("commands.sessions.gate", "run an adversarial reviewer once and judge it"),
    "codex check": ("commands.codex", "can Codex be driven here?"),
    "codex dispatch": ("commands.codex", "one prompt to Codex in a sandbox; a typed result"),
}

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("The ledger", ("init", "append", "log", "show", "state", "diff")),
    ("Audit", ("verify", "replay", "trace", "timeline", "query", "rebuild", "redact")),
    ("Proofs", ("checkpoint", "prove", "check-proof", "witness init", "witness cosign")),
    ("Copies", ("export", "import", "backup", "resume", "trust")),
    ("Dispatch", tuple(name for name in COMMANDS if name.split()[0] in ("rubric", "route", "codex"))),
    (
        "Review sessions",
        tuple(
            n for n in COMMANDS if n.split()[0] in ("session", "round", "gate", "polish", "docs", "security")
        ),
    ),
    ("This machine", ("tour", "doctor", "bench", "schema", "completion")),
)
