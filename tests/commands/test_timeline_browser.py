"""The timeline page in a real browser: legible, zoomed, told and walked by mouse and keyboard, light and dark."""

from __future__ import annotations

import pytest
from browser import Browser
from test_timeline_pictures import sample

from commands.timeline.page import render_page
from commands.timeline.svg import render_svg

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for count in (0, 10, 5000):
        (folder / f"{count}.html").write_text(
            render_page(sample(count), title=f"run of {count}"), encoding="utf-8"
        )
        (folder / f"{count}.svg").write_text(
            render_svg(sample(count), title=f"run of {count}"), encoding="utf-8"
        )
    return folder


@pytest.fixture(scope="module")
def browser():
    opened = Browser()
    yield opened
    opened.close()


def visible(browser) -> int:
    """How many items the marks on the page stand for."""
    return browser.run(
        "[...document.querySelectorAll('.mark')].reduce((n, m) => n + m.dataset.items.split(' ').length, 0)"
    )


def focus(browser) -> None:
    browser.run("document.getElementById('picture').focus()")


OVERLAPS = """(() => {
  const texts = [...document.querySelectorAll('#lanes .by')].map((t) => t.getBoundingClientRect());
  let found = 0;
  for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
    const a = texts[i], b = texts[j];
    if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4) found++;
  }
  return found;
})()"""


@pytest.mark.parametrize("count", [10, 5000])
@pytest.mark.parametrize("dark", [False, True])
def test_a_page_shows_every_item_without_overlapping_labels(browser, pages, count, dark):
    browser.errors.clear()
    browser.open(f"file://{pages}/{count}.html", dark=dark)
    assert visible(browser) == count
    assert browser.run(OVERLAPS) == 0
    assert browser.errors == []
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")


def test_light_and_dark_differ_and_text_stands_out_in_both(browser, pages):
    colours = []
    contrast = """(() => {
      const light = (css) => { const c = css.match(/[\\d.]+/g).slice(0, 3).map((v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
        return .2126 * c[0] + .7152 * c[1] + .0722 * c[2]; };
      const ground = light(getComputedStyle(document.body).backgroundColor);
      const ratio = (css) => { const l = light(css); return (Math.max(l, ground) + .05) / (Math.min(l, ground) + .05); };
      const marks = [...document.querySelectorAll('#lanes .mark rect, #lanes .mark circle')].map((e) => getComputedStyle(e).fill).filter((f) => f !== 'rgba(0, 0, 0, 0)');
      return [getComputedStyle(document.body).backgroundColor, ratio(getComputedStyle(document.querySelector('#lanes text')).fill), Math.min(...marks.map(ratio))];
    })()"""
    for dark in (False, True):
        browser.open(f"file://{pages}/5000.html", dark=dark)
        ground, text, mark = browser.run(contrast)
        colours.append(ground)
        assert text >= 7
        assert mark >= 3
    assert colours[0] != colours[1]


def test_an_empty_timeline_says_so(browser, pages):
    browser.errors.clear()
    browser.open(f"file://{pages}/0.html")
    assert browser.run("document.getElementById('range').textContent") == "nothing happened yet"
    focus(browser)
    for key in ("ArrowRight", "ArrowDown", "Enter", "+", "0"):
        browser.key(key)
    assert browser.errors == []


def test_plus_minus_and_zero_zoom(browser, pages):
    browser.open(f"file://{pages}/5000.html")
    focus(browser)
    for _ in range(6):
        browser.key("+")
    assert 0 < visible(browser) < 500
    browser.key("0")
    assert visible(browser) == 5000


def test_the_wheel_zooms_about_the_pointer(browser, pages):
    browser.open(f"file://{pages}/5000.html")
    for _ in range(8):
        browser.mouse("mouseWheel", 700, 200, deltaX=0, deltaY=-120)
    assert 0 < visible(browser) < 2500


def test_dragging_moves(browser, pages):
    browser.open(f"file://{pages}/10.html")
    before = browser.run("document.getElementById('range').textContent")
    browser.mouse("mousePressed", 900, 150, button="left", clickCount=1)
    browser.mouse("mouseMoved", 700, 150, button="left")
    browser.mouse("mouseReleased", 700, 150, button="left", clickCount=1)
    assert browser.run("document.getElementById('range').textContent") != before


def test_a_tooltip_tells_what_is_under_the_pointer(browser, pages):
    browser.open(f"file://{pages}/10.html")
    assert browser.run("document.getElementById('tip').hidden")
    x, y = browser.run(
        "(() => { const b = document.querySelector('.mark circle, .mark rect, .mark path').getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    browser.mouse("mouseMoved", x, y)
    assert not browser.run("document.getElementById('tip').hidden")
    assert "event" in browser.run("document.getElementById('tip').textContent")


def test_arrow_keys_walk_items_and_lanes_and_tell_them(browser, pages):
    browser.open(f"file://{pages}/10.html")
    focus(browser)
    said = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp"):
        browser.key(key)
        said.append(browser.run("document.getElementById('said').textContent"))
        assert browser.run("document.querySelectorAll('.chosen').length") == 1
    assert said[0].startswith("item 0 ")
    assert said[1].startswith("item 7 ")
    assert said[2] != said[1]
    browser.key("Escape")
    assert browser.run("document.querySelectorAll('.chosen').length") == 0
    assert browser.run("document.getElementById('said').textContent") == ""


def test_enter_on_a_crowd_takes_it_apart(browser, pages):
    browser.open(f"file://{pages}/5000.html")
    focus(browser)
    browser.key("ArrowRight")
    for _ in range(12):
        browser.key("Enter")
        if len(browser.run("document.querySelector('.chosen').dataset.items").split()) == 1:
            break
    else:
        pytest.fail("twelve steps closer and still a crowd")


def test_a_click_on_a_crowd_zooms_in(browser, pages):
    browser.open(f"file://{pages}/5000.html")
    x, y = browser.run(
        "(() => { const b = [...document.querySelectorAll('.mark')].find((m) => m.dataset.items.includes(' ')).querySelector('rect').getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    browser.click(x, y)
    assert 0 < visible(browser) < 2000


@pytest.mark.parametrize("count", [10, 5000])
def test_the_svg_opens_as_a_picture(browser, pages, count, tmp_path):
    browser.errors.clear()
    browser.open(f"file://{pages}/{count}.svg")
    assert browser.errors == []
    overlaps = OVERLAPS.replace("#lanes .by", ".by")
    assert browser.run(overlaps) == 0
    browser.picture(str(tmp_path / "svg.png"))
    assert (tmp_path / "svg.png").stat().st_size > 10_000


def test_labels_that_look_like_markup_stay_text(browser, tmp_path):
    from commands.timeline.lanes import Item

    bad = "<img src=x onerror=window.hit=1></script><script>window.hit=1</script>"
    item = Item(bad, "event", 0, 0, label=bad, seq=1, detail=bad)
    (tmp_path / "bad.html").write_text(render_page([item], title=bad), encoding="utf-8")
    browser.open(f"file://{tmp_path}/bad.html")
    focus(browser)
    browser.key("ArrowRight")
    assert browser.run("window.hit") is None
    assert bad in browser.run("document.getElementById('said').textContent")


def test_the_legend_is_a_line_of_signs_shaped_as_the_marks_are(browser, pages):
    browser.open(f"file://{pages}/10.html")
    assert browser.run("document.getElementById('legend').offsetHeight") < 40
    assert (
        browser.run("document.querySelectorAll('#legend path').length") == 2
    )  # failure and rejected: crosses
