"""The timeline as one HTML file that asks nobody for anything: zoom, tooltips, keyboard, light and dark."""

from __future__ import annotations

import os

from commands.timeline.lanes import KINDS, describe, pack_rows, time_range
from commands.timeline.svg import escape, style

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from commands.timeline.lanes import Item


def _part(name: str) -> str:
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


def _json(value: object) -> str:
    """JSON that stands safely inside a script element."""
    import json

    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def render_page(items: Sequence[Item], *, title: str, link: str = "") -> str:
    """The timeline as a complete HTML document.

    `link` is a prefix to which an event's number is added where the page stands on a server (`serve`);
    empty in a file of its own. The page allows itself no request to anywhere.
    """
    rows = pack_rows(items)
    # Times as milliseconds with a fraction: exact to the microsecond in a double until the year 2255.
    packed = [
        [
            row.lane,
            [
                [
                    item.kind,
                    item.start / 1000,
                    None if item.end is None else item.end / 1000,
                    item.label,
                    item.seq,
                    describe(item),
                ]
                for item in row.items
            ],
        ]
        for row in rows
    ]
    start, end = time_range(items)
    data = {
        "rows": packed,
        "start": start / 1000,
        "end": end / 1000,
        "link": link,
        "kinds": {kind: entry[0] for kind, entry in KINDS.items()},
    }
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style()}{_part('page.css')}</style></head><body>"
        f'<header><h1>{escape(title)}</h1><p id="range"></p></header>'
        '<main id="picture" tabindex="0" role="application" aria-label="Timeline; arrow keys move between items, plus and minus zoom">'
        '<svg id="axis"></svg><svg id="lanes"></svg></main>'
        '<div id="tip" role="tooltip" hidden></div><p id="said" aria-live="polite"></p><p id="legend"></p>'
        "<footer>wheel or <kbd>+</kbd> <kbd>−</kbd> zoom · drag or <kbd>Shift</kbd>+<kbd>←</kbd> <kbd>→</kbd> move · "
        "<kbd>←</kbd> <kbd>→</kbd> <kbd>↑</kbd> <kbd>↓</kbd> next item or lane · <kbd>Enter</kbd> closer · <kbd>0</kbd> whole · "
        "<kbd>Esc</kbd> let go</footer>"
        "<noscript>This page draws with JavaScript; `gatebook timeline --svg` makes a picture without.</noscript>"
        f'<script type="application/json" id="data">{_json(data)}</script><script>{_part("page.js")}</script></body></html>\n'
    )
