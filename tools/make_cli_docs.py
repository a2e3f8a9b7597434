"""Write docs/cli.md from the records that parse the command line; `--check` only says whether it is up to date."""

from __future__ import annotations

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from commands import entry, flags  # noqa: E402
from commands.table import COMMANDS, GROUPS  # noqa: E402

PAGE = os.path.join(ROOT, "docs", "cli.md")
INTRODUCTION = """# Commands

Generated from the program by `tools/make_cli_docs.py`: this is what `gatebook COMMAND --help` prints. Every example is run
by `tests/commands/test_help.py`, but for the few that need a server or Codex.

`gatebook [--ledger L] [--actor KIND:ID] [--log-format console|json] [--log-level L] COMMAND …`; the global options stand before the command.
Exit codes and environment variables are in the [README](../README.md#exit-codes).
"""


def page() -> str:
    parts = [INTRODUCTION]
    for title, names in GROUPS:
        parts.append(f"## {title}\n")
        parts += [f"- [`{name}`](#{name.replace(' ', '-')}): {COMMANDS[name][1]}" for name in names]
        parts.append("")
        for name in names:
            help_text = flags.help_text(name, entry.load(name)).strip()
            parts.append(f"### {name}\n\n```text\n{help_text}\n```\n")
    return "\n".join(parts)


def main() -> int:
    text = page()
    if "--check" not in sys.argv[1:]:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(text)
        return 0
    try:
        with open(PAGE, encoding="utf-8") as file:
            same = file.read() == text
    except FileNotFoundError:
        same = False
    if not same:
        sys.stderr.write("docs/cli.md is not what the program says: run tools/make_cli_docs.py\n")
    return 0 if same else 1


sys.exit(main())
