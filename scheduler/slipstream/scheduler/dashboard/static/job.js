// SPDX-License-Identifier: Apache-2.0
// One job: what it does, how fast against its speed alone, and how it came there.

import { lineChart } from "./charts.js";
import { calmly, fetched, h, named } from "./dom.js";
import { clock, count, mib, moment, ms, pct, plural, signedPct, span, words } from "./format.js";
import { OVER, WAITS } from "./store.js";

const [AT, MINIBATCH, ALONE, SHARE, MEMORY] = [0, 1, 2, 3, 4];

export class JobView {
  constructor(store, root, key) {
    this.store = store;
    this.key = key;
    this.title = `Job ${key}`;
    this.head = h("header", { class: "job-head" });
    this.facts = h("section", { class: "cards", "aria-label": "In figures" });
    this.charts = h("section", { class: "charts", "aria-label": "Over time" });
    this.story = h("section", { class: "sheet" });
    this.details = h("section", { class: "sheet" });
    root.append(
      h("p", { class: "back" }, h("a", { href: "#/queue" }, "← Jobs")),
      this.head,
      this.facts,
      h("div", { class: "two" }, h("div", {}, this.charts), h("div", {}, this.story, this.details)),
    );
    this.ask = calmly(() => this.#ask(), 1000);
    this.#ask();
    this.timer = setInterval(() => this.ask(), 5000);
  }

  close() {
    clearInterval(this.timer);
    this.closed = true;
  }

  update({ jobs }) {
    if (jobs === null || jobs.has(this.key)) this.ask();
  }

  async #ask() {
    const path = encodeURIComponent(this.key);
    try {
      const [told, curve] = await Promise.all([fetched(`/v1/why/${path}`), fetched(`/v1/curve/${path}`)]);
      if (!this.closed) this.#draw(told.why, curve.points);
    } catch (error) {
      if (this.closed) return;
      this.head.replaceChildren(h("h1", {}, `Job ${this.key}`), h("p", { class: "sentence" }, error.message));
    }
  }

  #draw(job, points) {
    this.#head(job);
    this.#facts(job, points);
    this.#charts(job, points);
    this.#story(job);
    this.#details(job);
  }

  #head(job) {
    const training = job.training ?? {};
    const still = job.state !== job.phase ? job.state : "";
    const state = WAITS.has(job.phase) || OVER.has(job.phase) ? job.phase : still || training.phase || job.phase;
    const because = job.because.length ? ` (${job.because.join("; ")})` : "";
    const sentence = `${job.sentence.replace(/\.$/, "")}${because}.`;
    const more = [training.unattached_sentence && `Not attached: ${training.unattached_sentence}.`, job.stands_for && `Waits for ${job.stands_for}.`, training.node_sentence, job.slurm_says && `Slurm says: ${job.slurm_says}`, job.slurm_text && `Slurm adds: ${job.slurm_text}`];
    this.head.replaceChildren(
      h(
        "div",
        { class: "job-title" },
        h("h1", {}, named(job.name || `Job ${this.key}`)),
        h("span", { class: "chip", "data-kind": job.class ?? "plain" }, job.class ?? "no flag"),
        job.role && h("span", { class: "chip outline" }, job.role),
        h("span", { class: "chip outline", "data-phase": job.phase }, words(state)),
      ),
      h("p", { class: "muted" }, [`job ${job.job ?? "not numbered yet"}`, job.user, job.account, job.nodes.join(", ")].filter(Boolean).join(" · ")),
      h("p", { class: "sentence" }, sentence),
      ...more.filter(Boolean).map((one) => h("p", { class: "muted" }, one)),
    );
  }

  #facts(job, points) {
    const training = job.training ?? {};
    const last = points.findLast((one) => one[MINIBATCH]);
    const pace = training.minibatch_ms || last?.[MINIBATCH];
    const slower = training.slowdown_pct;
    const cards = [
      ["Mini-batch", ms(pace), training.alone_ms ? `${ms(training.alone_ms)} alone, ${signedPct(slower)}` : training.minibatch ? `${count(training.minibatch)} done` : "none yet"],
      ["Share", pct(training.share_pct), training.node_reason ? words(training.node_reason) : "of its GPUs' time"],
      ["GPU memory", mib(training.gpu_memory_mib), training.cap_mib ? `capped at ${mib(training.cap_mib)}` : "at its highest, no cap"],
      ["Waited for others", training.waited_s ? span(training.waited_s) : "0 s", training.restorable ? "can be moved" : "cannot be moved"],
    ];
    this.facts.replaceChildren(...cards.map(([title, value, more]) => h("article", { class: "card" }, h("h2", {}, title), h("p", { class: "value" }, value), h("p", { class: "more" }, more))));
  }

  #charts(job, points) {
    const column = (at) => points.map((one) => [one[AT], one[at]]);
    const alone = points.findLast((one) => one[ALONE])?.[ALONE];
    const width = Math.min(760, Math.max(340, this.charts.clientWidth - 40));
    const base = { time: clock, width };
    const pace = [{ points: column(MINIBATCH), kind: "main" }];
    if (alone && points.length) pace.push({ points: [[points[0][AT], alone], [points.at(-1)[AT], alone]], kind: "baseline" });
    this.charts.replaceChildren(
      figure("Mini-batch time", alone ? ["main", "now", "baseline", "alone"] : [], lineChart(pace, { ...base, format: ms, close: true, label: "Mini-batch time over time" })),
      figure("Share of its GPUs' time", [], lineChart([{ points: column(SHARE), kind: "share" }], { ...base, format: pct, max: 105, height: 130, label: "Share over time" })),
      figure("GPU memory at its highest", [], lineChart([{ points: column(MEMORY), kind: "memory" }], { ...base, format: mib, height: 130, label: "GPU memory over time" })),
    );
  }

  #story(job) {
    const lines = [...job.story].reverse();
    this.story.replaceChildren(
      h("h2", {}, "What happened"),
      lines.length
        ? h("ol", { class: "story" }, lines.map((line) => h("li", {}, h("time", { datetime: new Date(line.at_s * 1000).toISOString(), title: moment(line.at_s) }, clock(line.at_s)), h("span", {}, line.text))))
        : h("p", { class: "muted" }, "Nothing is written down: Slurm alone decides about it."),
    );
  }

  #details(job) {
    const training = job.training ?? {};
    const advice = job.advice && `${job.advice.nodes.join(", ") || "nowhere for now"} (${job.advice.strength})`;
    const launched = training.launch_s === null || training.launch_s === undefined ? null : `${span(training.launch_s)} to launch, ${span(training.train_s ?? 0)} training, ${span(training.save_s ?? 0)} saving`;
    const rows = [
      ["Estimate", job.estimate?.text],
      ["Advised", advice],
      ["GPUs", job.gpus ? `${job.gpus} owned` : job.slots ? plural(job.slots, "guest seat") : job.gpus_asked && `asks for ${job.gpus_asked}`],
      ["Nodes", job.nodes.join(", ")],
      ["Partition", job.partition],
      ["Account", job.account],
      ["Priority", job.priority ? count(job.priority) : null],
      ["Submitted", moment(job.submitted_at_s)],
      ["So far", launched],
      ["GPU use", training.gpu_use_pct ? pct(training.gpu_use_pct) : null],
    ].filter(([, value]) => value);
    this.details.replaceChildren(h("h2", {}, "Details"), h("dl", { class: "facts" }, rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, named(value, { title: null }))])));
  }
}

function figure(title, key, chart) {
  const legend = [];
  for (let at = 0; at < key.length; at += 2) legend.push(h("span", { class: `key ${key[at]}` }, key[at + 1]));
  return h("figure", { class: "sheet" }, h("figcaption", {}, title, ...legend), chart);
}
