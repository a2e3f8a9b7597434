"""What the examples of `--help` need in order to run: each story is a scratch project in which they are typed.

A step that is a command's name stands for the lines of that command's example; any other step is a line of shell, where
`field NAME` reads a text field out of JSON. In the examples the placeholders of `PLACEHOLDERS` are replaced.
RUBRIC, REQUEST, PLAN and REVIEW put the files of that kind of work into the project.
"""

from __future__ import annotations

PLACEHOLDERS = {
    "2026-11-30": '"$TODAY"',
    "2026-12-01T12:00:00Z": '"$LATER"',
    "0123456789abcdef0123456789abcdef": '"$ID"',
    "--owner TOKEN": '--owner "$TOKEN"',
    "0f8a…": '"$UUID"',
    "/srv/witness": "witness",
    "receipt/4f1c": 'receipt/"$ID"',
}

STORIES: dict[str, list[str]] = {
    "a ledger": [
        "init", "append", "log", "show", "verify", "replay", "rebuild", "query", "state", "schema", "completion",
        "mkdir ~/kept",
        "for n in $(seq 15); do echo '{\"stream\":\"x-notes/1\",\"type\":\"x.note.added\"}'; done | gatebook append --batch -",
        "checkpoint", "gatebook checkpoint --key > ~/kept/ledger.vkey", "prove", "check-proof",
        "witness init",
        "cp ~/kept/checkpoint.txt . && gatebook witness cosign checkpoint.txt --dir witness",
        "gatebook append --stream x-notes/1 --type x.note.added && gatebook checkpoint --out new.txt",
        "gatebook prove --consistency checkpoint.txt new.txt --out growth.proof && mv new.txt checkpoint.txt",
        "witness cosign", "backup", "export", "rm ledger.jsonl", "import", "trust", "doctor",
    ],
    "content that must go": ["gatebook init", "redact"],
    "a move to another machine": ["gatebook init", "resume"],
    "routes": [
        "RUBRIC", "rubric check", "rubric path", "route validate", "route select", "route record-failure", "route record-success",
        "gatebook route record-failure --provider openai --executor codex --reason rate_limit",
        "export GATEBOOK_LEDGER=$XDG_STATE_HOME/gatebook/provider-health.json.gatebook", "diff", "route reset",
    ],
    "a dispatch": [
        "gatebook init", "RUBRIC", "cp rubric.yaml .gatebook/", "REQUEST", "dispatch approve", "dispatch open",
        "ID=$(gatebook dispatch open request.json | field id)",
        "dispatch select", "dispatch attempt", "echo notes > NOTES.md; echo done > report.md",
        "dispatch returned", "dispatch verify", "dispatch conclude", "dispatch run",
    ],
    "a plan run": [
        "gatebook init", "PLAN", "export CODEX_THREAD_ID=s1", "plan parse", "plan record", "plan statement", "plan approve",
        "run claim", "run prepare-results", "run next", "guard stop", "run execute", "run pause", "run report", "run deliver",
        "run finalize", "run recover", "timeline",
    ],
    "hooks": ["gatebook init", "guard capture", "hooks install", "hooks uninstall"],
    "receipts": [
        "gatebook init", "mkdir -p $WORK", "echo PASS > $WORK/verification.log", "echo text > $WORK/draft.md",
        "echo '{\"status\":\"draft_ready\",\"draft_path\":\"draft.md\"}' > $WORK/result.json",
        "receipt issue",
        "export CODEX_THREAD_ID=s1", "receipt check", "receipt consume", "mv r.json spent.json", "unset CODEX_THREAD_ID",
        "ID=$(field receipt_id < spent.json)", "receipt show", "trace",
        "gatebook receipt issue $AT --target-type automation_template --target t --action assignment.submit_text --out t.json",
        "receipt delegate", "ID=$(field receipt_id < r.json)", "receipt revoke", "mv r.json child.json",
        "gatebook receipt issue $AT --target-type quiz --target 7 --action quiz.start --action quiz.complete --action quiz.retake --out r.json",
        "export CODEX_THREAD_ID=s1",
        "for a in start complete; do gatebook receipt consume r.json $PLACE --target-type quiz --target 7 --action quiz.$a --work-dir $WORK; done",
        "receipt finalize",
    ],
    "authority": [
        "gatebook init", "authority show", "mkdir -m 700 ~/.ssh", "ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519",
        "ssh-keygen -q -t ed25519 -N '' -f spare", '{ echo "ada $(cat ~/.ssh/id_ed25519.pub)"; echo "ada $(cat spare.pub)"; } > signers',
        "authority require", "authority signers", "authority rotate",
    ],
    "a review session, step by step": [
        "gatebook init", "REVIEW", "TOKEN=$(gatebook session start --plan plan.md --title 'Add retries' --owner-pid $$ | field owner)", "UUID=${TOKEN%%.*}", "session status", "round start",
        "echo 'x = 2' > src/a.py", "session check-report", "cp report.md executor.md", "round executed", "round reviewed",
        "gate adapt", "gatebook gate adapt --input review.json > gate.txt", "gate record",
        "for s in static-analysis code-review; do gatebook polish step $s --owner $TOKEN --report r.md; done", "polish step",
        "for s in test-consolidation summary; do gatebook polish step $s --owner $TOKEN --report r.md; done",
        "gatebook docs step project-docs --owner $TOKEN --report r.md", "docs step", "security scan", "session deliver",
    ],
    "review sessions": [
        "gatebook init", "REVIEW", "session start",
        'TOKEN=$(field owner < "$OUT")', "session end", "session run", "gate run",
    ],
}  # fmt: skip

# What takes more than a scratch project, and where it is run instead.
UNTOLD = {
    "serve": "serves until it is stopped: tests/commands/test_serve.py",
    "sync": "needs a NATS server: tests/ledger/test_fleet_store.py",
    "tour": "the README's first command, run by tests/commands/test_tour.py",
    "bench": "fills a ledger for fifteen seconds: make bench",
    "codex check": "needs Codex: tests/commands/dispatch/test_codex_real.py",
    "codex dispatch": "needs Codex: tests/commands/dispatch/test_codex_real.py",
}
