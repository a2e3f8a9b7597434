"""Writes `tests/ledger/vectors.json`: fixed inputs through the real sealing code, with fixed salts and clocks.

Run once for format 1 and never again: the file is the promise. `tests/ledger/test_format_vectors.py`
recomputes it without our code, and checks that our code still gives the same bytes.
"""

from __future__ import annotations

import json
import os
import sys

from ledger.canonical import canonical
from ledger.event import Draft, Event, Head, Origin, head_of, seal

START = 1_780_000_000_123_456
SALTS = [bytes(range(n, n + 16)) for n in range(0, 240, 16)]
GENESIS = '{"format":1,"keys":{"checkpoint":"' + "11" * 32 + '","receipt":"' + "22" * 32 + '"}}'

# (clock us, actor, via, fields): each shows one rule
INPUTS = [
    (START, "cli:ada", "init", [{"stream": "ledger", "type": "ledger.opened", "data": GENESIS}]),
    (START + 1_000_000, "cli:ada", "append", [{"stream": "x-notes/today", "type": "x.note.added", "data": '{ "text": "tests pass", "n": 3 }'}]),
    # the clock stands: one microsecond later, clock_behind 1; then it runs back by two seconds
    (START + 1_000_000, "codex:0199", "append", [{"stream": "x-notes/today", "type": "x.note.added", "data": "{}", "content": "Grüße, 世界 \U0001f600\n"}]),
    (START - 1_000_000, "codex:0199", "append", [{"stream": "x-notes/heute-\u00fc", "type": "x.note.added", "data": '{"\ue000":1,"\U00010000":2,"a\\u0000\\u007f\\"":"\\/"}', "correlation": "run/1", "causation": 2}]),
    # a batch: one clock reading, one microsecond apart
    (START + 5_000_000, "cli:ada", "append", [
        {"stream": "x-notes/today", "type": "x.n.b", "data": '{"big":1e21,"exact":1e16,"small":1e-7,"zero":-0.0,"third":0.3333333333333333,"max":9007199254740991}', "idempotency_key": "k-1"},
        {"stream": "x-other/1", "type": "x.n.b", "data": '{"a":[null,true,false,"",{}]}', "idempotency_key": "k-2", "content": ""},
    ]),
]  # fmt: skip

NUMBERS = ["0", "-0.0", "5e-324", "1.7976931348623157e308", "1e16", "1e21", "1e20", "123456789012345680000.0", "0.000001", "1e-7", "-1.5", "333333333.33333329", "9007199254740991", "-9007199254740991"]  # fmt: skip
REFUSED = {
    "a key twice": '{"a":1,"a":2}', "NaN": '{"a":NaN}', "Infinity": '{"a":-Infinity}', "a lone surrogate": '{"a":"\\ud800"}',
    "2^53": '{"a":9007199254740992}', "depth 65": '{"a":' * 65 + "1" + "}" * 65, "not an object": "[]", "text after": "{} {}", "a byte order mark": "\ufeff{}",
}  # fmt: skip


def sealed() -> list[tuple[dict[str, object], Event]]:
    """Each input with its event."""
    salts = iter(SALTS)
    os.urandom = lambda _size: next(salts)  # type: ignore[assignment]
    head, versions, out = Head(), {}, []
    for clock, actor, via, batch in INPUTS:
        drafts = [
            Draft(
                given["stream"], given["type"], canonical(given["data"]),
                content=given["content"].encode() if "content" in given else None,
                correlation=given.get("correlation"), causation=given.get("causation"), idempotency_key=given.get("idempotency_key"),
            )
            for given in batch
        ]  # fmt: skip
        events = seal(drafts, head, lambda stream: versions.get(stream, 0), Origin(actor, via), clock)
        for given, event in zip(batch, events, strict=True):
            versions[event.stream] = event.version
            out.append(({"clock_us": clock, "actor": actor, "via": via, **given}, event))
        head = head_of(events[-1])
    return out


def main(path: str) -> None:
    """Write the vectors to `path`."""
    events = [
        {
            "input": given,
            "envelope": event.envelope.decode(),
            "data": event.data.decode(),
            "salt": event.salt.hex() if event.salt is not None else None,
            "content": event.content.decode() if event.content is not None else None,
            "hash": event.hash.hex(),
        }
        for given, event in sealed()
    ]
    numbers = [[text, canonical('{"n":' + text + "}")[5:-1].decode()] for text in NUMBERS]
    document = {"format": 1, "events": events, "numbers": numbers, "refused": REFUSED}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1, ensure_ascii=True)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
