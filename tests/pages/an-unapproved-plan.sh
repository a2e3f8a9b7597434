# Today's run folder with a plan of three items that nobody has approved, in a git repository, for an agent session.
run=runs/2026-11-30
mkdir -p $run && git init -q -b main .
python3 - $run <<'END'
import datetime as dt, json, sys
now, run = dt.datetime.now(dt.timezone.utc), sys.argv[1]
item = {"bucket": "soon", "course_id": 100, "course_name": "Algorithms", "due_at": None, "hours_left": 40.0,
        "live_state": "unsubmitted", "proposed_skill": "canvas-generic", "user_decision": None}
items = [{"index": n, "assignment_id": 200 + n, "assignment_name": f"Set {n}", **item} for n in (1, 2, 3)]
plan = {"generated_at": now.isoformat(), "expires_at": (now + dt.timedelta(hours=20)).isoformat(), "items": items}
json.dump(plan, open(f"{run}/plan.json", "w"))
seen = {"course_id": 100, "skill": "canvas-generic", "submission_types": ["online_upload"]}
json.dump([{**seen, "assignment_id": item["assignment_id"]} for item in items], open(f"{run}/assignments.json", "w"))
END
export CODEX_THREAD_ID=s1
command -v sqlite3 > /dev/null || sqlite3() { python3 -c 'import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript(sys.argv[2])' "$@"; }
