// SPDX-License-Identifier: Apache-2.0
// One GPU as a button: made once, filled in again and again.

import { attr, cssVar, h, text } from "./dom.js";
import { mib, pct, words } from "./format.js";
import { kindOf } from "./store.js";

/** What a GPU is, in words: what a screen reader says, and what hovering shows. */
export function inWords(node, gpu, jobs) {
  const called = (key) => {
    const name = jobs.get(key)?.name;
    return name ? `${name} (${key})` : `job ${key}`;
  };
  const parts = [`GPU ${gpu.index} of ${node.name}`];
  parts.push(gpu.use_pct === null ? "not reported" : `${gpu.use_pct} % used`);
  if (gpu.mib) parts.push(`${mib(gpu.used_mib)} of ${mib(gpu.mib)}`);
  parts.push(gpu.owner ? `owner ${called(gpu.owner)}` : "no owner");
  if (gpu.guests.length) parts.push(`guests ${gpu.guests.map(called).join(", ")}`);
  else if (!gpu.takes_guests) parts.push("takes no guests");
  return parts.join(", ");
}

export class Tile {
  /** @param dense whether only a small square is drawn */
  constructor(dense) {
    this.dense = dense;
    this.use = h("span", { class: "use" });
    this.fill = h("i", { class: "fill" });
    this.pips = h("span", { class: "pips" });
    this.node = h("button", { class: "gpu", type: "button", tabindex: "-1" });
    if (dense) this.node.append(this.fill, this.pips);
    else {
      this.number = h("b", {});
      this.bar = h("span", { class: "bar" }, this.fill);
      this.memory = h("span", { class: "bar memory" }, h("i", { class: "fill" }));
      this.memoryText = h("small", {});
      this.seats = h("span", { class: "seats" });
      this.node.append(
        h("span", { class: "gpu-head" }, h("span", { class: "gpu-name" }, "GPU ", this.number), this.use),
        this.bar,
        h("span", { class: "gpu-memory" }, this.memory, this.memoryText),
        this.seats,
      );
    }
  }

  update(node, gpu, jobs) {
    this.of = { node, gpu };
    const owner = gpu.owner ? jobs.get(gpu.owner) : null;
    attr(this.node, "data-kind", gpu.owner ? kindOf(owner) : "free");
    attr(this.node, "data-guests", String(gpu.guests.length));
    attr(this.node, "aria-label", inWords(node, gpu, jobs));
    cssVar(this.node, "--use", `${gpu.use_pct ?? 0}%`);
    if (this.dense) this.#pips(gpu, jobs);
    else this.#seats(gpu, jobs);
  }

  #pips(gpu, jobs) {
    const kinds = gpu.guests.slice(0, 3).map((key) => kindOf(jobs.get(key)));
    if (this.shown === kinds.join()) return;
    this.shown = kinds.join();
    this.pips.replaceChildren(...kinds.map((kind) => h("i", { "data-kind": kind })));
  }

  #seats(gpu, jobs) {
    text(this.number, String(gpu.index));
    text(this.use, pct(gpu.use_pct));
    const part = gpu.mib ? (100 * gpu.used_mib) / gpu.mib : 0;
    cssVar(this.memory, "--use", `${part.toFixed(0)}%`);
    text(this.memoryText, gpu.mib ? `${mib(gpu.used_mib)} / ${mib(gpu.mib)}` : "memory not reported");
    const seats = [[gpu.owner, "owner"], ...gpu.guests.map((key) => [key, "guest"])].filter(([key]) => key);
    const shown = seats.map(([key, role]) => [key, role, jobs.get(key)]);
    const signature = JSON.stringify(
      shown.map(([key, role, job]) => [key, role, job?.name, kindOf(job), role === "guest" && Math.round(job?.share_pct ?? 0), job?.does]),
    );
    if (this.shown === signature) return;
    this.shown = signature;
    this.seats.replaceChildren(...(shown.length ? shown.map(seat) : [h("span", { class: "seat none" }, "free")]));
  }
}

const STILL = new Set(["parked", "paused", "waits_for_turn", "waiting_for_baton"]);

function seat([key, role, job]) {
  const told = role === "guest" ? (STILL.has(job?.does) ? words(job.does) : job?.share_pct !== null && job ? `${Math.round(job.share_pct)} %` : "guest") : "owner";
  return h(
    "span",
    { class: `seat ${role}`, "data-kind": kindOf(job), "data-still": STILL.has(job?.does) ? "" : null },
    h("bdi", {}, job?.name || `job ${key}`),
    h("small", {}, told),
  );
}
