// SPDX-License-Identifier: Apache-2.0
// What is known, kept up to date by the live feed. Views are told what has changed.

export class Store extends EventTarget {
  constructor() {
    super();
    this.jobs = new Map();
    this.nodes = new Map();
    this.meta = {};
    this.totals = [];
    this.sentences = {};
    this.nodeSentences = {};
    this.state = "connecting";
    this.ready = false;
    this.ahead_s = 0;
    this.heard_ms = 0;
  }

  /** Seconds since 1970, as the scheduler's clock has it. */
  now() {
    return Date.now() / 1000 + this.ahead_s;
  }

  connect(path = "/v1/live") {
    const source = new EventSource(path);
    source.addEventListener("snapshot", (event) => this.#snapshot(JSON.parse(event.data)));
    source.addEventListener("delta", (event) => this.#delta(JSON.parse(event.data)));
    source.onerror = () => {
      this.#became("lost");
      if (source.readyState === EventSource.CLOSED) setTimeout(() => this.connect(path), 3000);
    };
    clearInterval(this.watch);
    this.watch = setInterval(() => {
      if (this.state === "live" && performance.now() - this.heard_ms > 15_000) this.#became("lost");
    }, 1000);
  }

  #became(state) {
    if (this.state === state) return;
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }

  #snapshot(told) {
    this.columns = told.columns;
    this.sentences = told.sentences;
    this.nodeSentences = told.node_sentences;
    this.totals = told.totals;
    this.jobs = new Map(told.jobs.map((row) => [row[0], asObject(this.columns.jobs, row)]));
    this.nodes = new Map(told.nodes.map((row) => [row[0], this.#node(row)]));
    this.ready = true;
    this.#told(told, null, null);
  }

  #delta(told) {
    if (!this.ready) return;
    const jobs = new Set(told.jobs_gone);
    const nodes = new Set(told.nodes_gone);
    const reshaped = told.nodes_gone.length > 0 || told.nodes.some((row) => this.#isReshaped(row));
    for (const key of told.jobs_gone) this.jobs.delete(key);
    for (const name of told.nodes_gone) this.nodes.delete(name);
    for (const row of told.jobs) {
      this.jobs.set(row[0], asObject(this.columns.jobs, row));
      jobs.add(row[0]);
    }
    for (const row of told.nodes) {
      this.nodes.set(row[0], this.#node(row));
      nodes.add(row[0]);
    }
    if (told.total) {
      this.totals.push(told.total);
      if (this.totals.length > 720) this.totals.shift();
    }
    this.#told(told, jobs, reshaped ? null : nodes);
  }

  /** Whether the map has to be drawn anew for it, not only filled in. */
  #isReshaped(row) {
    const before = this.nodes.get(row[0]);
    const now = asObject(this.columns.nodes, row);
    return !before || before.rack !== now.rack || before.devices.length !== now.devices.length;
  }

  #node(row) {
    const node = asObject(this.columns.nodes, row);
    node.devices = node.devices.map((one) => asObject(this.columns.devices, one));
    return node;
  }

  #told(told, jobs, nodes) {
    this.meta = told.meta;
    this.ahead_s = told.at_s - Date.now() / 1000;
    this.heard_ms = performance.now();
    this.#became("live");
    this.dispatchEvent(new CustomEvent("change", { detail: { jobs, nodes } }));
  }
}

function asObject(columns, row) {
  const made = {};
  for (let at = 0; at < columns.length; at += 1) made[columns[at]] = row[at];
  return made;
}

/** The job's class as a word for colours; jobs without a flag of ours are plain. */
export const kindOf = (job) => job?.class || "plain";

export const WAITS = new Set(["waiting", "submitted"]);
export const OVER = new Set(["ended", "lost"]);
