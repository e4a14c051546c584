// SPDX-License-Identifier: Apache-2.0
// The cluster in five figures, each with its last hour.

import { sparkline } from "./charts.js";
import { h, text } from "./dom.js";
import { count, mib, pct, plural } from "./format.js";
import { WAITS } from "./store.js";

/** [title, its place in the totals, what a screen reader calls its line] */
const CARDS = [
  ["GPU use", 1, "GPU use over the last hour"],
  ["Owned", 2, "GPUs owned over the last hour"],
  ["Guests", 3, "Guests over the last hour"],
  ["Running", 5, "Running jobs over the last hour"],
  ["Waiting", 4, "Waiting jobs over the last hour"],
];

export class Figures {
  constructor() {
    this.cards = CARDS.map(([title, column, label]) => {
      const [value, more, chart] = [h("p", { class: "value" }), h("p", { class: "more" }), h("div", { class: "spark-box" })];
      const node = h("article", { class: "card" }, h("h2", {}, title), value, more, chart);
      return { node, value, more, chart, column, label };
    });
    this.node = h("section", { class: "cards", "aria-label": "The cluster in figures" }, this.cards.map((one) => one.node));
  }

  update(store) {
    const sum = summed(store);
    const told = [
      [sum.reported ? pct(sum.used / sum.reported) : "–", sum.memory ? `${mib(sum.memoryUsed)} of ${mib(sum.memory)}` : "no coordinator reports"],
      [count(sum.owned), `of ${plural(sum.gpus, "GPU")}`],
      [count(sum.seated), `of ${plural(sum.slots, "seat")}`],
      [count(sum.running), store.meta.moves ? `${plural(store.meta.moves, "move")} under way` : "no move under way"],
      [count(sum.waiting), sum.waiting ? "see why under Jobs" : "nobody waits"],
    ];
    const last = store.totals.at(-1)?.[0];
    this.cards.forEach((card, at) => {
      text(card.value, told[at][0]);
      text(card.more, told[at][1]);
      if (this.drawn === last) return;
      const max = { 1: 100, 2: Math.max(1, sum.gpus) }[card.column] ?? null;
      const values = store.totals.map((one) => one[card.column]);
      card.chart.replaceChildren(sparkline(values, { max, label: card.label }));
    });
    this.drawn = last;
  }
}

function summed(store) {
  const sum = { gpus: 0, owned: 0, slots: 0, seated: 0, used: 0, reported: 0, memory: 0, memoryUsed: 0, waiting: 0, running: 0 };
  for (const node of store.nodes.values()) {
    sum.gpus += node.gpus;
    sum.owned += node.gpus_used;
    sum.slots += node.slots;
    sum.seated += node.slots_used;
    for (const gpu of node.devices) {
      if (gpu.use_pct === null) continue;
      sum.reported += 1;
      sum.used += gpu.use_pct;
      sum.memory += gpu.mib ?? 0;
      sum.memoryUsed += gpu.used_mib ?? 0;
    }
  }
  for (const job of store.jobs.values()) {
    if (WAITS.has(job.phase)) sum.waiting += 1;
    else if (job.phase === "running") sum.running += 1;
  }
  return sum;
}
