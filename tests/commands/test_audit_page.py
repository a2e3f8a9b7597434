"""docs/audit.md is complete; that what it shows is what happens is the business of `tests/test_docs.py`."""

from __future__ import annotations

import os

from commands.audit.queries import NAMED

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def page() -> str:
    with open(os.path.join(ROOT, "docs", "audit.md"), encoding="utf-8") as file:
        return file.read()


def test_every_named_query_is_on_the_page_with_what_it_answers_and_an_example():
    text = page()
    for name, query in NAMED.items():
        assert f"| `{name}` | {query.text} | `{query.example}` |" in text


def test_every_command_of_an_auditor_is_on_the_page():
    text = page()
    for name in ("verify", "replay", "checkpoint", "prove", "check-proof", "witness init", "witness cosign", "trace", "state", "diff", "query", "timeline", "serve", "redact", "backup"):  # fmt: skip
        assert f"gatebook {name}" in text or f"`{name}`" in text, name
