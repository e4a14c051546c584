// SPDX-License-Identifier: Apache-2.0
// Ties the views to the store and to the address bar.

import { text } from "./dom.js";
import { EstimatorView } from "./estimator.js";
import { count, plural } from "./format.js";
import { JobView } from "./job.js";
import { MapView } from "./map.js";
import { QueueView } from "./queue.js";
import { Store, WAITS } from "./store.js";
import { TimelineView } from "./timeline.js";

const VIEWS = { map: MapView, timeline: TimelineView, queue: QueueView, job: JobView, estimator: EstimatorView };
const ORDER = ["map", "timeline", "queue", "estimator"];
const MODES = {
  observe: "Nothing is changed: it only says what it would do.",
  advise: "Jobs are placed.",
  enforce: "Jobs are placed, moved, and GPUs shared.",
};
const $ = (id) => document.getElementById(id);

const store = new Store();
let view = null;
let shown = "";

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const found = Object.hasOwn(VIEWS, name) ? name : "map";
  return [found, rest.map(decodeURIComponent).join("/")];
}

function show() {
  if (!store.ready) return;
  const [name, argument] = route();
  const now = `${name}/${argument}`;
  if (now === shown) return;
  const first = shown === "";
  shown = now;
  view?.close?.();
  const main = $("main");
  main.replaceChildren();
  main.dataset.view = name;
  view = new VIEWS[name](store, main, argument);
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link === main) continue;
    const here = link.dataset.view === name || (name === "job" && link.dataset.view === "queue");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view.title} · Slipstream`;
  scrollTo(0, 0);
  if (!first && !main.contains(document.activeElement)) main.focus({ preventScroll: true });
}

function head() {
  const live = $("live");
  live.dataset.state = store.state;
  text(live, { live: "live", lost: "reconnecting", connecting: "connecting" }[store.state]);
  const { mode, switched_off: off, slurm_away: away, node_modes: nodes } = store.meta;
  const pill = $("mode");
  pill.hidden = !mode;
  pill.dataset.mode = off ? "off" : mode;
  const differ = off || !nodes ? 0 : nodes.count - nodes.follow;
  text(pill, off ? "switched off" : differ ? `${mode} on ${nodes.follow} of ${plural(nodes.count, "node")}` : (mode ?? ""));
  pill.title = off ? "The kill switch is thrown: Slurm decides alone." : [MODES[mode] ?? "", ...(differ ? differing(nodes) : [])].join("\n");
  const banner = $("banner");
  banner.hidden = !(store.state === "lost" || off || away);
  if (store.state === "lost") text(banner, "The scheduler does not answer. Jobs run on; this is what was last seen.");
  else if (away) text(banner, "Slurm's controller does not answer: this is what was last seen.");
  else if (off) text(banner, "Slipstream is switched off: Slurm decides alone.");
  let waiting = 0;
  for (const job of store.jobs.values()) if (WAITS.has(job.phase)) waiting += 1;
  const badge = $("tab-waiting");
  badge.hidden = waiting === 0;
  text(badge, count(waiting));
  badge.title = `${count(waiting)} waiting`;
}

/** A line for each reason why nodes do not do what the mode says. */
function differing({ held_back: held, behind, silent }) {
  const some = (names) => names.slice(0, 8).join(", ") + (names.length > 8 ? ` and ${count(names.length - 8)} more` : "");
  return [
    held.length && `Held back by their own setting: ${some(held.map((one) => `${one.node} (${one.at_most} at most)`))}`,
    behind.length && `Have not followed yet: ${some(behind.map((one) => `${one.node} (${one.mode ?? "does not say"})`))}`,
    silent.length && `Not heard: ${some(silent)}`,
  ].filter(Boolean);
}

function keys(event) {
  const typing = /^(input|textarea|select)$/i.test(event.target.tagName ?? "");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && typing) event.target.blur();
  else if (event.key === "Escape" && route()[0] === "job") history.length > 1 ? history.back() : (location.hash = "#/queue");
  else if (typing) return;
  else if (event.key >= "1" && event.key <= "4") location.hash = `#/${ORDER[event.key - 1]}`;
  else if (event.key === "?") $("help").showModal();
  else if (event.key === "/") {
    location.hash = "#/queue";
    show(); // now, not when the browser tells of the new address: the field is to have the focus
    document.querySelector("input[type=search]")?.focus();
  } else return;
  event.preventDefault();
}

store.addEventListener("change", (event) => {
  if (view) view.update(event.detail);
  else show();
  head();
});
store.addEventListener("state", head);
addEventListener("hashchange", show);
addEventListener("keydown", keys);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
});
$("keys").addEventListener("click", () => $("help").showModal());
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
}
store.connect();
