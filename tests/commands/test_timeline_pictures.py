"""The timeline's layout and its text, SVG and page as pure functions of the items."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.timeline.lanes import (
    DAY,
    HOUR,
    KINDS,
    MAX_ROWS,
    MINUTE,
    SECOND,
    Item,
    axis_ticks,
    columns,
    describe,
    duration_text,
    pack_rows,
    place_marks,
    shorten,
    time_range,
)
from commands.timeline.page import render_page
from commands.timeline.svg import render_svg
from commands.timeline.terminal import MIN_PLOT, _Cells, render_text

T0 = 1_764_511_200 * SECOND  # 2025-11-30 14:00:00Z

times = st.integers(0, 2_000_000_000_000_000)
items_strategy = st.lists(
    st.builds(
        lambda lane, kind, start, length, label: Item(
            lane, kind, start, None if length < 0 else start + length, label=label, seq=1
        ),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(sorted(KINDS)),
        times,
        st.integers(-1, 10**13),
        st.text(max_size=20),
    ),
    max_size=30,
)


def sample(count: int) -> list[Item]:
    chance = random.Random(count)
    lanes = ["approvals", "marker", "attempts", "rounds", "stage tests", "receipts", "refusals"]
    items, at = [], T0
    for seq in range(count):
        at += chance.randint(1, 300) * SECOND
        lane = lanes[seq % len(lanes)]
        kind = chance.choice(sorted(KINDS))
        length = chance.choice([0, 0, chance.randint(1, 2000) * SECOND])
        items.append(Item(lane, kind, at, at + length, label=f"item {seq}", seq=seq + 1))
    return sorted(items, key=lambda item: lanes.index(item.lane))


@given(items_strategy)
def test_every_item_lies_in_one_row_of_its_lane(items):
    rows = pack_rows(items)
    assert sorted(id(item) for row in rows for item in row.items) == sorted(map(id, items))
    assert all(item.lane == row.lane for row in rows for item in row.items)


@given(items_strategy)
def test_items_of_a_row_overlap_only_where_the_lane_is_full(items):
    rows = pack_rows(items)
    for row in rows:
        of_lane = [other for other in rows if other.lane == row.lane]
        if len(of_lane) == MAX_ROWS and row is of_lane[-1]:
            continue
        for before, after in zip(row.items, row.items[1:], strict=False):
            assert before.end is not None
            assert before.end <= after.start


@given(items_strategy, st.integers(20, 2000))
def test_every_item_stands_in_one_mark_within_the_scale(items, width):
    span = time_range(items)
    for row in pack_rows(items):
        marks = place_marks(row, span, width, small=7, widest=34, right=0)
        assert sum(len(mark.items) for mark in marks) == len(row.items)
        assert all(-0.01 <= mark.x0 <= mark.x1 <= width + 0.01 for mark in marks)


@given(times, st.integers(0, 10**16), st.integers(2, 20))
def test_ticks_are_few_and_within_the_range(start, length, most):
    ticks = axis_ticks(start, start + length, most)
    assert len(ticks) <= most
    assert all(start <= at <= start + length for at, _ in ticks)


def test_tick_labels_say_what_the_step_needs():
    assert axis_ticks(T0, T0 + 40 * MINUTE, 5)[0][1] == "14:00"
    assert axis_ticks(T0, T0 + 20 * SECOND, 5)[1][1] == "14:00:05"
    assert axis_ticks(T0, T0 + 10 * DAY, 6)[0][1] == "2025-12-02"
    assert axis_ticks(T0 + 9 * HOUR, T0 + 12 * HOUR, 4)[1][1] == "2025-12-01"


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 ms"),
        (5_000, "5 ms"),
        (1_204_000, "1.204 s"),
        (52 * MINUTE + 10 * SECOND, "52 min 10 s"),
        (2 * HOUR, "2 h"),
        (3 * DAY + 4 * HOUR, "3 d 4 h"),
    ],
)
def test_durations_have_at_most_two_units(us, text):
    assert duration_text(us) == text


def test_an_item_is_described_with_its_event_its_time_and_whether_it_lasts():
    span = Item("m", "hold", T0, T0 + MINUTE, label="owner codex:7f", seq=9, detail="released")
    assert describe(span) == "owner codex:7f (marker hold, event 9) 2025-11-30 14:00:00Z for 1 min — released"
    span.end = None
    assert "since 2025-11-30 14:00:00Z" in describe(span)


def test_text_of_ten_items_shows_every_label_and_lane():
    text = render_text(sample(7), title="run/r-1", width=120)
    for lane in ("approvals", "marker", "attempts", "rounds", "stage tests", "receipts", "refusals"):
        assert lane in text
    assert "7 items, 2025-11-30 14:" in text


@pytest.mark.parametrize("count", [0, 1, 2, 10, 5000])
@pytest.mark.parametrize("width", [10, 60, 200])
def test_text_keeps_to_its_width(count, width):
    text = render_text(sample(count), title="t", width=width)
    gutter = 2 + max([len(line) for line in ("stage tests",)])
    assert all(len(line) <= max(width, gutter + 20) for line in text.splitlines()[1:])
    assert len(text.splitlines()) < 60


def test_colour_only_adds_escapes():
    import re

    plain = render_text(sample(40), title="t", width=90)
    assert (
        re.sub(r"\x1b\[\d+m", "", render_text(sample(40), title="t", width=90, colour=True)).split()
        == plain.split()
    )


@given(items_strategy, st.text(max_size=30))
def test_svg_is_well_formed_whatever_the_labels_hold(items, title):
    root = ET.fromstring(render_svg(items, title=title))
    assert root.tag.endswith("svg")


def test_svg_has_a_tooltip_for_every_mark_and_counts_for_crowds():
    root = ET.fromstring(render_svg(sample(5000), title="t"))
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    counted = sum(
        int(text.split()[0]) if " items, " in text else 1
        for text in titles
        if "event" in text or "items," in text
    )
    assert counted == 5000


def test_a_page_holds_no_markup_from_labels():
    item = Item("</script><b>", "event", T0, T0, label="</script><script>alert(1)</script>", seq=1)
    page = render_page([item], title="<i>")
    assert page.count("</script>") == 2
    assert "<b>" not in page
    assert "<i></i>" not in page.replace("<i>", "<i></i>", 0)
    assert "&lt;i&gt;" in page


def test_a_page_asks_nobody_for_anything():
    page = render_page(sample(10), title="t")
    assert "default-src 'none'" in page
    without = page.replace("http://www.w3.org/2000/svg", "")
    assert "http" not in without.replace("http-equiv", "")


CHINESE = "供应商很长的名字供应商很长的名字"


def test_wide_characters_take_two_columns_in_the_terminal_and_never_shift_what_follows():
    items = [
        Item(f"circuit {CHINESE}|执行器", "hold", 0, 90 * SECOND, label="持有者张三", seq=1),
        Item("approvals", "approval", 90 * SECOND, 90 * SECOND, label="é", seq=2),
        Item("approvals", "approval", 10 * SECOND, 10 * SECOND, label="计划已批准", seq=3),
    ]
    for width in (30, 60, 100):
        lines = render_text(items, title="t", width=width).splitlines()
        assert all(columns(line) <= max(width, 30 + MIN_PLOT) for line in lines[1:])
        end = next(line for line in lines if "┫" in line)
        approved = next(line for line in lines if line.startswith("approvals"))
        assert columns(end[: end.index("┫")]) == columns(approved[: approved.rindex("●")])
    assert "持有者张三" in end
    assert "计划已批准" in approved


@pytest.mark.parametrize(
    ("at", "left"), [(0, "x中文 "), (1, " x 文 "), (2, "  x文 "), (3, " 中x  "), (4, " 中 x ")]
)
def test_a_mark_over_half_of_a_wide_character_leaves_a_space_of_it(at, left):
    cells = _Cells(6)
    cells.put(1, "中文", 0)
    cells.put(at, "x", 0)
    assert "".join(cells.chars) == left


def test_names_are_cut_to_columns_and_one_item_is_not_items():
    assert [shorten(CHINESE, most) for most in (1, 2, 3, 32)] == ["…", "…", "供…", CHINESE]
    one = [Item(f"circuit {CHINESE}", "event", 0, 0, label="x", seq=1)]
    assert "1 item," in render_svg(one, title="t")
    assert f">{shorten(f'circuit {CHINESE}', 28)}<" in render_svg(one, title="t")
    assert render_text(one, title="t").startswith("t: 1 item,")
