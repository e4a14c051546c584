// SPDX-License-Identifier: Apache-2.0
// The cluster: racks, nodes, GPUs, who owns them and who rides along.

import { calmly, h, named, text } from "./dom.js";
import { Figures } from "./figures.js";
import { mib, pct, plural } from "./format.js";
import { kindOf } from "./store.js";
import { inWords, Tile } from "./tiles.js";

const DENSE_FROM = 72;
export const KINDS = [
  ["guaranteed", "guaranteed"],
  ["shared", "shared"],
  ["opportunistic", "opportunistic"],
  ["auto", "auto"],
  ["plain", "no flag"],
];

export class MapView {
  title = "Cluster";

  constructor(store, root) {
    this.store = store;
    this.figures = new Figures();
    this.racks = h("section", { class: "racks", "aria-label": "Racks, nodes and GPUs" });
    this.size = h("div", { class: "segmented", role: "group", "aria-label": "Size of GPUs" });
    root.append(
      h("h1", { class: "sr" }, "Cluster"),
      this.figures.node,
      h("div", { class: "bar-of-tools" }, legend(), this.size),
      this.racks,
    );
    this.choice = null;
    this.draw = calmly(() => this.#draw(), 100);
    this.pending = new Set();
    this.racks.addEventListener("keydown", (event) => this.#keys(event));
    this.racks.addEventListener("click", (event) => this.#open(event.target.closest(".gpu")));
    this.tip = h("div", { class: "tip", role: "tooltip", hidden: true });
    root.append(this.tip);
    for (const [name, on] of [["pointerover", true], ["pointerout", false], ["focusin", true], ["focusout", false]]) {
      this.racks.addEventListener(name, (event) => this.#hint(event.target.closest?.(".gpu"), on));
    }
    this.#build();
    this.figures.update(this.store);
  }

  close() {
    this.closed = true;
  }

  update({ jobs, nodes }) {
    if (nodes === null) this.rebuild = true;
    else for (const name of nodes) this.pending.add(name);
    if (jobs === null) this.rebuild = true;
    for (const key of jobs ?? []) for (const name of this.seatsOf.get(key) ?? []) this.pending.add(name);
    this.draw();
  }

  #draw() {
    if (this.closed) return;
    if (this.rebuild) this.#build();
    else {
      for (const name of this.pending) this.#fill(name);
    }
    this.pending.clear();
    this.figures.update(this.store);
  }

  get dense() {
    let gpus = 0;
    for (const node of this.store.nodes.values()) gpus += node.devices.length;
    return this.choice ?? gpus >= DENSE_FROM;
  }

  #build() {
    this.rebuild = false;
    const focused = document.activeElement?.closest?.(".gpu");
    const before = focused && this.racks.contains(focused) ? this.#indexOf(focused) : -1;
    const dense = this.dense;
    this.tiles = new Map();
    this.heads = new Map();
    this.seatsOf = new Map();
    this.keysOn = new Map();
    const racks = new Map();
    for (const node of [...this.store.nodes.values()].sort(byName)) {
      if (!racks.has(node.rack)) racks.set(node.rack, []);
      racks.get(node.rack).push(node);
    }
    this.racks.classList.toggle("dense", dense);
    this.racks.replaceChildren(...[...racks].sort(([a], [b]) => compare(a, b)).map(([rack, nodes]) => this.#rack(rack, nodes, racks.size, dense)));
    if (racks.size === 0) this.racks.append(nothing());
    this.order = [...this.racks.querySelectorAll(".gpu")];
    const first = this.order[Math.max(0, before)];
    if (first) first.tabIndex = 0;
    if (before >= 0) first?.focus();
    for (const name of this.store.nodes.keys()) this.#fill(name);
    this.#sizes(dense);
  }

  #rack(rack, nodes, racks, dense) {
    const gpus = nodes.reduce((sum, node) => sum + node.devices.length, 0);
    const title = racks === 1 && (rack === "cluster" || !rack) ? "All nodes" : rack || "In no rack";
    return h(
      "section",
      { class: "rack" },
      h("h2", {}, named(title), h("small", {}, `${plural(nodes.length, "node")} · ${plural(gpus, "GPU")}`)),
      h("div", { class: "nodes" }, nodes.map((node) => this.#node(node, dense))),
    );
  }

  #node(node, dense) {
    const state = h("span", { class: "node-state" });
    const tiles = node.devices.map(() => new Tile(dense));
    this.tiles.set(node.name, tiles);
    const card = h(
      "article",
      { class: "node", "aria-label": `Node ${node.name}` },
      h("h3", {}, named(node.name), state),
      h("div", { class: "gpus" }, tiles.map((tile) => tile.node)),
    );
    tiles.forEach((tile) => (tile.node.tile = tile));
    this.heads.set(node.name, { state, card });
    return card;
  }

  #fill(name) {
    const node = this.store.nodes.get(name);
    const tiles = this.tiles.get(name);
    if (!node || !tiles) return;
    const here = new Set(node.devices.flatMap((gpu) => (gpu.owner ? [gpu.owner, ...gpu.guests] : gpu.guests)));
    for (const key of this.keysOn.get(name) ?? []) if (!here.has(key)) this.#left(key, name);
    for (const key of here) {
      if (!this.seatsOf.has(key)) this.seatsOf.set(key, new Set());
      this.seatsOf.get(key).add(name);
    }
    this.keysOn.set(name, here);
    node.devices.forEach((gpu, at) => tiles[at]?.update(node, gpu, this.store.jobs));
    const { state, card } = this.heads.get(name);
    text(state, node.takes_jobs ? (node.reported_s === null ? "no coordinator" : "") : node.state.toLowerCase());
    card.classList.toggle("closed", !node.takes_jobs);
  }

  #left(key, name) {
    const nodes = this.seatsOf.get(key);
    nodes?.delete(name);
    if (nodes?.size === 0) this.seatsOf.delete(key);
  }

  #sizes(dense) {
    const choose = (choice) => () => {
      this.choice = choice;
      this.#build();
    };
    this.size.replaceChildren(
      h("button", { type: "button", "aria-pressed": String(!dense), onclick: choose(false) }, "Detailed"),
      h("button", { type: "button", "aria-pressed": String(dense), onclick: choose(true) }, "Dense"),
    );
  }

  #indexOf(button) {
    return this.order?.indexOf(button) ?? -1;
  }

  #keys(event) {
    const at = this.#indexOf(event.target);
    if (at < 0) return;
    let to = null;
    if (event.key === "ArrowRight") to = at + 1;
    else if (event.key === "ArrowLeft") to = at - 1;
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = this.order.length - 1;
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") to = this.#beside(at, event.key === "ArrowDown" ? 1 : -1);
    else return;
    event.preventDefault();
    const target = this.order[to];
    if (!target) return;
    event.target.tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
  }

  /** The nearest one in the next row of the screen. */
  #beside(at, way) {
    const from = this.order[at].getBoundingClientRect();
    let found = null;
    let row = null;
    for (let to = at + way; to >= 0 && to < this.order.length; to += way) {
      const box = this.order[to].getBoundingClientRect();
      const below = way > 0 ? box.top >= from.bottom - 1 : box.bottom <= from.top + 1;
      if (!below) continue;
      if (row !== null && Math.abs(box.top - row) > 2) break;
      row ??= box.top;
      const off = Math.abs(box.left + box.width / 2 - from.left - from.width / 2);
      if (found === null || off < found[1]) found = [to, off];
    }
    return found?.[0] ?? null;
  }

  #hint(button, on) {
    const { tip } = this;
    if (!button || !on || !button.tile?.dense) {
      tip.hidden = true;
      return;
    }
    text(tip, inWords(button.tile.of.node, button.tile.of.gpu, this.store.jobs));
    tip.hidden = false;
    const box = button.getBoundingClientRect();
    const width = tip.offsetWidth;
    tip.style.left = `${Math.max(8, Math.min(innerWidth - width - 8, box.left + box.width / 2 - width / 2))}px`;
    tip.style.top = `${box.top > 80 ? box.top - tip.offsetHeight - 8 : box.bottom + 8}px`;
  }

  #open(button) {
    if (!button) return;
    const { node, gpu } = button.tile.of;
    const panel = document.getElementById("panel");
    const job = (key, role) => {
      const one = this.store.jobs.get(key);
      const share = role === "guest" && one?.share_pct !== null && one ? ` · ${Math.round(one.share_pct)} % share` : "";
      return h("li", {}, h("a", { href: `#/job/${encodeURIComponent(key)}`, "data-kind": kindOf(one), onclick: () => panel.close() }, named(one?.name || `job ${key}`), h("small", {}, `${key} · ${role}${share}`)));
    };
    const seats = [...(gpu.owner ? [job(gpu.owner, "owner")] : []), ...gpu.guests.map((key) => job(key, "guest"))];
    panel.setAttribute("aria-label", `GPU ${gpu.index} of ${node.name}`);
    panel.replaceChildren(
      h("h2", {}, `GPU ${gpu.index}`, h("small", {}, node.name)),
      h("p", {}, `${pct(gpu.use_pct)} used, ${mib(gpu.used_mib)} of ${mib(gpu.mib)}`, gpu.takes_guests ? "" : "; takes no guests"),
      seats.length ? h("ul", { class: "seats-list" }, seats) : h("p", { class: "muted" }, "Nobody is on it."),
      h("form", { method: "dialog" }, h("button", {}, "Close")),
    );
    panel.showModal();
  }
}

function legend() {
  return h(
    "ul",
    { class: "legend", "aria-label": "Colours" },
    KINDS.map(([kind, label]) => h("li", { "data-kind": kind }, label)),
    h("li", { "data-kind": "free" }, "free"),
    h("li", { class: "guest-key" }, "guest"),
  );
}

function nothing() {
  return h(
    "div",
    { class: "nothing" },
    h("p", { class: "big" }, "No nodes yet"),
    h("p", {}, "Slurm has shown no node with GPUs. As soon as it does, they appear here."),
  );
}

const compare = (a, b) => a.localeCompare(b, "en", { numeric: true });
const byName = (a, b) => compare(a.name, b.name);
