// SPDX-License-Identifier: Apache-2.0
// How good the estimates are: each model on what it had not seen, and each job that has ended.

import { scatter } from "./charts.js";
import { fetched, h, named } from "./dom.js";
import { count, mib, moment, pct, plural, span, words } from "./format.js";

const GOOD = 0.9;
const FAIR = 0.7;

export class EstimatorView {
  title = "Estimates";

  constructor(store, root) {
    this.store = store;
    this.root = h("div", { class: "estimator" });
    root.append(h("div", { class: "heading" }, h("h1", {}, "Estimates"), h("p", { class: "summary" }, "What jobs were thought to need, and what they took")), this.root);
    this.#ask();
    this.timer = setInterval(() => this.#ask(), 5000);
  }

  close() {
    clearInterval(this.timer);
    this.closed = true;
  }

  update() {}

  async #ask() {
    try {
      const told = await fetched("/v1/estimator");
      const shape = JSON.stringify(told);
      if (this.closed || shape === this.shape) return;
      this.shape = shape;
      this.#draw(told);
    } catch (error) {
      if (!this.closed && !this.shape) this.root.replaceChildren(h("p", { class: "muted" }, error.message));
    }
  }

  #draw({ models, bad, outcomes }) {
    const pairs = (name) => outcomes.map((one) => [one.estimated[name], one.measured[name]]);
    const broken = Object.entries(bad);
    this.root.replaceChildren(
      h(
        "div",
        { class: "three" },
        plot("GPU memory", "The estimate is a safe bound: dots belong below the line.", pairs("gpu_memory_mib"), mib),
        plot("Run time", "The estimate is the middle: as many above the line as below.", pairs("run_s"), span),
        plot("GPU use", "The mean over a job's life.", pairs("gpu_use_pct"), pct),
      ),
      h(
        "section",
        { class: "sheet" },
        h("h2", {}, "Models", h("small", {}, models.length ? plural(models.length, "family", "families") : "")),
        models.length ? table(models) : h("p", { class: "muted" }, "No model has been fitted yet: it takes 8 runs with different settings of one program. Until then jobs count with safe defaults."),
      ),
      h("section", { class: "sheet" }, h("h2", {}, "Files that are no models"), h("ul", {}, broken.map(([file, why]) => h("li", {}, named(file), `: ${why}`)))),
    );
    if (broken.length === 0) this.root.lastChild.remove();
  }
}

function plot(title, more, points, format) {
  const known = points.filter(([a, b]) => a > 0 && b > 0);
  return h(
    "figure",
    { class: "sheet" },
    h("figcaption", {}, title, h("span", { class: "key" }, plural(known.length, "job"))),
    known.length ? scatter(known, { format, label: `${title}: estimated against measured` }) : h("p", { class: "nothing" }, "No job has ended yet"),
    h("p", { class: "muted" }, more),
  );
}

function table(models) {
  const rows = models.flatMap((model) =>
    Object.entries(model.scores).map(([label, score], at) =>
      h(
        "tr",
        {},
        at === 0 && h("th", { rowspan: Object.keys(model.scores).length, scope: "rowgroup" }, model.everybody ? "all families" : named(model.family), h("small", {}, `${count(model.runs)} runs, ${moment(model.fitted_s)}`)),
        h("td", {}, words(label)),
        h("td", { class: "number" }, h("span", { class: "meter", "data-good": score.r2 >= GOOD ? "good" : score.r2 >= FAIR ? "fair" : "poor", vars: { "--use": `${Math.max(0, Math.min(1, score.r2)) * 100}%` } }), score.r2.toFixed(2)),
        h("td", { class: "number" }, pct(score.error * 100)),
        h("td", { class: "number" }, pct(score.recent_error * 100)),
        h("td", {}, score.off ? `off: ${score.off}` : "in use"),
      ),
    ),
  );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Models" },
    h("table", {}, h("thead", {}, h("tr", {}, ["Family", "What", "R²", "Median error", "Last ten runs", ""].map((one) => h("th", { scope: "col" }, one)))), h("tbody", {}, rows)),
  );
}
