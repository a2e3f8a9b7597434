"""`gate adapt`, `gate run` and `session check-report` as processes."""

import json
import os
import subprocess
import sys

import pytest

from commands.sessions.config import DEFAULT_SKIP_PATHS, load_config, parse_config
from ledger.errors import Invalid

APPROVAL = json.dumps({"verdict": "approve", "summary": "ünd", "findings": [], "next_steps": []})


def gatebook(*args, data=b"", cwd=".", **env):
    path = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    environment = {**os.environ, "PYTHONPATH": path, **env}
    return subprocess.run(
        [sys.executable, "-m", "commands", *args], input=data, cwd=cwd, capture_output=True, env=environment
    )


def test_adapt_reads_a_file_or_stdin_and_says_why_on_stderr(tmp_path):
    file = tmp_path / "in.json"
    file.write_text(APPROVAL)
    done = gatebook("gate", "adapt", "--input", str(file))
    assert (done.returncode, done.stdout.decode()) == (0, "adversarial-gate: APPROVE\n\nSummary: ünd\n")
    done = gatebook(
        "gate", "adapt", "--input-mode", "raw", data=b"so:\n" + APPROVAL.encode(), PYTHONIOENCODING="ascii"
    )
    assert done.returncode == 0
    for bad in (
        gatebook("gate", "adapt", data=b"{"),
        gatebook("gate", "adapt", "--input", str(tmp_path / "gone")),
    ):
        assert (bad.returncode, bad.stdout) == (2, b"")
        assert bad.stderr.startswith(b"gatebook: ")
    assert gatebook("gate", "adapt", "--input-mode", "yaml").returncode == 2


def test_check_report_prints_one_document_and_exits_by_it(tmp_path):
    text = b"### VERDICT: APPROVE\n\n### Strengths\nx\n"
    done = gatebook("session", "check-report", "--role", "reviewer", "-", data=text)
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "valid": True,
        "reason": None,
        "detail": None,
        "verdict": "APPROVE",
        "noop": None,
    }
    done = gatebook("session", "check-report", "--role", "executor", data=text)
    assert done.returncode == 1
    assert json.loads(done.stdout)["reason"] == "missing-section"
    assert gatebook("session", "check-report", data=text).returncode == 2
    assert gatebook("session", "check-report", "--role", "reviewer", data=b"\xff").returncode == 1


@pytest.mark.parametrize(
    "words",
    [
        ("gate", "run", "--focus-file", "focus", "--producer", "true"),
        ("session", "run", "--review-only", "--executor", "true", "--reviewer", "true"),
    ],
)
def test_no_time_at_all_is_a_wrong_call_and_not_the_default(tmp_path, words):
    (tmp_path / "focus").write_text("look")
    done = gatebook(*words, "--timeout", "0", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--timeout: 0 seconds" in done.stderr


def test_gate_run_as_a_process(git, tmp_path):
    focus = tmp_path / "focus"
    focus.write_text("f")
    producer = tmp_path / "p.py"
    producer.write_text(f"print({APPROVAL!r})")
    command = ("gate", "run", "--focus-file", str(focus), "--producer", f"{sys.executable} {producer}")
    done = gatebook(*command, cwd=git.root)
    assert (done.returncode, done.stdout.decode().splitlines()[0]) == (0, "adversarial-gate: APPROVE")
    done = gatebook(*command[:-1], "gone", cwd=git.root)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.startswith(b"adversarial-gate: SKIP reason=plugin-root-unresolved detail=gone")
    (git.root / "docs/protocol").mkdir(parents=True)
    (git.root / "docs/protocol/a.md").write_text("x")
    done = gatebook(*command, cwd=git.root)
    assert (done.returncode, done.stderr) == (0, b"adversarial-gate: SKIP reason=skipped-by-config\n")
    (git.root / "b").write_text("x")
    assert gatebook(*command, cwd=git.root).stdout.startswith(b"adversarial-gate: APPROVE")


CONFIG = """# Settings
auto_commit: true
commit_message_prefix: "fix"
soft_limit_exec: 5
review_focus: |
  Locking.
    Deeper.

  End.
- reviewer: codex
adversarial_gate_skip_paths: ["a/**", "b"]
Some prose: here
odd_key: 1
lint_command: make lint
"""


def _load(tmp_path, monkeypatch, text, user=None):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    (tmp_path / ".review-loop").mkdir(exist_ok=True)
    (tmp_path / ".review-loop/config.md").write_text(text)
    if user is not None:
        (tmp_path / "xdg/gatebook").mkdir(parents=True)
        (tmp_path / "xdg/gatebook/config.md").write_text(user)
    return load_config(str(tmp_path))


def test_config_is_read_and_unknown_keys_warn(tmp_path, monkeypatch):
    config = _load(tmp_path, monkeypatch, CONFIG, "lint_command: make check\ntrusted_filters:\n- lfs\n")
    assert (config.auto_commit, config.commit_message_prefix, config.soft_limit_exec) == (True, "fix", 5)
    assert config.review_focus == "Locking.\n  Deeper.\n\nEnd."
    assert (config.reviewer, config.adversarial_gate_skip_paths) == ("codex", ["a/**", "b"])
    assert (config.lint_command, config.trusted_filters) == ("make check", ["lfs"])
    assert len(config.warnings) == 2
    assert "odd_key" in config.warnings[0]
    assert "user's own" in config.warnings[1]


def test_a_known_key_in_another_spelling_warns_too(tmp_path, monkeypatch):
    config = _load(
        tmp_path, monkeypatch, "Auto_Commit: true\nauto-commit: true\n  auto_commit: true\nNote: x\n"
    )
    assert not config.auto_commit
    assert len(config.warnings) == 3


def test_a_block_may_begin_with_a_comment_or_a_dash(tmp_path, monkeypatch):
    text = "review_focus: |  # what to look at\n  Locking.\nreview_style: |-\n  Short.\nauto_commit: true\n"
    config = _load(tmp_path, monkeypatch, text.replace("|  #", "| #"))
    assert (config.review_focus, config.review_style, config.auto_commit) == ("Locking.", "Short.", True)
    assert _load(tmp_path, monkeypatch, text).review_focus == "Locking."


def test_without_a_file_the_defaults_hold(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    config = load_config(str(tmp_path))
    assert (config.soft_limit_exec, config.reviewer, config.auto_commit) == (3, "claude", False)
    assert tuple(config.adversarial_gate_skip_paths) == DEFAULT_SKIP_PATHS


@pytest.mark.parametrize(
    "line",
    ["auto_commit: yes", "soft_limit_exec: 0", "soft_limit_exec: 1e3", "reviewer: gpt", "context_persist_threshold: -1", "context_persist_threshold: 101", "context_persist_threshold: 00001000",
     "executor_model: two words", 'adversarial_gate_skip_paths: ["a"', "soft_limit_exec: " + "9" * 5000],
)  # fmt: skip
def test_a_bad_value_is_an_error_that_names_its_line(tmp_path, monkeypatch, line):
    with pytest.raises(Invalid, match=r"config\.md, line 2: "):
        _load(tmp_path, monkeypatch, f"# x\n{line}\n")


@pytest.mark.parametrize(
    ("executor", "judgment", "model"),
    [("a", "b", "a"), ("inherit", "b", "b"), ("", "b", "b"), ("inherit", "", "")],
)
def test_the_executors_model(tmp_path, monkeypatch, executor, judgment, model):
    lines = [f"{k}: {v}" for k, v in (("executor_model", executor), ("judgment_model", judgment)) if v]
    assert _load(tmp_path, monkeypatch, "\n".join(lines)).model == model


def test_the_older_tools_own_template_is_understood(tmp_path, monkeypatch):
    text = (
        'reviewer: claude                # shared key\nreviewer_model: ""   # unset\nexecutor_model: inherit # falls through\n'
        'commit_message_prefix: "fix # 1"  # quoted\ndocs_file:   # none\nsoft_limit_exec: 4\n'
        'adversarial_gate_skip_paths:\n  - "**/SKILL.md"\n  - "docs/**"\n# context_persist_threshold: 25\nauto_commit: true\n'
    )
    config = _load(tmp_path, monkeypatch, text)
    assert config.warnings == []
    assert (config.reviewer, config.reviewer_model, config.model) == ("claude", "", "")
    assert (config.commit_message_prefix, config.docs_file, config.soft_limit_exec) == ("fix # 1", "", 4)
    assert (config.adversarial_gate_skip_paths, config.auto_commit) == (["**/SKILL.md", "docs/**"], True)
    assert config.context_persist_threshold == 70


def test_lists_may_be_written_as_bullets():
    assert parse_config("adversarial_gate_skip_paths:\n- a\n- b\nhandsfree: true\n")[0][2] == "- a\n- b"
