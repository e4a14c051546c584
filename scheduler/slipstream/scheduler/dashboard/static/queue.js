// SPDX-License-Identifier: Apache-2.0
// All jobs, of which only those on the screen are in the page: ten thousand scroll like ten.

import { attr, calmly, cssVar, h, text } from "./dom.js";
import { count, ms, plural, span, words } from "./format.js";
import { kindOf, OVER, WAITS } from "./store.js";

const TABS = [
  ["waiting", "Waiting", (job) => WAITS.has(job.phase)],
  ["running", "Running", (job) => !WAITS.has(job.phase) && !OVER.has(job.phase)],
  ["ended", "Ended", (job) => OVER.has(job.phase)],
  ["all", "All", () => true],
];
const ORDERS = [
  ["queue", "Priority", (a, b) => b.priority - a.priority || a.submitted_s - b.submitted_s],
  ["newest", "Newest", (a, b) => b.submitted_s - a.submitted_s],
  ["longest", "Longest so", (a, b) => a.since_s - b.since_s],
  ["user", "User", (a, b) => a.user.localeCompare(b.user)],
];
const SPARE = 6;
const NUMBER = new Intl.Collator("en", { numeric: true });

export class QueueView {
  title = "Jobs";

  constructor(store, root) {
    this.store = store;
    this.kept = (QueueView.kept ??= { tab: null, order: "queue", search: "" });
    this.search = h("input", { type: "search", placeholder: "Search by job, name, user, account, reason", "aria-label": "Search jobs", value: this.kept.search, spellcheck: "false", autocomplete: "off" });
    this.tabs = h("div", { class: "segmented", role: "group", "aria-label": "Which jobs" });
    this.sort = h("select", { "aria-label": "Order" }, ORDERS.map(([id, label]) => h("option", { value: id, selected: id === this.kept.order }, label)));
    this.space = h("div", { class: "space", role: "presentation" });
    this.list = h("div", { class: "list", role: "grid", tabindex: "0", "aria-label": "Jobs", "aria-colcount": "6" }, this.space);
    this.summary = h("p", { class: "summary", role: "status" });
    this.empty = h("div", { class: "nothing", hidden: true });
    root.append(
      h("div", { class: "heading" }, h("h1", {}, "Jobs"), this.summary),
      h("div", { class: "bar-of-tools" }, this.tabs, h("div", { class: "tools" }, this.search, this.sort)),
      h("div", { class: "table" }, header(), this.list, this.empty),
    );
    this.rows = [];
    this.active = -1;
    this.narrow = matchMedia("(max-width: 760px)");
    this.paint = calmly(() => this.#paint());
    this.sift = calmly(() => this.#sift(), 200);
    this.watch = () => this.paint();
    this.list.addEventListener("scroll", this.watch, { passive: true });
    this.sizes = new ResizeObserver(this.watch);
    this.sizes.observe(this.list);
    this.list.addEventListener("keydown", (event) => this.#keys(event));
    this.list.addEventListener("click", (event) => this.#click(event));
    this.search.addEventListener("input", () => this.#choose({ search: this.search.value }));
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "Enter") {
        event.preventDefault();
        this.list.focus();
        this.#go(0);
      }
    });
    this.sort.addEventListener("change", () => this.#choose({ order: this.sort.value }));
    this.clock = setInterval(this.watch, 1000);
    this.#sift();
  }

  close() {
    clearInterval(this.clock);
    this.sizes.disconnect();
    this.closed = true;
  }

  update({ jobs }) {
    if (jobs === null || jobs.size) this.sift();
  }

  get height() {
    return this.narrow.matches ? 66 : 44;
  }

  #choose(choice) {
    Object.assign(this.kept, choice);
    this.list.scrollTop = 0;
    this.active = -1;
    this.#sift();
  }

  #sift() {
    if (this.closed) return;
    const all = [...this.store.jobs.values()];
    const counts = TABS.map(([id, label, fits]) => [id, label, all.filter(fits).length]);
    this.kept.tab ??= counts[0][2] ? "waiting" : "running";
    const fits = TABS.find(([id]) => id === this.kept.tab)[2];
    const asked = this.kept.search.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const held = this.found?.[this.active]?.key;
    this.found = all.filter((job) => fits(job) && asked.every((word) => matches(job, word)));
    const order = ORDERS.find(([id]) => id === this.kept.order)[2];
    this.found.sort((a, b) => order(a, b) || NUMBER.compare(a.key, b.key));
    if (held) this.active = this.found.findIndex((job) => job.key === held);
    this.#tabs(counts);
    text(this.summary, asked.length ? `${plural(this.found.length, "job")} of ${count(all.length)}` : plural(all.length, "job"));
    this.empty.hidden = this.found.length > 0;
    this.list.hidden = this.found.length === 0;
    if (!this.empty.hidden) {
      this.empty.replaceChildren(
        h("p", { class: "big" }, asked.length ? "No job is like that" : { waiting: "Nobody waits", running: "Nothing runs", ended: "Nothing has ended lately", all: "No jobs" }[this.kept.tab]),
        h("p", {}, asked.length ? "Search looks at numbers, names, users, accounts, classes, nodes and reasons." : "New jobs appear here by themselves."),
      );
    }
    this.#paint();
  }

  #tabs(counts) {
    const signature = JSON.stringify([counts, this.kept.tab]);
    if (this.tabbed === signature) return;
    this.tabbed = signature;
    const focused = this.tabs.contains(document.activeElement) ? document.activeElement.dataset.tab : null;
    this.tabs.replaceChildren(
      ...counts.map(([id, label, number]) =>
        h("button", { type: "button", "data-tab": id, "aria-pressed": String(id === this.kept.tab), onclick: () => this.#choose({ tab: id }) }, label, h("small", {}, count(number))),
      ),
    );
    if (focused) this.tabs.querySelector(`[data-tab=${focused}]`)?.focus();
  }

  #paint() {
    if (this.closed) return;
    const { height } = this;
    const from = Math.max(0, Math.floor(this.list.scrollTop / height) - SPARE);
    const seen = Math.ceil((this.list.clientHeight || 600) / height) + 2 * SPARE;
    const shown = this.found.slice(from, from + seen);
    this.space.style.height = `${this.found.length * height}px`;
    cssVar(this.list, "--tall", this.space.style.height);
    attr(this.list, "aria-rowcount", String(this.found.length));
    while (this.rows.length < shown.length) {
      const row = new JobRow();
      this.rows.push(row);
      this.space.append(row.node);
    }
    const now = this.store.now();
    this.rows.forEach((row, at) => row.update(shown[at], from + at, height, now, from + at === this.active, this.store.sentences));
    if (this.active >= 0) attr(this.list, "aria-activedescendant", `row-${this.active}`);
    else this.list.removeAttribute("aria-activedescendant");
  }

  #click(event) {
    const at = event.target.closest("[data-at]")?.dataset.at;
    if (at !== undefined) this.#open(Number(at));
  }

  #open(at) {
    const job = this.found[at];
    if (job) location.hash = `#/job/${encodeURIComponent(job.key)}`;
  }

  #keys(event) {
    const page = Math.max(1, Math.floor(this.list.clientHeight / this.height) - 1);
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page };
    if (event.key in steps) this.#go(Math.max(0, this.active) + (this.active < 0 ? 0 : steps[event.key]));
    else if (event.key === "Home") this.#go(0);
    else if (event.key === "End") this.#go(this.found.length - 1);
    else if (event.key === "Enter") this.#open(this.active);
    else return;
    event.preventDefault();
  }

  #go(to) {
    this.active = Math.min(this.found.length - 1, Math.max(0, to));
    const top = this.active * this.height;
    const view = this.list;
    if (top < view.scrollTop) view.scrollTop = top;
    else if (top + this.height > view.scrollTop + view.clientHeight) view.scrollTop = top + this.height - view.clientHeight;
    this.#paint();
  }
}

function matches(job, word) {
  job.hay ??= [job.key, job.name, job.user, job.account, job.partition, job.class || "plain", job.role, job.phase, job.reason, job.nodes, job.slurm_reason].join(" ").toLowerCase();
  return job.hay.includes(word);
}

function header() {
  return h("div", { class: "row head", "aria-hidden": "true" }, ["Job", "Name", "User", "Class", "State", "For"].map((one) => h("span", {}, one)));
}

class JobRow {
  constructor() {
    const cell = (name, ...children) => h("span", { class: name, role: "gridcell" }, ...children);
    this.key = cell("c-job");
    this.name = h("bdi", {});
    this.user = cell("c-user");
    this.kind = h("span", { class: "chip" });
    this.gpus = h("small", {});
    this.state = h("b", {});
    this.why = h("small", {});
    this.age = cell("c-age");
    this.node = h("div", { class: "row", role: "row" }, this.key, cell("c-name", this.name), this.user, cell("c-class", this.kind, this.gpus), cell("c-state", this.state, this.why), this.age);
  }

  update(job, at, height, now, active, sentences) {
    this.node.hidden = !job;
    if (!job) return;
    this.node.id = `row-${at}`;
    this.node.dataset.at = at;
    this.node.style.transform = `translateY(${at * height}px)`;
    attr(this.node, "aria-rowindex", String(at + 1));
    attr(this.node, "aria-selected", String(active));
    text(this.key, job.key.startsWith("token:") ? "new" : job.key);
    text(this.name, job.name || "–");
    text(this.user, job.user || "–");
    attr(this.kind, "data-kind", kindOf(job));
    text(this.kind, job.class || "no flag");
    const gpus = job.gpus || job.slots || job.asked;
    text(this.gpus, gpus ? `${job.role === "guest" ? "seat" : "GPU"}${gpus > 1 ? ` × ${gpus}` : ""}` : "");
    attr(this.state, "data-phase", job.phase);
    text(this.state, where(job));
    const why = because(job);
    text(this.why, why);
    attr(this.node, "title", WAITS.has(job.phase) ? (sentences[job.reason] ?? "") : "");
    text(this.age, span(now - (WAITS.has(job.phase) ? job.submitted_s : job.since_s)));
  }
}

function where(job) {
  if (WAITS.has(job.phase)) return job.advised ? `→ ${job.advised}` : words(job.reason);
  return job.phase === "running" ? job.nodes : job.phase;
}

function because(job) {
  if (WAITS.has(job.phase)) {
    const ours = job.advised ? words(job.reason) : "";
    return [ours, job.slurm_reason && `Slurm: ${job.slurm_reason}`].filter(Boolean).join(" · ");
  }
  if (!job.does) return "";
  const pace = job.minibatch_ms ? `${ms(job.minibatch_ms)} a mini-batch` : "";
  return [words(job.does), pace].filter(Boolean).join(" · ");
}
