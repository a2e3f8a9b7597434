"""`schema`: every type of the vocabulary, strict, with the command that writes it."""

from __future__ import annotations

import json
import re

import pytest
from program import call

from commands.schema import schema_of
from commands.table import COMMANDS
from projections.registry import TYPES

# The contract's list (page ledger, Vocabulary), written out, so that a type that is lost is noticed.
VOCABULARY = """
ledger.opened/.checkpointed/.redacted/.restored authority.changed key.changed admission.refused plan.proposed/.approved
marker.claimed/.resumed/.refused/.prepared/.recovered/.released item.handed_off/.deferred result.archived/.recorded
run.reported/.delivered/.finalized receipt.issued/.consumed/.denied/.finalized/.revoked
dispatch.requested/.blocked/.approved/.attempted/.returned/.verified/.concluded route.selected
circuit.opened/.probed/.closed/.imported memory.recalled/.captured session.opened/.imported/.locked/.unlocked/.lock_recovered/.stopped
baseline.verified drift.detected/.accepted/.aborted round.started/.executed/.reviewed/.rejected gate.returned stage.step_recorded
stage.minted stages.carried/.cleared security.scanned delivery.blocked/.unblocked/.completed commit.recorded
"""


def vocabulary():
    for entry in VOCABULARY.split():
        kind, *names = re.split(r"[./]+", entry)
        yield from (f"{kind}.{name}" for name in names)


def structs(schema):
    """Every object schema with named properties, however deep."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for inner in schema.values():
            yield from structs(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from structs(inner)


def test_the_vocabulary_is_the_contracts():
    assert sorted(TYPES) == sorted(vocabulary())


@pytest.mark.parametrize("name", sorted(TYPES))
def test_a_types_schema_is_strict_and_names_its_writer(name):
    schema = schema_of(name)
    assert schema["title"] == name
    assert schema["x-version"] >= 1
    found = list(structs(schema))
    assert found, "a type without fields would be a free-form blob"
    assert all(struct["additionalProperties"] is False for struct in found)
    writer = schema["x-written-by"]
    assert writer in COMMANDS or writer == "(the ledger itself)"


def test_the_list_and_the_whole_hold_every_type():
    listed = [line.split()[0] for line in call("schema").out.splitlines()]
    assert listed == list(TYPES)
    assert list(json.loads(call("schema", "--json").out)) == list(TYPES)


def test_one_schema_is_one_json_document():
    assert json.loads(call("schema", "circuit.opened").out)["title"] == "circuit.opened"


def test_an_unknown_type_is_named_with_its_neighbour():
    call("schema", "circuit.openned").refused(2, "did you mean circuit.opened?")
    call("schema", "x.note.added").refused(2, "gatebook schema")
