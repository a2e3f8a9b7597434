"""`gate adapt` and `gate run`: usable without a ledger, drop-in for the older scripts (contract `review-sessions`, Gate)."""

from __future__ import annotations

import sys

from commands.context import Context
from commands.flags import Args, Command, Flag

_MODES = ("plugin-json", "raw")


def _adapt(args: Args, context: Context) -> int:
    from commands.append import read_input
    from commands.sessions.adapt import adapt
    from commands.sessions.strict_json import Malformed
    from ledger.errors import Invalid

    del context
    try:
        data = read_input(args.input or "-", "--input")
    except Invalid as error:
        raise Malformed(f"cannot read the input: {error}") from None
    code, text = adapt(data, args.input_mode or "plugin-json")
    sys.stdout.buffer.write(text.encode())
    return code


def _run(args: Args, context: Context) -> int:
    del context
    from commands.sessions.gate_run import DEFAULT_TIMEOUT, GateResult, read_focus, run_gate
    from commands.sessions.program import allowed_seconds
    from commands.sessions.signals import exit_on_signals

    timeout = allowed_seconds(args.timeout, DEFAULT_TIMEOUT, "review")
    focus = read_focus(args.focus_file)
    root, skipped = _skipped_by_config()
    if skipped:
        result = GateResult("SKIP", reason="skipped-by-config")
    else:
        with exit_on_signals():
            result = run_gate(focus, args.producer, root=root, timeout=timeout)
    if result.banner:
        print(result.banner, file=sys.stderr)
    sys.stdout.buffer.write(result.text.encode())
    return result.exit_code


def _skipped_by_config() -> tuple[str, bool]:
    """The work tree's root (the working directory outside of one), and whether every changed path is exempt."""
    import os

    from commands.git import GitFailed
    from commands.sessions.config import load_config
    from commands.sessions.globs import all_match
    from commands.sessions.tree import read_tree, top_level

    try:
        root = top_level(os.getcwd())
    except GitFailed:
        return os.getcwd(), False
    config = load_config(root)
    tree = read_tree(root, trusted_filters=config.trusted_filters)
    return root, all_match(tree.dirty, config.adversarial_gate_skip_paths)


COMMANDS = {
    "gate adapt": Command(
        _adapt,
        "Turn an adversarial review's output into a verdict: exit 0 APPROVE, 1 REQUEST_CHANGES, 2 malformed.",
        flags=(
            Flag("--input", "F", "the output to judge (default: stdin)"),
            Flag("--input-mode", "MODE", "how it was produced (default: plugin-json)", choices=_MODES),
        ),
        example="gatebook gate adapt --input review.json\ncodex exec … | gatebook gate adapt --input-mode raw",
    ),
    "gate run": Command(
        _run,
        "Run an adversarial reviewer once and judge it: exit 0 APPROVE or a controlled SKIP, 1 REQUEST_CHANGES.",
        flags=(
            Flag("--focus-file", "F", "UTF-8 text for the producer's stdin", required=True),
            Flag(
                "--producer",
                "CMD",
                "the command that reviews (split as a shell would; no shell runs)",
                required=True,
            ),
            Flag("--timeout", "S", "seconds until it is stopped (default: 600)", number=True),
        ),
        example="gatebook gate run --focus-file focus.txt --producer 'node companion.mjs adversarial-review --json'",
    ),
}
