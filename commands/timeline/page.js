"use strict";
// Draws the rows of #data on a scale that the reader moves and zooms; items too close to be told apart
// become one mark with their number. Times are milliseconds since 1970.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const [KIND, START, END, LABEL, SEQ, TEXT] = [0, 1, 2, 3, 4, 5];
  const GUTTER = 215, ROW = 20, GAP = 8, CHAR = 6.3, SMALL = 7, WIDEST = 34, AXIS = 24;
  const picture = document.getElementById("picture"), axis = document.getElementById("axis");
  const lanes = document.getElementById("lanes"), tip = document.getElementById("tip");
  const said = document.getElementById("said");
  const whole = Math.max(1, data.end - data.start);
  const pad = whole * 0.02;
  let from = data.start - pad, to = data.end + pad;
  let chosen = null; // [row, index]

  const NS = "http://www.w3.org/2000/svg";
  const make = (name, attributes, parent, text) => {
    const element = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };
  const two = (n) => String(n).padStart(2, "0");
  const rounded = (ms) => (to - from > 60000 ? Math.round(ms / 1000) * 1000 : Math.round(ms));
  const moment = (ms) => {
    const d = new Date(ms);
    const rest = d.getUTCMilliseconds() ? "." + String(d.getUTCMilliseconds()).padStart(3, "0") : "";
    return `${d.toISOString().slice(0, 10)} ${two(d.getUTCHours())}:${two(d.getUTCMinutes())}:${two(d.getUTCSeconds())}${rest}Z`;
  };
  const SECOND = 1000, MINUTE = 60000, HOUR = 3600000, DAY = 86400000;
  const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, ...[1, 2, 5, 10, 15, 30].map((n) => n * SECOND),
    ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE), ...[1, 2, 3, 6, 12].map((n) => n * HOUR),
    ...[1, 2, 7, 14, 30, 90, 180, 365, 730, 1825, 3650].map((n) => n * DAY)];
  const tickLabel = (ms, step) => {
    const d = new Date(ms);
    if (step >= DAY || ms % DAY === 0) return d.toISOString().slice(0, 10);
    if (step >= MINUTE) return d.toISOString().slice(11, 16);
    return d.toISOString().slice(11, step >= SECOND ? 19 : 23);
  };

  const width = () => Math.max(300, picture.clientWidth - GUTTER - 16);
  const place = (ms) => GUTTER + ((ms - from) / (to - from)) * width();
  const endOf = (item) => (item[END] === null ? Math.max(data.end, to) : item[END]);

  const marksOf = (items) => {
    const marks = [];
    items.forEach((item, index) => {
      if (endOf(item) < from || item[START] > to) return;
      const x0 = Math.max(place(item[START]), GUTTER - 2), x1 = Math.min(place(endOf(item)), GUTTER + width() + 6);
      const last = marks[marks.length - 1];
      if (last && x1 - x0 < SMALL && x0 - Math.max(last.x1, last.x0 + SMALL) < SMALL && x0 - last.x0 < WIDEST &&
          (last.items.length > 1 || last.x1 - last.x0 < SMALL)) {
        last.items.push(index);
        last.x1 = Math.max(last.x1, x1);
      } else marks.push({ x0, x1, items: [index] });
    });
    marks.forEach((mark, i) => { mark.room = (i + 1 < marks.length ? marks[i + 1].x0 : GUTTER + width() + 10) - mark.x1; });
    return marks;
  };
  const gravest = (kinds) => {
    for (const kind of ["refusal", "failure", "rejected"]) if (kinds.includes(kind)) return kind;
    const count = {};
    kinds.forEach((kind) => { count[kind] = (count[kind] || 0) + 1; });
    return Object.keys(count).sort((a, b) => count[b] - count[a])[0];
  };
  const textOf = (items, mark) => {
    if (mark.items.length === 1) return items[mark.items[0]][TEXT];
    const kinds = {};
    mark.items.forEach((i) => { kinds[items[i][KIND]] = (kinds[items[i][KIND]] || 0) + 1; });
    const list = Object.entries(kinds).sort((a, b) => b[1] - a[1]).map(([kind, n]) => `${n} ${data.kinds[kind]}`).join(", ");
    const first = items[mark.items[0]], last = items[mark.items[mark.items.length - 1]];
    return `${mark.items.length} items, ${moment(first[START])} to ${moment(last[START])}: ${list}. Click or Enter to zoom in.`;
  };
  // A Chinese character or an emoji is as wide as two letters.
  const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;
  const columns = (text) => [...text].reduce((sum, c) => sum + (WIDE.test(c) ? 2 : 1), 0);
  const shorten = (text, most) => {
    if (columns(text) <= most) return text;
    const shown = [...text].slice(0, most - 1);
    while (columns(shown.join("")) > most - 1) shown.pop();
    return shown.join("") + "…";
  };
  const label = (text, x, y, room, parent, css) => {
    const fits = Math.floor(room / CHAR);
    if (fits < Math.min(columns(text), 8)) return false;
    make("text", { x, y: y + 4, class: css }, parent, shorten(text, fits));
    return true;
  };
  const point = (kind, x, y, parent) => {
    const colour = `var(--${kind})`;
    if (["failure", "rejected", "refusal"].includes(kind)) {
      make("path", { d: `M${x - 4} ${y - 4}l8 8m0-8l-8 8`, stroke: colour, "stroke-width": 2.4, fill: "none" }, parent);
      make("circle", { cx: x, cy: y, r: 7, fill: "transparent" }, parent);
    } else if (["probe", "delivery"].includes(kind)) make("path", { d: `M${x} ${y - 6}l6 6-6 6-6-6z`, fill: colour }, parent);
    else make("circle", { cx: x, cy: y, r: 4.5, fill: colour }, parent);
  };
  const drawMark = (row, items, mark, y, parent) => {
    const group = make("g", { class: "mark", "data-row": row, "data-items": mark.items.join(" ") }, parent);
    if (chosen && chosen[0] === row && mark.items.includes(chosen[1])) group.classList.add("chosen");
    group.dataset.text = textOf(items, mark);
    if (mark.items.length > 1) {
      const kind = gravest(mark.items.map((i) => items[i][KIND])), count = String(mark.items.length);
      const wide = Math.max(mark.x1 - mark.x0, count.length * CHAR + 8);
      make("rect", { x: mark.x0, y: y - 7, width: wide, height: 14, rx: 7, fill: `var(--${kind})` }, group);
      make("text", { x: mark.x0 + wide / 2, y: y + 4, "text-anchor": "middle", class: "on" }, group, count);
      return;
    }
    const item = items[mark.items[0]];
    if (mark.x1 - mark.x0 < SMALL) {
      point(item[KIND], mark.x0, y, group);
      label(item[LABEL], mark.x0 + 9, y, mark.room - 16, group, "by");
      return;
    }
    const cooling = item[KIND] === "cooldown";
    const box = { x: mark.x0, y: y - 7, width: mark.x1 - mark.x0, height: 14, rx: 3, fill: `var(--${item[KIND]})`, stroke: `var(--${item[KIND]})` };
    if (cooling) Object.assign(box, { "fill-opacity": 0.22, "stroke-dasharray": "4 3" });
    make("rect", box, group);
    if (item[END] === null) make("path", { d: `M${mark.x1} ${y - 7}l7 7-7 7z`, fill: `var(--${item[KIND]})` }, group);
    if (!label(item[LABEL], mark.x0 + 5, y, mark.x1 - mark.x0 - 8, group, cooling ? "by" : "on"))
      label(item[LABEL], mark.x1 + 8, y, mark.room - 14, group, "by");
  };

  const draw = () => {
    axis.replaceChildren();
    lanes.replaceChildren();
    axis.setAttribute("height", AXIS);
    const most = Math.max(2, width() / 95);
    const step = STEPS.find((s) => (to - from) / s < most) || 36500 * DAY;
    const ticks = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) ticks.push(at);
    let y = 6, before = null;
    const marks = make("g", {}, null);
    data.rows.forEach(([lane, items], row) => {
      if (lane !== before) {
        if (before !== null) y += GAP;
        if (before !== null) make("path", { class: "grid", d: `M0 ${y - GAP / 2}H5000` }, lanes);
        const name = make("text", { class: "lane", x: 10, y: y + ROW / 2 + 4 }, lanes, shorten(lane, 28));
        make("title", {}, name, lane);
      }
      before = lane;
      // What is long first, so that a moment at its beginning is not hidden by it.
      const drawn = marksOf(items).sort((a, b) => (b.x1 - b.x0) - (a.x1 - a.x0));
      for (const mark of drawn) drawMark(row, items, mark, y + ROW / 2, marks);
      y += ROW;
    });
    lanes.setAttribute("height", y + 8);
    for (const at of ticks) {
      const x = place(at);
      make("path", { class: "grid", d: `M${x} 0V${y + 8}` }, lanes);
      make("path", { class: "grid", d: `M${x} 14V${AXIS}` }, axis);
      make("text", { class: "dim", x: x + 3, y: 15 }, axis, tickLabel(at, step));
    }
    make("rect", { x: 0, y: 0, width: GUTTER - 6, height: AXIS, fill: "var(--ground)" }, axis);
    lanes.append(marks);
    const total = data.rows.reduce((n, row) => n + row[1].length, 0);
    document.getElementById("range").textContent = total
      ? `${total} item${total === 1 ? "" : "s"} · showing ${moment(rounded(from))} to ${moment(rounded(to))}` : "nothing happened yet";
  };
  const zoom = (factor, at) => {
    const least = 0.05, most = whole * 4;
    const span = Math.min(most, Math.max(least, (to - from) * factor));
    const share = (at - from) / (to - from);
    from = at - span * share;
    to = from + span;
    draw();
  };
  const move = (share) => { const by = (to - from) * share; from += by; to += by; draw(); };
  const reset = () => { from = data.start - pad; to = data.end + pad; draw(); };
  const choose = (row, index) => {
    chosen = [row, index];
    const item = data.rows[row][1][index];
    if (item[START] > to || endOf(item) < from) { const half = (to - from) / 2; from = item[START] - half; to = item[START] + half; }
    draw();
    tell(item[TEXT], item[SEQ]);
    const mark = lanes.querySelector(".chosen");
    if (mark) mark.scrollIntoView({ block: "nearest" });
  };
  const tell = (text, seq) => {
    said.textContent = text;
    if (seq && data.link) {
      const link = document.createElement("a");
      link.href = data.link + seq;
      link.textContent = ` event ${seq}`;
      said.append(link);
    }
  };
  const closer = (indices, items) => {
    const first = items[indices[0]], last = items[indices[indices.length - 1]];
    const span = Math.max(1, endOf(last) - first[START], last[START] - first[START]);
    const room = Math.min(Math.max(span * 1.4, 1), (to - from) / 2);
    const middle = indices.length > 1 ? (first[START] + last[START]) / 2 : (first[START] + endOf(first)) / 2;
    from = middle - room / 2;
    to = middle + room / 2;
    draw();
  };

  picture.addEventListener("keydown", (event) => {
    const middle = (from + to) / 2;
    const key = event.key;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const around = chosen ? data.rows[chosen[0]][1][chosen[1]][START] : middle;
    if (key === "+" || key === "=") zoom(0.5, around);
    else if (key === "-" || key === "_") zoom(2, around);
    else if (key === "0" || key === "Home") reset();
    else if (event.shiftKey && key === "ArrowLeft") move(-0.25);
    else if (event.shiftKey && key === "ArrowRight") move(0.25);
    else if (key === "Escape") { chosen = null; tell(""); tip.hidden = true; draw(); }
    else if (!data.rows.length) return;
    else if (key === "ArrowRight" || key === "ArrowLeft") {
      if (!chosen) choose(0, 0);
      else {
        const next = chosen[1] + (key === "ArrowRight" ? 1 : -1);
        if (next >= 0 && next < data.rows[chosen[0]][1].length) choose(chosen[0], next);
      }
    } else if (key === "ArrowDown" || key === "ArrowUp") {
      if (!chosen) choose(0, 0);
      else {
        const row = Math.min(data.rows.length - 1, Math.max(0, chosen[0] + (key === "ArrowDown" ? 1 : -1)));
        const items = data.rows[row][1];
        let best = 0;
        items.forEach((item, i) => { if (Math.abs(item[START] - around) < Math.abs(items[best][START] - around)) best = i; });
        choose(row, best);
      }
    } else if (key === "Enter" && chosen) {
      const mark = lanes.querySelector(".chosen");
      const indices = mark ? mark.dataset.items.split(" ").map(Number) : [chosen[1]];
      closer(indices, data.rows[chosen[0]][1]);
    } else return;
    event.preventDefault();
  });
  picture.addEventListener("wheel", (event) => {
    const box = picture.getBoundingClientRect();
    const at = from + ((event.clientX - box.left - GUTTER) / width()) * (to - from);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / 1000);
    else if (event.shiftKey) return;
    else zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
    event.preventDefault();
  }, { passive: false });
  let drag = null;
  picture.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, from, to, moved: false }; });
  window.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const by = ((drag.x - event.clientX) / width()) * (drag.to - drag.from);
    if (Math.abs(event.clientX - drag.x) > 3) drag.moved = true;
    if (!drag.moved) return;
    picture.classList.add("moving");
    from = drag.from + by;
    to = drag.to + by;
    draw();
  });
  window.addEventListener("pointerup", (event) => {
    const moved = drag && drag.moved;
    drag = null;
    picture.classList.remove("moving");
    const mark = event.target.closest && event.target.closest(".mark");
    if (moved || !mark) return;
    const row = Number(mark.dataset.row), indices = mark.dataset.items.split(" ").map(Number);
    if (indices.length > 1) closer(indices, data.rows[row][1]);
    else choose(row, indices[0]);
  });
  lanes.addEventListener("pointermove", (event) => {
    const mark = event.target.closest(".mark");
    tip.hidden = !mark || Boolean(drag && drag.moved);
    if (!mark) return;
    tip.textContent = mark.dataset.text;
    tip.style.left = Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 8) + "px";
  });
  picture.addEventListener("pointerleave", () => { tip.hidden = true; });
  window.addEventListener("resize", draw);

  const used = new Set(data.rows.flatMap((row) => row[1].map((item) => item[KIND])));
  for (const [kind, name] of Object.entries(data.kinds)) {
    if (!used.has(kind)) continue;
    const entry = document.createElement("span"), sign = make("svg", { width: 14, height: 14 }, entry);
    point(kind, 7, 7, sign);
    entry.append(name);
    document.getElementById("legend").append(entry);
  }
  draw();
})();
