"""Provider health: circuits in a ledger, and the shared JSON file that is a view of them.

Contract page dispatch, Circuits. The ledger decides; the file is written after it, and read first, because
another tool may have written it since.
"""

from __future__ import annotations

import os
import stat

from commands.dispatch.healthfile import MAX_BYTES, parse_health, render
from ledger.errors import Invalid, Refused, Usage
from projections.times import print_time, whole_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from commands.context import Context
    from ledger.access import Ledger
    from projections.circuit import Health
    from projections.cooldowns import Circuit
    from projections.engine import Proposal, World


def _default_file(context: Context) -> str:
    """`$XDG_STATE_HOME/gatebook/provider-health.json`: health belongs to the user, not to a project.

    A fleet's circuits have theirs beside this machine's replica: else each machine's own health would be taken for a
    foreign edit of them, and close endpoints to all.
    """
    from ledger.home import state_dir

    ledger = context.ledger() if context.ledger_given is not None else None
    folder = ledger.folder if ledger is not None and ledger.store.url else state_dir()
    return os.path.join(folder, "provider-health.json")


def _read(path: str) -> bytes:
    # O_NONBLOCK: a FIFO given as the state file must not hang the step (under the ledger's lock).
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Refused(f"{path}: not a regular file, left as it is: not a health file")
        parts, size = [], 0
        while size <= MAX_BYTES and (part := os.read(handle, MAX_BYTES + 1 - size)):
            parts.append(part)
            size += len(part)
        return b"".join(parts)
    finally:
        os.close(handle)


def _in_whole_seconds(circuit: Circuit) -> Circuit:
    """As events and the view state times; another tool's fractions are no difference."""
    from projections.cooldowns import Circuit

    probe = circuit.probe_claimed_at
    return Circuit(
        circuit.reason,
        circuit.failure_count,
        whole_seconds(circuit.last_failure_at),
        whole_seconds(circuit.unavailable_until),
        None if probe is None else whole_seconds(probe),
    )


def check_state(path: str | None) -> None:
    """Usage for a --state that names no file; asked before any other file is read."""
    if path == "":
        raise Usage("--state must not be empty")


class HealthFile:
    """The JSON file at `path` and the ledger behind it; `raw` is what the file held when it was last read."""

    def __init__(self, path: str | None, context: Context) -> None:
        check_state(path)
        self.path = os.path.realpath(path or _default_file(context))
        self._context = context
        self._named = context.ledger_given is not None
        self.folder = f"{self.path}.gatebook"
        self.raw: bytes | None = None
        self._ledger: Ledger | None = None

    def ledger(self, *, create: bool) -> Ledger | None:
        """The ledger of these circuits: `--ledger`, else the one in `FILE.gatebook/`; None where it would be made."""
        if self._named:
            return self._context.ledger()
        if self._ledger is None and (create or os.path.lexists(os.path.join(self.folder, "ledger.db"))):
            from ledger.access import create_ledger, open_ledger

            if create:
                try:
                    os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
                except OSError as error:
                    raise Refused(
                        f"{os.path.dirname(self.path)}: {error.strerror}: no place for provider health"
                    ) from None
                self._ledger, _ = create_ledger(self.folder, self._context.origin())
            else:
                self._ledger = open_ledger(self.folder)
        return self._ledger

    def read(self) -> dict[str, Circuit] | None:
        """The circuits that the file states, None where there is no file.

        Raises:
            Refused: it cannot be read or is not such a file; it is left byte for byte.
        """
        try:
            self.raw = _read(self.path)
        except FileNotFoundError:
            self.raw = None
            return None
        except OSError as error:
            raise Refused(f"{self.path}: {error.strerror}: the state file cannot be read") from None
        try:
            return {
                endpoint: _in_whole_seconds(circuit) for endpoint, circuit in parse_health(self.raw).items()
            }
        except Invalid as error:
            raise Refused(
                f"{self.path}: malformed state file, left as it is (mend it, or move it away): {error}"
            ) from None

    def write(self, circuits: dict[str, Circuit]) -> None:
        """Make the file the view of `circuits`; a failure is said, and the next command writes it again."""
        rendered = render(circuits)
        if rendered == self.raw:
            return
        from ledger.files import write_whole

        try:
            write_whole(self.path, rendered)
        except OSError as error:
            from ledger.notice import tell

            tell(f"{self.path}: {error.strerror}: the view lags, the ledger has the record")

    def close(self) -> None:
        """Close the ledger if this opened one."""
        if self._ledger is not None:
            self._ledger.close()


def at_given(at: int, clock: int) -> bool:
    """Whether `at` is so far from the clock that the event must say so."""
    from projections.circuit import AT_TOLERANCE

    return abs(at - clock) > AT_TOLERANCE


def circuits_in(world: World) -> dict[str, Circuit]:
    """Every open circuit of the ledger, by endpoint."""
    found = {}
    for stream in world.reader.streams("circuit"):
        circuit = world.state(stream).circuit(world.void_before)
        if circuit is not None:
            found[stream.partition("/")[2]] = circuit
    return found


def _lags(world: World, raw: bytes) -> bool:
    """Whether `raw` is our own rendering at an earlier version."""
    from projections.circuit import State, evolve, initial
    from projections.engine import fact_of

    events = [event for stream in world.reader.streams("circuit") for event in world.reader.stream(stream)]
    circuits: dict[str, Circuit] = {}
    states: dict[str, State] = {}
    if raw == render(circuits):
        return True
    for event in sorted(events, key=lambda event: event.seq):
        states[event.stream] = evolve(states.get(event.stream, initial(event.stream)), fact_of(event))
        endpoint = event.stream.partition("/")[2]
        circuit = states[event.stream].circuit()
        circuits.pop(endpoint, None)
        if circuit is not None:
            circuits[endpoint] = circuit
        if raw == render(circuits):
            return True
    return False


def adopt(
    file: HealthFile, stated: dict[str, Circuit] | None, known: dict[str, Circuit], world: World, at: int
) -> Sequence[Proposal]:
    """What must be imported so that the ledger (`known`) agrees with a file that another tool wrote: nothing, mostly."""
    if stated is None or stated == known or _lags(world, file.raw or b""):
        return []
    from projections.circuit import Imported
    from projections.engine import Proposal
    from projections.refusals import digest_of

    digest = digest_of(file.raw or b"")
    proposals = []
    for endpoint in sorted({*stated, *known}):
        if stated.get(endpoint) == known.get(endpoint):
            continue
        provider, _, executor = endpoint.partition("|")
        data = Imported(
            provider,
            executor,
            print_time(at),
            digest,
            _health(stated.get(endpoint)),
            at_given(at, world.clock),
        )
        proposals.append(Proposal(f"circuit/{endpoint}", "circuit.imported", data))
    return proposals


def _health(circuit: Circuit | None) -> Health | None:
    from projections.circuit import Health

    if circuit is None:
        return None
    probe = "" if circuit.probe_claimed_at is None else print_time(circuit.probe_claimed_at)
    return Health(
        circuit.reason,
        circuit.failure_count,
        print_time(circuit.last_failure_at),
        print_time(circuit.unavailable_until),
        probe,
    )


def moment(given: str | None) -> int:
    """`--now` in whole seconds (us), or the clock's. Usage where it is not a time with a zone."""
    from ledger.clock import now_us
    from projections.times import parse_time

    if given is None:
        return whole_seconds(now_us())
    try:
        return whole_seconds(parse_time(given, "--now"))
    except Invalid as error:
        raise Usage(str(error)) from None
