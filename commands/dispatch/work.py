"""One open request, and the steps that may be taken with it; each step is one event."""

from __future__ import annotations

import os

from commands.dispatch.ceiling import READ_ONLY
from commands.dispatch.manifest import digest_of_paths
from commands.dispatch.packet import packet_of
from commands.dispatch.pins import Comparison, compare_pins, take_pins
from commands.dispatch.preflight import Stop, check_request, oracle_files
from commands.dispatch.record import Record, stream_of
from commands.dispatch.request import Malformed, identity, listed, parse_request
from commands.dispatch.result import Evidence, result_of
from ledger.errors import GatebookError, Invalid, Refused
from projections.dispatch_events import (
    SKIPS,
    Attempted,
    Concluded,
    Needed,
    Passed,
    Requested,
    Returned,
    Selected,
    Verified,
    mark,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from commands.dispatch.ceiling import Ceiling
    from commands.dispatch.circuits import Named
    from commands.dispatch.request import Request
    from commands.dispatch.returned import Returned as Outcome
    from commands.dispatch.routing import Selection
    from commands.dispatch.rubric import Row
    from ledger.access import Ledger
    from ledger.event import Origin
    from projections.dispatch import State

MAX_SHOWN_FILES = 1000
_EMPTY = {"report": "", "report_path": "", "files": [], "usage": ""}


class Work(Record):
    """An open request: what it asks, its ceiling, and its steps."""

    __slots__ = ("ceiling", "oracle", "request")

    def __init__(self, record: Record, request: Request, ceiling: Ceiling, oracle: list[str]) -> None:
        super().__init__(record.ledger, record.origin, record.stream)
        self.request = request
        self.ceiling = ceiling
        self.oracle = oracle

    def selected(self, chosen: Selection, named: Named) -> None:
        """Record the candidate of the next attempt."""
        passed = tuple(Passed(reference, reason) for reference, reason in chosen.skips if reason in SKIPS)
        data = Selected(
            chosen.row.reference, chosen.row.provider, chosen.endpoint.partition("|")[2], chosen.resolution,
            chosen.reason or "", tuple(chosen.skipped), passed, chosen.probe, named.ledger, named.seq, named.hash,
        )  # fmt: skip
        self.add("route.selected", data)

    def packet(self, row: Row, *, recalled: str = "", sandbox: str = "") -> dict[str, Any]:
        """What the worker is told; `sandbox` where it is narrower than the request's."""
        state = self.state
        assert state.request is not None
        marks = {
            item.what: mark(state.request.request, item.what) for item in self.request.authority.approvals
        }
        approved = {what: state.approvals[name][0] for what, name in marks.items() if name in state.approvals}
        return packet_of(
            self.request, row, sandbox=sandbox or self.ceiling.sandbox, approved=approved, recalled=recalled
        )

    def attempted(self, row: Row, packet: dict[str, Any], worker: str = "", sandbox: str = "") -> Attempted:
        """Pin what must not change and record that the selected candidate is set to work; nothing may run before this."""
        from blake3 import blake3

        from commands.context import dumps
        from ledger.credentials import find_credential

        state = self.state
        if state.selection is None or state.request is None:
            raise Refused(f"{self.stream}: no candidate is selected; `gatebook dispatch select` comes first")
        try:
            pins = take_pins(self._ceiling(sandbox), self._own_folders())
        except GatebookError as error:
            raise Stop("directory", str(error)) from None
        if find_credential(dumps(pins).encode()) is not None:
            raise Stop("secret", "a file name in the working directory looks like a credential; rename it")
        number = len(state.attempts) + 1
        narrow = sandbox == READ_ONLY
        data = Attempted(
            number, row.reference, state.selection.provider, state.selection.executor, sandbox or self.ceiling.sandbox,
            worker or f"worker:{self.stream.partition('/')[2][:12]}-{number}", blake3(dumps(packet).encode()).hexdigest(),
            blake3(dumps(pins).encode()).hexdigest(), () if narrow else state.request.paths, state.request.tools,
            state.granted(),
        )  # fmt: skip
        self.add("dispatch.attempted", data, {"packet": packet, "pins": pins})
        return data

    def _ceiling(self, sandbox: str) -> Ceiling:
        """The request's ceiling, without a path to write to for an attempt that is narrower than it."""
        return self.ceiling.read_only() if sandbox == READ_ONLY else self.ceiling

    def _own_folders(self) -> list[str]:
        """Where gatebook itself writes while a worker works."""
        from ledger.home import state_dir

        return [self.ledger.folder, state_dir()]

    def compared(self) -> Comparison:
        """What changed since the open attempt began; taken before we write anything ourselves."""
        attempt = self.state.open_attempt
        if attempt is None:
            raise Refused(f"{self.stream}: no attempt is open")
        event = self.ledger.store.reader().event(attempt.seq)
        assert event is not None
        pins = self.content(event)["pins"]
        try:
            asked = self.request.authority  # every approval it names is on record: admission saw to it
            return compare_pins(
                self._ceiling(attempt.sandbox), pins, [*asked.tools, *(item.what for item in asked.approvals)]
            )
        except GatebookError as error:  # what can no longer be looked at was not left as it was
            return Comparison([], "refs", str(error))

    def returned(self, outcome: Outcome, seen: Comparison, named: Named, report_path: str = "") -> Returned:
        """Record how the open attempt ended, and what it changed."""
        from ledger.credentials import locate_credential

        attempt = self.state.open_attempt
        if attempt is None:
            raise Refused(f"{self.stream}: no attempt is open")
        unchanged = self._unchanged(seen.files) if outcome.status == "succeeded" else []
        target, _ = digest_of_paths(listed(self.request.verification.fixed_target), self.ceiling.folder)
        why = [outcome.why] if outcome.why else []
        if seen.violation:
            why.append(f"authority failure: {seen.detail}")
        why += [f"{artifact} did not change" for artifact in unchanged]
        shown = [os.path.relpath(path, self.ceiling.folder) for path in seen.files[:MAX_SHOWN_FILES]]
        content: dict[str, Any] = {
            "report": outcome.report,
            "report_path": report_path,
            "files": shown,
            "usage": outcome.usage,
            "why": why,
        }
        violation = seen.violation
        if locate_credential(content) is not None:  # a file's name, or what an agent says it used
            violation = violation or "path"
            content = {
                **_EMPTY,
                "why": ["authority failure: what it left carries what looks like a credential"],
            }
        data = Returned(
            attempt.number, outcome.ending, target, outcome.reason or "", printed(outcome.retry_at), violation, len(seen.files),
            len(unchanged), outcome.healthy, named.ledger, named.seq, named.hash,
        )  # fmt: skip
        self.add("dispatch.returned", data, content)
        return data

    def _unchanged(self, changed: list[str]) -> list[str]:
        from commands.dispatch.ceiling import inside

        # By its name and by where it leads: either may be what changed.
        places = {a: os.path.normpath(os.path.join(self.ceiling.folder, a)) for a in self.request.artifacts}
        return [
            artifact
            for artifact, place in places.items()
            if not any(inside(path, top) for path in changed for top in (place, os.path.realpath(place)))
        ]

    def verified(self, timeout: float) -> Verified:
        """Run the seam ourselves and record what it proved."""
        from commands.dispatch.processes import run_bounded
        from ledger.credentials import find_credential

        state, asked = self.state, self.request.verification
        attempt = state.last
        if attempt is None or not attempt.good:
            raise Refused(f"{self.stream}: nothing has returned that could be verified")
        targets = listed(asked.fixed_target)
        early, _ = digest_of_paths(targets, self.ceiling.folder)
        ended = run_bounded(
            self.request.seam,
            cwd=self.request.authority.working_directory,
            timeout=timeout,
            wanted=asked.expected.contains or "",
        )
        late, shown = digest_of_paths(targets, self.ceiling.folder)
        oracle, _ = digest_of_paths(self.oracle, self.ceiling.folder)
        withheld = find_credential(ended.output) is not None
        target = late if early == attempt.target else early
        assert state.request is not None
        exited = ended.code is not None and ended.code >= 0
        held = exited and ended.code == asked.expected.exit and ended.found and not withheld
        data = Verified(
            attempt.number, held and target == attempt.target and oracle == state.request.oracle,
            "exit" if exited else (ended.why or "killed"), target, oracle, ended.code if exited and ended.code else 0,
            asked.expected.exit, ended.found, withheld, ended.size,
        )  # fmt: skip
        check = {
            "seam": asked.seam if isinstance(asked.seam, str) else list(asked.seam),
            "exit": ended.code,
            "ended": data.ended,
            "expected": {"exit": asked.expected.exit, "contains": asked.expected.contains},
            "output": "" if withheld else ended.output.decode("utf-8", "replace"),
            "output_size": ended.size,
            "target_unchanged": target == attempt.target,
            "oracle_unchanged": oracle == state.request.oracle,
            "passed": data.proven,
        }
        self.add("dispatch.verified", data, {"checks": [check], "fixed_target": shown})
        return data

    def evidence(self, state: State) -> Evidence:
        """What the newest return and verification of this run left."""
        known = Evidence()
        returned = self.newest("dispatch.returned", state.requested_seq)
        if returned is not None:
            content = self.content(returned)
            known.files, known.usage = content["files"], content["usage"]
            known.report = content["report_path"] or content["report"]
        verified = self.newest("dispatch.verified", state.requested_seq)
        if verified is not None and state.verified_seq == verified.seq:
            content = self.content(verified)
            known.checks, known.fixed_target = content["checks"], content["fixed_target"]
        return known

    def why(self, state: State) -> list[str]:
        """Why the newest return or verification is no success, in our own words."""
        reasons: list[str] = []
        returned = self.newest("dispatch.returned", state.requested_seq)
        if returned is not None:
            reasons += self.content(returned)["why"]
        if state.verified_seq and not state.proven:
            reasons += [_why_unproven(check) for check in self.evidence(state).checks]
        return reasons

    def concluded(self, status: str, blockers: list[str] | None = None, project: str = "") -> dict[str, Any]:
        """Record the end of this run; returns the complete result. `project`: memory's, when it is used."""
        state = self.state
        evidence = self.evidence(state)
        evidence.project = project
        found = result_of(
            status, [] if status == "accepted" else [*self.why(state), *(blockers or [])], requested=self.request.route, state=state,
            evidence=evidence, elapsed=self.elapsed(state),
        )  # fmt: skip
        self.add("dispatch.concluded", Concluded(status, len(state.attempts)), found)
        return found


def printed(moment: int | None) -> str:
    """A moment as events hold it, empty for none."""
    from projections.times import print_time

    return "" if moment is None else print_time(moment)


def _why_unproven(check: dict[str, Any]) -> str:
    if check["ended"] != "exit":
        return f"verification: the seam ended without an exit status ({check['ended']})"
    if not check["target_unchanged"]:
        return "verification: fixed_target changed after the return"
    if not check["oracle_unchanged"]:
        return "verification: the seam's own files changed since the request"
    if check["exit"] != check["expected"]["exit"]:
        return f"verification: the seam exited with {check['exit']}, expected {check['expected']['exit']}"
    if not check["output"] and check["output_size"]:
        return "verification: the seam's output carries what looks like a credential"
    return "verification: the expected text is not in the seam's output"


def open_request(ledger: Ledger, origin: Origin, found: dict[str, Any], raw: bytes) -> Work:
    """Record the request as open, or find it open already; Stop or Malformed when it is blocked (not recorded yet)."""
    name = identity(found)
    record = Record(ledger, origin, stream_of(name))
    request = parse_request(found)
    if record.state.phase == "open":
        return load_work(record)
    ceiling = check_request(request)
    oracle = oracle_files(request, ceiling)
    data = _requested(name, raw, request, ceiling, oracle)
    try:
        record.add("dispatch.requested", data, {"request": found, "oracle": oracle})
    except Invalid as error:  # a route of 64 KiB, thousands of paths or tools
        raise Malformed(f"the request names more than an event can hold: {error}", request.route) from None
    return Work(record, request, ceiling, oracle)


def _requested(name: str, raw: bytes, request: Request, ceiling: Ceiling, oracle: list[str]) -> Requested:
    from blake3 import blake3

    authority = request.authority
    return Requested(
        name,
        blake3(raw).hexdigest(),
        len(raw),
        request.route,
        request.context.mode,
        ceiling.sandbox,
        blake3(os.fsencode(ceiling.folder)).hexdigest(),
        digest_of_paths(oracle, ceiling.folder)[0],
        paths=tuple(sorted(mark(name, path) for path in ceiling.allowed)),
        tools=tuple(sorted(mark(name, tool) for tool in set(authority.tools))),
        approvals=tuple(
            Needed(mark(name, item.what), item.approval_seq or 0) for item in authority.approvals
        ),
        artifacts=len(request.artifacts),
        repeatable=request.repeatable,
        authoring_providers=request.authoring_providers,
    )


def load_work(record: Record) -> Work:
    """The open request of a stream, from what was recorded of it.

    Raises:
        Refused: it is not open, its content was redacted, or its directory or paths are no longer what they were.
    """
    state = record.state
    if state.phase != "open" or state.request is None:
        raise Refused(f"{record.stream} is {state.phase}; `gatebook dispatch open REQUEST.json` opens it")
    event = record.ledger.store.reader().event(state.requested_seq)
    assert event is not None
    content = record.content(event)
    request = parse_request(content["request"])
    ceiling = check_request(request)
    marks = tuple(sorted(mark(state.request.request, path) for path in ceiling.allowed))
    if marks != state.request.paths or ceiling.sandbox != state.request.sandbox:
        raise Stop("paths", "authority.allowed_paths lead elsewhere than when the request was opened")
    return Work(record, request, ceiling, content["oracle"])


def find_work(ledger: Ledger, origin: Origin, name: str) -> Work:
    """The open request with this id; Refused when there is none."""
    return load_work(Record(ledger, origin, stream_of(name)))
