"""Measure everything and write docs/performance.md: `.venv/bin/python tools/bench/report.py [EVENTS] [--quick]`.

Runs the rows of `gatebook bench` on a ledger of EVENTS events (1,000,000), then `audit.py`, `peers.py` and `fleet.py`
beside this file (shortened by --quick) where they can run here, one after the other on an otherwise idle machine.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(HERE, "..", "..", "docs", "performance.md")
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def _table(rows: list[dict]) -> list[str]:
    lines = ["| work | measured | limit | kept | in figures |", "|---|---|---|---|---|"]
    for row in rows:
        sign = "<=" if row["at_most"] else ">="
        kept = "yes" if row["kept"] else "**no**"
        lines.append(
            f"| {row['work']} | {_shown(row['measured'])} {row['unit']} | {sign} {_shown(row['limit'])} {row['unit']} | {kept} | {row['detail']} |"
        )
    return lines


def _foundation(events: int) -> list[dict]:
    from commands.bench import measure

    rows = []
    for row in measure(events=events):
        rows.append(row.as_json())
        print(json.dumps(rows[-1]), flush=True)
    return rows


def _beside(name: str, *, quick: bool) -> list[dict] | None:
    path = os.path.join(HERE, name)
    if not os.path.exists(path):
        return None
    command = [sys.executable, path, "--json", *(["--quick"] if quick else [])]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=1800)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0 or not done.stdout.strip():
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])["rows"]


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--quick"]
    events, quick = int(words[0]) if words else 1_000_000, "--quick" in sys.argv
    import apsw

    where = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}"
    lines = [
        BEGIN,
        "",
        f"Measured {time.strftime('%Y-%m-%d', time.gmtime())} on {where}, ledger of {events:,} events of about 300 bytes.",
        "",
    ]
    lines += _table(_foundation(events))
    for name, title in (
        ("audit.py", "Audit, time travel and steps"),
        ("peers.py", "Against peers from PyPI"),
        ("fleet.py", "On JetStream"),
    ):
        rows = _beside(name, quick=quick)
        if rows is not None:
            lines += ["", f"### {title}", "", *_table(rows)]
    lines += ["", END]
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(before + "\n".join(lines) + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
