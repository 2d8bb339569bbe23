"use strict";

// Texts come out of the user's code, so they only ever become text nodes and attributes, never HTML.

const SVG = "http://www.w3.org/2000/svg";
const CACHED = 1;
const FAILED = 2;
const STATES = ["", "cached", "failed"];

function element(name, attributes = {}, text = null) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

function shape(name, attributes, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

function duration(microseconds) {
  const seconds = microseconds / 1e6;
  if (seconds < 0.01) return `${(seconds * 1e3).toFixed(2)} ms`;
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

function plural(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** Move the tip beside the pointer, and into the window. */
function placeTip(tip, event) {
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
  const below = event.clientY + 18;
  const top = below + box.height > window.innerHeight ? event.clientY - box.height - 10 : below;
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${Math.max(top, 8)}px`;
}

/* ---- Timeline ---- */

class Timeline {
  static GUTTER = 58;
  static HEAD = 26;
  static NARROW = 2;

  constructor(chart, tip, data) {
    this.chart = chart;
    this.tip = tip;
    this.stages = data.stages.map(([label, colour]) => ({ label, colour, hidden: false }));
    this.spans = data.spans.map(([stage, lane, start, time, subject, state, cpu, peak]) => ({
      stage, lane, start, end: start + time, subject, state, cpu, peak,
    }));
    this.end = Math.max(data.end, 1);
    this.lanes = this.spans.reduce((most, span) => Math.max(most, span.lane + 1), 1);
    this.row = this.lanes > 24 ? 14 : this.lanes > 8 ? 20 : 30;
    this.from = 0;
    this.to = this.end;
    this.byLane = Array.from({ length: this.lanes }, () => []);
    for (const span of this.spans) this.byLane[span.lane].push(span);
  }

  get height() {
    return Timeline.HEAD + this.lanes * this.row + 8;
  }

  /** Show a part of the run, at least a millisecond of it. */
  show(from, to) {
    const length = Math.min(Math.max(to - from, 1e3), this.end);
    this.from = Math.min(Math.max(from, 0), this.end - length);
    this.to = this.from + length;
    this.draw();
  }

  zoom(factor) {
    const middle = (this.from + this.to) / 2;
    const half = ((this.to - this.from) * factor) / 2;
    this.show(middle - half, middle + half);
  }

  move(share) {
    const step = (this.to - this.from) * share;
    this.show(this.from + step, this.to + step);
  }

  draw(width = this.chart.clientWidth) {
    this.width = Math.max(width, 200);
    this.scale = (this.width - Timeline.GUTTER - 12) / (this.to - this.from);
    this.drawn = [];
    this.chart.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.chart.replaceChildren(this.axis(), ...this.byLane.map((spans, lane) => this.lane(spans, lane)));
  }

  x(time) {
    return Timeline.GUTTER + (time - this.from) * this.scale;
  }

  time(x) {
    return this.from + (x - Timeline.GUTTER) / this.scale;
  }

  axis() {
    const group = shape("g", {});
    const step = tickStep((this.to - this.from) / Math.max(2, Math.floor(this.width / 110)));
    for (let time = Math.ceil(this.from / step) * step; time <= this.to; time += step) {
      const x = this.x(time);
      group.append(shape("line", { class: "grid", x1: x, x2: x, y1: Timeline.HEAD - 6, y2: this.height }));
      const anchor = x > this.width - 30 ? "end" : "middle";
      group.append(shape("text", { x, y: 14, "text-anchor": anchor }, tickText(time, step)));
    }
    return group;
  }

  lane(spans, lane) {
    const group = shape("g", {});
    const y = Timeline.HEAD + lane * this.row;
    group.append(shape("text", { x: 10, y: y + this.row / 2 + 2 }, `slot ${lane + 1}`));
    // What failed comes last, so that no neighbour covers a part of it.
    for (const bar of this.bars(spans).sort((a, b) => (a.state === FAILED) - (b.state === FAILED))) {
      this.drawBar(group, bar, y);
    }
    return group;
  }

  /** The bars of a lane. Neighbours that are too narrow to be seen become one bar. */
  bars(spans) {
    const bars = [];
    for (const span of spans) {
      if (span.end < this.from || span.start > this.to || this.stages[span.stage].hidden) continue;
      const left = Math.max(this.x(span.start), Timeline.GUTTER);
      const right = Math.min(this.x(span.end), this.width - 12);
      const last = bars.at(-1);
      const narrow = right - left < Timeline.NARROW;
      if (narrow && last?.narrow && left - last.left < 2 * Timeline.NARROW) {
        last.right = Math.max(last.right, right);
        last.state = Math.max(last.state, span.state);
        last.spans.push(span);
      } else {
        bars.push({ left, right, narrow, state: span.state, spans: [span] });
      }
    }
    return bars;
  }

  drawBar(group, bar, y) {
    const longest = bar.spans.reduce((a, b) => (b.end - b.start > a.end - a.start ? b : a));
    const stage = this.stages[longest.stage];
    const space = bar.right - bar.left;
    const width = space > 4 ? space - 0.75 : Math.max(space, 1);
    const height = this.row - 3;
    const rounding = Math.min(2, width / 3);
    group.append(shape("rect", {
      class: `bar c${stage.colour} ${STATES[bar.state]}`, x: bar.left, y, width, height, rx: rounding,
      "data-index": this.drawn.push(bar) - 1,
    }));
    const room = Math.floor((width - 12) / 6.3);
    const text = (bar.state === FAILED ? "✕ " : "") + longest.subject;
    if ((room < 8 && text.length > room) || this.row < 19 || bar.spans.length > 1) return;
    const shown = text.length > room ? `${text.slice(0, room - 1)}…` : text;
    group.append(shape("text", { x: bar.left + 6, y: y + height / 2 + 4 }, shown));
  }

  /** Show what a bar stands for beside the pointer. */
  explain(event) {
    const index = event.target.dataset?.index;
    this.tip.hidden = index === undefined;
    if (this.tip.hidden) return;
    this.tip.replaceChildren(...this.lines(this.drawn[index].spans));
    placeTip(this.tip, event);
  }

  lines(spans) {
    const total = spans.reduce((sum, span) => sum + span.end - span.start, 0);
    if (spans.length > 1) {
      const longest = spans.reduce((a, b) => (b.end - b.start > a.end - a.start ? b : a));
      const title = element("strong", {}, `${plural(spans.length, "short step")}, ${duration(total)} together`);
      return [title, element("div", {}, `the longest: ${this.stages[longest.stage].label} ${longest.subject}`)];
    }
    const [span] = spans;
    const state = span.state === CACHED ? ", from the build cache" : span.state === FAILED ? ", failed" : "";
    const facts = [
      `${this.stages[span.stage].label}${state}`,
      `${duration(total)}, from ${duration(span.start)} to ${duration(span.end)}`,
    ];
    if (span.cpu !== null) facts.push(`${duration(span.cpu * 1e6)} of processor time`);
    if (span.peak !== null) facts.push(`${(span.peak / 1024).toFixed(1)} MiB at its peak`);
    return [element("strong", {}, span.subject), ...facts.map((fact) => element("div", {}, fact))];
  }
}

/** The next round number of microseconds: 1, 2 or 5 times a power of ten; above a second, parts of a minute. */
function tickStep(least) {
  const minutes = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600].map((seconds) => seconds * 1e6);
  if (least > 1e6) return minutes.find((step) => step >= least) ?? Math.ceil(least / 3.6e9) * 3.6e9;
  const power = 10 ** Math.floor(Math.log10(least));
  return power * ([1, 2, 5].find((factor) => factor * power >= least) ?? 10);
}

function tickText(time, step) {
  if (step >= 6e7) return `${Math.round(time / 6e7)} min`;
  const digits = step >= 1e6 ? 0 : Math.min(4, Math.ceil(-Math.log10(step / 1e6) - 1e-9));
  return `${(time / 1e6).toFixed(digits)} s`;
}

function addLegend(place, timeline) {
  for (const [index, stage] of timeline.stages.entries()) {
    const own = timeline.spans.filter((span) => span.stage === index);
    const total = own.reduce((sum, span) => sum + span.end - span.start, 0);
    const button = element("button", { type: "button", "aria-pressed": "true", title: "Show or hide" });
    button.append(element("i", { class: `chip c${stage.colour}` }), `${stage.label} `);
    button.append(element("small", {}, `${own.length.toLocaleString("en")} · ${duration(total)}`));
    button.addEventListener("click", () => {
      stage.hidden = !stage.hidden;
      button.setAttribute("aria-pressed", String(!stage.hidden));
      timeline.draw();
    });
    place.append(button);
  }
  for (const [state, text] of [[CACHED, "from cache"], [FAILED, "failed"]]) {
    if (!timeline.spans.some((span) => span.state === state)) continue;
    const key = element("span");
    key.append(element("i", { class: `chip ${STATES[state]}` }), text);
    place.append(key);
  }
}

function addZoom(timeline, section) {
  const actions = {
    in: () => timeline.zoom(0.5),
    out: () => timeline.zoom(2),
    all: () => timeline.show(0, timeline.end),
    left: () => timeline.move(-0.2),
    right: () => timeline.move(0.2),
  };
  const keys = { "+": "in", "=": "in", "-": "out", 0: "all", ArrowLeft: "left", ArrowRight: "right" };
  for (const button of section.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", actions[button.dataset.zoom]);
  }
  timeline.chart.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[keys[event.key]]();
  });
  timeline.chart.addEventListener("dblclick", actions.all);
}

/** Dragging over a part of the timeline enlarges it. */
function addSelection(timeline) {
  const chart = timeline.chart;
  let begin = null;
  let box = null;
  const place = (event) => {
    const x = ((event.clientX - chart.getBoundingClientRect().left) / chart.clientWidth) * timeline.width;
    return Math.min(Math.max(x, Timeline.GUTTER), timeline.width - 12);
  };
  const stop = () => {
    box?.remove();
    begin = box = null;
  };
  chart.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && event.pointerType !== "touch") begin = place(event);
  });
  chart.addEventListener("pointermove", (event) => {
    if (begin === null) return timeline.explain(event);
    const now = place(event);
    if (box === null && Math.abs(now - begin) < 5) return;
    if (box === null) {
      box = shape("rect", { class: "selection", y: Timeline.HEAD - 6, height: timeline.height });
      chart.append(box);
      chart.setPointerCapture(event.pointerId);
      timeline.tip.hidden = true;
    }
    box.setAttribute("x", Math.min(begin, now));
    box.setAttribute("width", Math.abs(now - begin));
  });
  chart.addEventListener("pointerup", (event) => {
    const edges = box === null ? null : [begin, place(event)].sort((a, b) => a - b);
    stop();
    if (edges) timeline.show(timeline.time(edges[0]), timeline.time(edges[1]));
  });
  chart.addEventListener("pointercancel", stop);
  chart.addEventListener("pointerleave", () => {
    timeline.tip.hidden = true;
    if (box === null) begin = null;
  });
}

function addTimeline(data) {
  const section = document.getElementById("timeline");
  const chart = document.getElementById("chart");
  const timeline = new Timeline(chart, document.getElementById("tip"), data);
  for (const hidden of section.querySelectorAll("[hidden]")) hidden.removeAttribute("hidden");
  addLegend(section.querySelector(".legend"), timeline);
  addZoom(timeline, section);
  addSelection(timeline);
  timeline.draw();
  new ResizeObserver(() => {
    if (chart.clientWidth !== timeline.width) timeline.draw();
  }).observe(chart);
  // Paper has a width of its own, about 1000 points: the chart is drawn for it, so that its texts keep their size.
  window.addEventListener("beforeprint", () => timeline.draw(1000));
  window.addEventListener("afterprint", () => timeline.draw());
}

/* ---- Tables ---- */

/** What a cell is sorted by; null for a value that is not known. */
function sortKey(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  return cell.classList.contains("missing") ? null : cell.textContent;
}

function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortBy(table, heading, original) {
  const column = heading.cellIndex;
  const first = heading.classList.contains("number") ? "descending" : "ascending";
  const second = first === "descending" ? "ascending" : "descending";
  const current = heading.getAttribute("aria-sort");
  const next = current === null ? first : current === first ? second : null;
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  let rows = original;
  if (next !== null) {
    heading.setAttribute("aria-sort", next);
    const sign = next === "ascending" ? 1 : -1;
    const keyed = original.map((row) => [sortKey(row, column), row]);
    const known = keyed.filter(([key]) => key !== null).sort((a, b) => sign * compare(a[0], b[0]));
    rows = [...known, ...keyed.filter(([key]) => key === null)].map(([, row]) => row);
  }
  table.tBodies[0].replaceChildren(...rows);
}

/** A click on a heading sorts, a second one the other way round, a third one restores the order. */
function addSorting(table) {
  const original = [...table.tBodies[0].rows];
  for (const button of table.querySelectorAll("th button")) {
    button.addEventListener("click", () => sortBy(table, button.parentElement, original));
  }
}

/** Show the rows that contain all words of the filter. */
function addFilter(section) {
  const controls = section.querySelector(".controls");
  if (controls === null) return;
  const rows = [...section.querySelector("tbody").rows];
  const words = controls.querySelector(".filter");
  const spills = controls.querySelector(".spills");
  const update = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
      const fits = wanted.every((word) => text.includes(word));
      row.hidden = !fits || (spills?.checked && row.querySelector(".bad") === null);
    }
    const shown = rows.filter((row) => !row.hidden).length;
    controls.querySelector("output").textContent = `${shown.toLocaleString("en")} of ${plural(rows.length, "row")}`;
  };
  controls.hidden = false;
  words.addEventListener("input", update);
  spills?.addEventListener("change", update);
  update();
}

/* ---- Tuning ---- */

/** Titles of marks and cells become tips, which come at once; without this script, the browser shows them. */
function addTips(section, tip) {
  for (const title of section.querySelectorAll("svg title")) {
    title.parentElement.dataset.tip = title.textContent;
    title.remove();
  }
  for (const cell of section.querySelectorAll(".cell")) {
    cell.dataset.tip = cell.title;
    cell.removeAttribute("title");
  }
  section.addEventListener("pointermove", (event) => {
    const text = event.target.closest("[data-tip]")?.dataset.tip;
    tip.hidden = text === undefined;
    if (tip.hidden) return;
    const [first, ...rest] = text.split("\n");
    tip.replaceChildren(element("strong", {}, first), ...rest.map((line) => element("div", {}, line)));
    placeTip(tip, event);
  });
  section.addEventListener("pointerleave", () => { tip.hidden = true; });
}

/** The candidate under the pointer, or in the legend the one with the focus, stands out in all plots of its config. */
function addLighting(times) {
  const light = (event) => {
    const number = event.target.closest("[data-candidate]")?.dataset.candidate;
    times.classList.toggle("lighting", number !== undefined);
    for (const one of times.querySelectorAll(".one")) one.classList.toggle("lit", one.dataset.candidate === number);
  };
  for (const kind of ["pointerover", "focusin"]) times.addEventListener(kind, light);
  for (const kind of ["pointerleave", "focusout"]) times.addEventListener(kind, () => times.classList.remove("lighting"));
}

const data = JSON.parse(document.getElementById("data").textContent);
if (data !== null) addTimeline(data);
for (const table of document.querySelectorAll("table")) addSorting(table);
for (const section of document.querySelectorAll("section.code")) addFilter(section);
for (const section of document.querySelectorAll("section.tuning")) addTips(section, document.getElementById("tip"));
for (const times of document.querySelectorAll(".times")) addLighting(times);
