// SPDX-License-Identifier: Apache-2.0
// Turns and moves, GPU by GPU. Drawn, not built: a thousand lanes cost what is in sight.

import { calmly, cssVar, fetched, h, text } from "./dom.js";
import { clock, plural, span as long, words } from "./format.js";
import { AXIS, boxOf, draw, LANE, Lanes } from "./lanes.js";

const WINDOWS = [[300, "5 min"], [900, "15 min"], [3600, "1 hour"]];
const KEEP_S = 3700;
const OVERLAP_S = 10;

export class TimelineView {
  title = "Timeline";

  constructor(store, root) {
    this.store = store;
    this.data = new Lanes();
    this.window_s = TimelineView.chosen ?? WINDOWS[0][0];
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.space = h("div", { class: "space" });
    this.box = h("div", { class: "lanes", tabindex: "0", role: "application", "aria-label": "Timeline of GPUs. Up and down choose a GPU, left and right a span, Enter opens its job." }, this.canvas, this.space);
    this.said = h("p", { class: "summary", role: "status" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.empty = h("div", { class: "nothing", hidden: true }, h("p", { class: "big" }, "Nothing to show yet"), h("p", {}, "GPUs appear here when a coordinator reports or a job owns one."));
    this.windows = h("div", { class: "segmented", role: "group", "aria-label": "How far back" });
    root.append(
      h("div", { class: "heading" }, h("h1", {}, "Timeline"), this.said),
      h("div", { class: "bar-of-tools" }, key(), this.windows),
      h("div", { class: "table" }, this.box, this.empty),
      this.tip,
    );
    this.paint = calmly(() => this.#paint());
    this.ask = calmly(() => this.#ask(), 1000);
    this.sizes = new ResizeObserver(() => this.paint());
    this.sizes.observe(this.box);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.relook = () => this.#look();
    this.dark.addEventListener("change", this.relook);
    this.box.addEventListener("scroll", () => this.paint(), { passive: true });
    this.box.addEventListener("pointermove", (event) => this.#hover(event));
    this.box.addEventListener("pointerleave", () => this.#cool());
    this.box.addEventListener("click", (event) => this.#click(event));
    this.box.addEventListener("keydown", (event) => this.#keys(event));
    this.timer = setInterval(() => this.paint(), 500);
    this.#look();
    this.#buttons();
    this.#ask();
  }

  close() {
    this.closed = true;
    clearInterval(this.timer);
    this.sizes.disconnect();
    this.dark.removeEventListener("change", this.relook);
  }

  update({ nodes }) {
    if (nodes === null || nodes.size) this.ask();
  }

  async #ask() {
    const now = this.store.now();
    const after = this.asked ? Math.max(now - KEEP_S, this.asked - OVERLAP_S) : now - KEEP_S;
    try {
      const told = await fetched(`/v1/timeline?after=${after.toFixed(0)}`);
      if (this.closed) return;
      this.asked = now;
      this.data.take(told, now - KEEP_S);
      if (!TimelineView.chosen) this.#fit(now);
      this.empty.hidden = this.data.lanes.length > 0;
      this.box.hidden = this.data.lanes.length === 0;
      this.#summary();
      this.paint();
    } catch {
      // The next change asks again; the banner says that the scheduler is away.
    }
  }

  /** As far back as there is something to see. */
  #fit(now) {
    const first = Math.min(...this.data.lanes.flatMap((lane) => lane.spans.slice(0, 1).map((span) => span.from)));
    const [seconds] = WINDOWS.find(([one]) => now - first <= one) ?? WINDOWS.at(-1);
    if (seconds === this.window_s || !Number.isFinite(first)) return;
    this.window_s = seconds;
    this.#buttons();
  }

  #summary() {
    if (this.spanAt) return;
    const moves = this.data.moves.length;
    text(this.said, `${plural(this.data.lanes.length, "GPU")}${moves ? `, ${plural(moves, "move")}` : ""}`);
  }

  #look() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    this.look = {
      text: value("--text"),
      muted: value("--muted"),
      line: value("--line"),
      soft: value("--soft"),
      surface: value("--surface"),
      move: value("--text"),
      onBar: this.dark.matches ? "#0b0e14" : "#ffffff",
      saturation: this.dark.matches ? 62 : 58,
      lightness: this.dark.matches ? 66 : 46,
      font: getComputedStyle(document.body).fontFamily,
    };
    this.paint?.();
  }

  #buttons() {
    this.windows.replaceChildren(
      ...WINDOWS.map(([seconds, label]) =>
        h("button", { type: "button", "aria-pressed": String(seconds === this.window_s), onclick: () => this.#choose(seconds) }, label),
      ),
    );
  }

  #choose(seconds) {
    TimelineView.chosen = this.window_s = seconds;
    this.#buttons();
    this.paint();
  }

  #sight() {
    const width = this.box.clientWidth;
    const to_s = this.store.now();
    return {
      width,
      left: Math.min(148, width * 0.32),
      to_s,
      from_s: to_s - this.window_s,
      first: Math.floor(this.box.scrollTop / LANE),
      offset: this.box.scrollTop % LANE,
      number: Math.ceil((this.box.clientHeight - AXIS) / LANE) + 1,
      hot: this.hot ?? this.spanAt?.job,
      lane: this.laneAt,
      look: this.look,
    };
  }

  #paint() {
    if (this.closed || !this.look) return;
    const sight = this.#sight();
    const high = this.box.clientHeight;
    const scale = devicePixelRatio || 1;
    const all = `${this.data.lanes.length * LANE + AXIS}px`;
    this.space.style.height = all;
    cssVar(this.box, "--tall", all);
    const [wide, tall] = [Math.round(sight.width * scale), Math.round(high * scale)];
    if (this.canvas.width !== wide || this.canvas.height !== tall) {
      this.canvas.width = wide;
      this.canvas.height = tall;
      this.canvas.style.width = `${sight.width}px`;
      this.canvas.style.height = `${high}px`;
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    draw(pen, this.data.lanes, this.data.moves, sight);
  }

  #found(event) {
    const box = this.box.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    if (py < AXIS) return null;
    const sight = this.#sight();
    const lane = Math.floor((py - AXIS + this.box.scrollTop) / LANE);
    const top = AXIS + lane * LANE - this.box.scrollTop;
    const x = (at) => Math.min(sight.width - 8, Math.max(sight.left, sight.left + ((at - sight.from_s) / this.window_s) * (sight.width - sight.left - 8)));
    for (const span of [...(this.data.lanes[lane]?.spans ?? [])].reverse()) {
      const [left, upper, wide, high] = boxOf(span, top, x);
      if (px >= left && px <= left + Math.max(wide, 3) && py >= upper - 1 && py <= upper + high + 1) return { lane, span };
    }
    return null;
  }

  #hover(event) {
    const found = this.#found(event);
    this.hot = found?.span.job;
    this.box.classList.toggle("pointing", Boolean(found));
    this.tip.hidden = !found;
    if (found) {
      text(this.tip, this.#words(found.lane, found.span));
      this.tip.style.left = `${Math.max(8, Math.min(innerWidth - this.tip.offsetWidth - 8, event.clientX - this.tip.offsetWidth / 2))}px`;
      this.tip.style.top = `${event.clientY - this.tip.offsetHeight - 14}px`;
    }
    this.paint();
  }

  #cool() {
    this.hot = null;
    this.tip.hidden = true;
    this.paint();
  }

  #click(event) {
    const found = this.#found(event);
    if (found) location.hash = `#/job/${encodeURIComponent(found.span.job)}`;
  }

  #words(lane, span) {
    const { node, gpu } = this.data.lanes[lane];
    const name = this.store.jobs.get(span.job)?.name;
    const until = span.until ?? this.store.now();
    return `${name ? `${name} (${span.job})` : `job ${span.job}`}, ${span.role}, ${words(span.does)} on GPU ${gpu} of ${node}, ${clock(span.from)} – ${span.until ? clock(span.until) : "now"}, ${long(until - span.from)}`;
  }

  #keys(event) {
    const lanes = this.data.lanes;
    if (!lanes.length) return;
    const spans = lanes[this.laneAt]?.spans ?? [];
    const at = spans.indexOf(this.spanAt);
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.laneAt = this.laneAt === undefined ? 0 : Math.min(lanes.length - 1, Math.max(0, this.laneAt + step));
      this.spanAt = lanes[this.laneAt].spans.at(-1);
    } else if (event.key === "ArrowLeft") this.spanAt = spans[Math.max(0, at - 1)];
    else if (event.key === "ArrowRight") this.spanAt = spans[Math.min(spans.length - 1, at + 1)];
    else if (event.key === "Enter" && this.spanAt) location.hash = `#/job/${encodeURIComponent(this.spanAt.job)}`;
    else return;
    event.preventDefault();
    const top = this.laneAt * LANE;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + LANE + AXIS > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + LANE + AXIS - this.box.clientHeight;
    const { node, gpu } = lanes[this.laneAt];
    text(this.said, this.spanAt ? this.#words(this.laneAt, this.spanAt) : `Nobody was on GPU ${gpu} of ${node}`);
    this.paint();
  }
}

function key() {
  return h(
    "ul",
    { class: "legend lanes-key", "aria-label": "How to read it" },
    h("li", { class: "k-owner" }, "owner"),
    h("li", { class: "k-guest" }, "guest"),
    h("li", { class: "k-still" }, "parked or paused"),
    h("li", { class: "k-move" }, "move"),
    h("li", { class: "k-note" }, "one colour, one job"),
  );
}
