// SPDX-License-Identifier: Apache-2.0
// The lanes of the timeline as data and as a picture: who was on each GPU, from when to when.

import { clock } from "./format.js";

export const LANE = 32;
export const AXIS = 26;
const GUEST_ROWS = 3;
const STILL = new Set(["parked", "paused", "waiting_for_baton", "suspended"]);
const LOADS = new Set(["importing", "loading", "unclaimed", "restoring", "rebinding"]);

/** Lanes by node and GPU, kept over several answers. */
export class Lanes {
  constructor() {
    this.lanes = [];
    this.moves = [];
    this.byPlace = new Map();
  }

  take(told, oldest_s) {
    this.moves = told.moves;
    const there = new Set();
    for (const one of told.lanes) {
      const place = `${one.node}/${one.gpu}`;
      there.add(place);
      let lane = this.byPlace.get(place);
      if (!lane) this.byPlace.set(place, (lane = { node: one.node, gpu: one.gpu, spans: [] }));
      const kept = new Map(lane.spans.filter((span) => span.until !== null && span.until > oldest_s).map((span) => [span.id, span]));
      for (const row of one.spans) {
        const span = asSpan(row);
        kept.set(span.id, span);
      }
      lane.spans = [...kept.values()].sort((a, b) => a.from - b.from);
      seat(lane);
    }
    for (const place of this.byPlace.keys()) if (!there.has(place)) this.byPlace.delete(place);
    this.lanes = [...this.byPlace.values()].sort((a, b) => a.node.localeCompare(b.node, "en", { numeric: true }) || a.gpu - b.gpu);
  }
}

function asSpan([from, until, job, role, does]) {
  return { id: `${from}/${job}/${role}/${does}`, from, until, job, role, does, row: 0 };
}

/** Guests side by side: each in the first row that is free when it comes. */
function seat(lane) {
  const until = [];
  const rows = new Map();
  for (const span of lane.spans) {
    if (span.role === "owner") continue;
    let row = rows.get(span.job) ?? until.findIndex((end) => end <= span.from);
    if (row < 0) row = until.length;
    until[row] = span.until ?? Infinity;
    rows.set(span.job, row);
    span.row = row % GUEST_ROWS;
  }
}

/** One colour for a job wherever it is; neighbours in number are far apart in hue. */
export function hueOf(job) {
  let sum = 0;
  for (const one of job) sum = (sum * 31 + one.codePointAt(0)) >>> 0;
  return (sum * 137.508) % 360;
}

/** Where a span is: an owner's is high, guests' are low and below it. */
export function boxOf(span, top, x) {
  const [left, right] = [x(span.from), x(span.until ?? Infinity)];
  if (span.role === "owner") return [left, top + 4, right - left, 14];
  return [left, top + 19 + span.row * 4, right - left, 3];
}

/** Draws what is in sight. `sight` has first, count, from_s, to_s, left, width, hot, look. */
export function draw(pen, lanes, moves, sight) {
  const { first, number, from_s, to_s, left, width, hot, look, offset } = sight;
  const height = AXIS + number * LANE;
  pen.clearRect(0, 0, width, height + LANE);
  const x = (at) => Math.min(width - 8, Math.max(left, left + ((at - from_s) / (to_s - from_s)) * (width - left - 8)));
  const top = (lane) => AXIS + (lane - first) * LANE - offset;
  pen.font = `12px ${look.font}`;
  pen.textBaseline = "middle";
  const scale = { x, from_s, to_s, width, height, left };
  ticks(scale, (px) => {
    pen.fillStyle = look.line;
    pen.fillRect(px, AXIS, 1, height);
  });
  for (let lane = first; lane < Math.min(lanes.length, first + number + 1); lane += 1) {
    const one = lanes[lane];
    const y = top(lane);
    const opens = lane === 0 || lanes[lane - 1].node !== one.node;
    pen.fillStyle = look.line;
    pen.fillRect(opens ? 0 : left, y, width, 1);
    if (sight.lane === lane) {
      pen.fillStyle = look.soft;
      pen.fillRect(0, y + 1, width, LANE - 1);
    }
    label(pen, one, y, opens || lane === first, left, look);
    for (const span of one.spans) {
      if ((span.until ?? Infinity) < from_s || span.from > to_s) continue;
      bar(pen, span, boxOf(span, y, x), hot, look);
    }
  }
  cover(pen, { width, height: AXIS }, look);
  arrows(pen, lanes, moves, { top, x, first, last: first + number, from_s, to_s }, look);
  pen.textAlign = "center";
  pen.fillStyle = look.muted;
  ticks(scale, (px, at) => pen.fillText(clock(at), px, AXIS / 2));
}

function label(pen, lane, y, named, left, look) {
  pen.fillStyle = look.text;
  pen.textAlign = "left";
  if (named) pen.fillText(lane.node.length > 13 ? `${lane.node.slice(0, 12)}…` : lane.node, 12, y + LANE / 2 - 2);
  pen.fillStyle = look.muted;
  pen.textAlign = "right";
  pen.fillText(String(lane.gpu), left - 12, y + LANE / 2 - 2);
}

function bar(pen, span, [x, y, wide, high], hot, look) {
  const faded = hot && hot !== span.job;
  const still = STILL.has(span.does);
  const loads = LOADS.has(span.does);
  const colour = `hsl(${hueOf(span.job).toFixed(0)} ${look.saturation}% ${look.lightness}% / ${(faded ? 0.25 : 1) * (still ? 0.28 : loads ? 0.55 : 1)})`;
  pen.fillStyle = colour;
  const w = Math.max(1, wide);
  pen.beginPath();
  pen.roundRect(x, y, w, high, Math.min(3, w / 2, high / 2));
  pen.fill();
  if (still && high > 8 && w > 6) {
    pen.strokeStyle = `hsl(${hueOf(span.job).toFixed(0)} ${look.saturation}% ${look.lightness}% / ${faded ? 0.2 : 0.8})`;
    pen.lineWidth = 1;
    pen.strokeRect(x + 0.5, y + 0.5, w - 1, high - 1);
  }
  if (high > 8 && w > 54 && !faded) {
    pen.fillStyle = still ? look.text : look.onBar;
    pen.textAlign = "left";
    pen.save();
    pen.beginPath();
    pen.rect(x, y, w - 4, high);
    pen.clip();
    pen.fillText(span.job, x + 6, y + high / 2 + 0.5);
    pen.restore();
  }
}

function arrows(pen, lanes, moves, { top, x, first, last, from_s, to_s }, look) {
  pen.strokeStyle = look.move;
  pen.fillStyle = look.move;
  pen.lineWidth = 1.5;
  for (const move of moves) {
    const at = move.ended_s ?? to_s;
    if (at < from_s) continue;
    const from = lanes.findIndex((one) => move.origin.includes(one.node));
    const to = lanes.findIndex((one) => move.target.includes(one.node));
    if (from < 0 || to < 0 || Math.max(from, to) < first || Math.min(from, to) > last) continue;
    const [x0, x1, y0, y1] = [x(move.began_s), x(at), top(from) + 11, top(to) + 11];
    pen.setLineDash(move.arrived ? [] : [4, 3]);
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.bezierCurveTo((x0 + x1) / 2, y0, (x0 + x1) / 2, y1, x1, y1);
    pen.stroke();
    pen.setLineDash([]);
    pen.beginPath();
    pen.arc(x1, y1, 3, 0, 2 * Math.PI);
    pen.fill();
  }
}

/** What scrolled above the first lane goes under the axis. */
function cover(pen, { width, height }, look) {
  pen.fillStyle = look.surface;
  pen.fillRect(0, 0, width, height);
  pen.fillStyle = look.line;
  pen.fillRect(0, height, width, 1);
}

/** Round times in sight, as many as fit. */
function ticks({ x, from_s, to_s, width, left }, act) {
  const step = [10, 30, 60, 120, 300, 600, 900, 1800].find((one) => (to_s - from_s) / one <= Math.max(2, (width - left) / 110)) ?? 3600;
  for (let at = Math.ceil(from_s / step) * step; at <= to_s; at += step) {
    const px = x(at);
    if (px >= left + 26 && px <= width - 30) act(px, at);
  }
}
