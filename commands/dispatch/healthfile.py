"""The provider-health file, the circuits as other tools read and write them (contract page dispatch, Circuits)."""

from __future__ import annotations

from commands.dispatch.rubric import check_endpoint_part
from ledger.canonical import encode, parse
from ledger.errors import Invalid
from projections.cooldowns import MAX_COUNT, REASONS, Circuit, shown
from projections.times import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES = 1024 * 1024
_FIELDS = frozenset(
    ("state", "reason", "failure_count", "last_failure_at", "unavailable_until", "probe_claimed_at")
)


def render(circuits: Mapping[str, Circuit]) -> bytes:
    """The view's bytes: the same circuits always give the same bytes, times in whole seconds."""
    return (
        encode({"version": 1, "circuits": {name: shown(circuit) for name, circuit in circuits.items()}})
        + b"\n"
    )


def check_endpoint(endpoint: str, place: str) -> None:
    """Refuse (Invalid) an endpoint that is not `provider|executor`, each a lawful name."""
    parts = endpoint.split("|")
    if len(parts) != 2:
        raise Invalid(f"{place} must be provider|executor")
    check_endpoint_part(parts[0], f"the provider of {place}")
    check_endpoint_part(parts[1], f"the executor of {place}")


def _circuit(value: object, place: str) -> Circuit:
    if not isinstance(value, dict):
        raise Invalid(f"{place} must be an object")
    for name in value:
        if name not in _FIELDS:
            raise Invalid(f"{place} has an unknown key {name[:80]!r}")
    for name in sorted(_FIELDS - value.keys()):
        raise Invalid(f"{place} has no {name}")
    if value["state"] != "open":
        raise Invalid(f"{place}.state must be open")
    if not isinstance(value["reason"], str) or value["reason"] not in REASONS:
        raise Invalid(f"{place}.reason must be one of {', '.join(REASONS)}")
    count = value["failure_count"]
    if type(count) is not int or not 1 <= count <= MAX_COUNT:
        raise Invalid(f"{place}.failure_count must be a positive integer")
    claimed = value["probe_claimed_at"]
    return Circuit(
        value["reason"],
        count,
        parse_time(value["last_failure_at"], f"{place}.last_failure_at"),
        parse_time(value["unavailable_until"], f"{place}.unavailable_until"),
        None if claimed is None else parse_time(claimed, f"{place}.probe_claimed_at"),
    )


def parse_health(raw: bytes) -> dict[str, Circuit]:
    """The circuits in a health file's bytes, by `provider|executor`.

    Raises:
        Invalid: anything but the contract's shape; the message names the place and no value of the file's.
    """
    if len(raw) > MAX_BYTES:
        raise Invalid(f"it is larger than {MAX_BYTES // 1024} KiB")
    top = parse(raw, what="the file")
    if not isinstance(top, dict):
        raise Invalid("it must be an object")
    if top.keys() != {"version", "circuits"}:
        raise Invalid("its keys must be version and circuits")
    if type(top["version"]) is not int or top["version"] != 1:
        raise Invalid("version must be 1")
    if not isinstance(top["circuits"], dict):
        raise Invalid("circuits must be an object")
    found = {}
    for number, (endpoint, value) in enumerate(top["circuits"].items(), 1):
        place = f"circuit {number}"
        check_endpoint(endpoint, place)
        found[endpoint] = _circuit(value, f"{place} ({endpoint})")
    return found
