"""What README.md and the pages of docs/ show is what happens: their blocks are run, from the top of a page to its end.

Each page has one scratch directory, one shell and a home of its own. What a block's name says is done with it:

sh       run with `set -e`; the next json or ndjson block, if one follows directly, shows parts of what it printed last
console  each line after `$ ` is run, `> ` goes on with it, the lines below are what it prints; exit status 0, or the N of a final `# exit N`

The day 2026-11-30 stands for today. In what is shown, `…` stands for anything, and times, hashes and ids for any time, hash and id. An HTML comment changes this:

<!-- setup …lines of shell… -->   is run too; the reader does not see it
<!-- setup: NAME -->               the same, with the lines of tests/pages/NAME.sh
<!-- not run: reason -->           the block after it is not run
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PART = re.compile(
    r"<!-- setup: (?P<named>[a-z-]+) -->$|<!-- setup\n(?P<setup>.*?)^-->$|<!-- not run: (?P<reason>[^\n]+) -->\n+```\w*\n.*?^```$|^```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MARK = "-- the next command of the page --"
VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b(?=[0-9a-f]*\d)[0-9a-f]{8,64}\b"
)
PAGES = [
    "README.md",
    *sorted(f"docs/{name}" for name in os.listdir(os.path.join(ROOT, "docs")) if name.endswith(".md")),
]


class Command:
    """One thing that is run, and what the page says of it."""

    def __init__(self, script, *, strict=True):
        self.script = script
        self.strict = strict  # a failure ends the page
        self.exit = 0
        self.kind = None
        self.shown = ""


def commands_of(text):
    found = []
    for part in PART.finditer(text):
        kind, block = part["kind"], part["text"]
        if part["named"] is not None:
            with open(os.path.join(ROOT, "tests", "pages", f"{part['named']}.sh"), encoding="utf-8") as file:
                found.append(Command(file.read()))
        elif part["setup"] is not None:
            found.append(Command(part["setup"]))
        elif kind == "sh":
            found.append(Command(block))
        elif kind == "console":
            found += console(block)
        elif kind in ("json", "ndjson") and found and found[-1].kind is None and found[-1].strict:
            found[-1].kind, found[-1].shown = kind, block
    return found


def console(block):
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], strict=False))
            found[-1].kind = "console"
        elif found and not found[-1].shown and line.startswith("> "):
            found[-1].script += "\n" + line[2:]
        else:
            assert found, f"a console block begins with `$ `: {line}"
            found[-1].shown += line + "\n"
    for command in found:
        wanted = re.search(r"\s# exit (\d+)$", command.script)
        command.exit = int(wanted[1]) if wanted else 0
    return found


def of_today(text):
    return text.replace("2026-11-30", f"{dt.datetime.now(dt.UTC):%Y-%m-%d}")


def script_of(commands):
    lines = ["set -eu"]
    for command in commands:
        if command.strict:
            lines += [command.script, "status=0"]
        else:
            lines += ["status=0", f"{{ {command.script}\n}} 2>&1 || status=$?"]
        lines.append(f"printf '\\n%s %d\\n' '{MARK}' $status")
    return of_today("\n".join(lines) + "\n")


def plain(text):
    return VOLATILE.sub("@", "\n".join(line.rstrip() for line in text.strip("\n").splitlines()))


def like(shown, real):
    parts = [re.escape(part) for part in re.split(r"…|\.\.\.", plain(shown))]
    return re.fullmatch(".*".join(parts), plain(real), re.DOTALL) is not None


def holds(shown, real):
    """Whether everything shown stands in the real answer; more may stand beside it."""
    if isinstance(shown, dict):
        return isinstance(real, dict) and all(
            name in real and holds(shown[name], real[name]) for name in shown
        )
    if isinstance(shown, list):
        return isinstance(real, list) and len(shown) == len(real) and all(map(holds, shown, real))
    if isinstance(shown, str) and isinstance(real, str):
        return like(shown, real)
    return shown == real


@pytest.fixture
def shell(tmp_path):
    programs, home = tmp_path / "bin", tmp_path / "home"
    programs.mkdir()
    home.mkdir()
    for name, words in (("gatebook", "-m commands "), ("python3", "")):
        call = f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" {words}"$@"\n'
        (programs / name).write_text(call)
        (programs / name).chmod(0o755)
    names = ("CODEX_THREAD_ID", "CODEX_SESSION_ID", "CLAUDECODE", "GATEBOOK_LEDGER", "SSH_AUTH_SOCK")
    around = {name: text for name, text in os.environ.items() if name not in names}
    around |= {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(home),
        "TZ": "UTC",
        "GATEBOOK_ACTOR": "cli:you",
    }
    around |= {f"XDG_{name.upper()}_HOME": str(home / name) for name in ("state", "cache", "config")}
    for role in ("AUTHOR", "COMMITTER"):
        around |= {f"GIT_{role}_NAME": "You", f"GIT_{role}_EMAIL": "you@example.org"}
    (tmp_path / "here").mkdir()

    def run(script):
        path = tmp_path / "page.sh"
        path.write_text(script)
        argv = ["bash", str(path)]
        return subprocess.run(
            argv,
            cwd=tmp_path / "here",
            env=around,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
        )

    return run


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_is_what_happens(page, shell):
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        commands = commands_of(file.read())
    if not commands:
        return
    done = shell(script_of(commands))
    answers = re.split(rf"\n{re.escape(MARK)} (\d+)\n", done.stdout)
    for number, command in enumerate(commands):
        told = f"{page}: {command.script}"
        assert 2 * number + 1 < len(answers), (told, done.stdout[-2000:], done.stderr)
        answer, status = answers[2 * number], int(answers[2 * number + 1])
        assert status == command.exit, (told, answer)
        shown = of_today(command.shown)
        if command.kind == "console":
            assert like(shown, answer), f"{told}\nshown:\n{plain(shown)}\nreal:\n{plain(answer)}"
        elif command.kind == "json":
            assert holds(json.loads(shown), json.loads(answer.strip().splitlines()[-1])), (told, answer)
        elif command.kind == "ndjson":
            wanted, real = (
                [json.loads(line) for line in text.split("\n") if line] for text in (shown, answer)
            )
            assert holds(wanted, real), (told, answer)


def links():
    for page in (*PAGES, "CHANGELOG.md"):
        with open(os.path.join(ROOT, page), encoding="utf-8") as file:
            text = re.sub(r"^```.*?^```$", "", file.read(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" not in target:
                yield page, target


def anchors(path):
    with open(path, encoding="utf-8") as file:
        for heading in re.findall(r"^#+ (.+)$", file.read(), re.MULTILINE):
            yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_link_leads_to_a_page_and_a_heading_that_exist():
    for page, target in links():
        path, _, anchor = target.partition("#")
        found = (
            os.path.normpath(os.path.join(ROOT, os.path.dirname(page), path))
            if path
            else os.path.join(ROOT, page)
        )
        assert os.path.exists(found), (page, target)
        if anchor:
            assert anchor in anchors(found), (page, target)


def test_every_test_and_tool_that_a_page_names_exists():
    for page in PAGES:
        with open(os.path.join(ROOT, page), encoding="utf-8") as file:
            for named in re.findall(r"`((?:tests|tools)/[\w./-]+)`", file.read()):
                assert os.path.exists(os.path.join(ROOT, named)), (page, named)


def test_every_page_of_docs_is_reached_from_the_readme():
    reached = {target.partition("#")[0] for page, target in links() if page == "README.md"}
    assert {page for page in PAGES if page.startswith("docs/")} <= reached


def test_the_page_of_commands_is_the_help_of_the_program():
    done = subprocess.run(
        [sys.executable, os.path.join(ROOT, "tools", "make_cli_docs.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_comparison_of_what_is_shown_can_fail():
    """The test of the test: ellipsis, times and hashes match their like, and nothing else."""
    assert like("a … d\n", "a b\nc d\n")
    assert not like("a … d", "a b c")
    assert like(
        "at 2026-11-30T09:00:00Z, head 0123456789ab", "at 2027-01-01T00:00:00.123456Z, head fedcba987654"
    )
    assert not like("head 0123456789ab", "head none")
    assert holds({"a": [{"b": "x…"}]}, {"a": [{"b": "xyz", "c": 1}], "d": 2})
    assert not holds({"a": 1}, {"a": 2})
    assert not holds({"a": [1]}, {"a": [1, 2]})
    page = "```console\n$ false  # exit 1\n$ echo a \\\n> b\na b\n```\n<!-- not run: x -->\n```sh\nexit 9\n```\n<!-- setup\nx=1\n-->\n"
    found = commands_of(page)
    assert [(command.script, command.exit, command.shown) for command in found] == [
        ("false  # exit 1", 1, ""),
        ("echo a \\\nb", 0, "a b\n"),
        ("x=1\n", 0, ""),
    ]
