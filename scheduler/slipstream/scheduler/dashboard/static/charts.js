// SPDX-License-Identifier: Apache-2.0
// Small charts as SVG, made of numbers only.

const NS = "http://www.w3.org/2000/svg";

export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** Points with gaps as one path. */
function path(points) {
  let drawn = "";
  let pen = false;
  for (const [x, y] of points) {
    if (!known(y)) pen = false;
    else {
      drawn += `${pen ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`;
      pen = true;
    }
  }
  return drawn;
}

/** A line without axes: how something has gone. */
export function sparkline(values, { max = null, label }) {
  const [width, height] = [120, 36];
  const top = max ?? Math.max(1, ...values.filter(known)) * 1.1;
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((one, at) => [at * step, known(one) ? height - 2 - (one / top) * (height - 5) : null]);
  const line = path(points);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", class: "spark", role: "img", "aria-label": label });
  if (line) {
    const [first, last] = [points.find(([, y]) => known(y)), points.findLast(([, y]) => known(y))];
    picture.append(
      svg("path", { d: `${line}L${last[0].toFixed(1)},${height}L${first[0].toFixed(1)},${height}Z`, class: "area" }),
      svg("path", { d: line, class: "line", "vector-effect": "non-scaling-stroke" }),
    );
  }
  return picture;
}

export function niceTicks(low, high, wanted = 4) {
  const raw = (high - low || 1) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw);
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) ticks.push(at);
  return ticks;
}

/** Lines over time: [{ points: [[at_s, value]], name, kind }]; `kind` is its CSS class. */
export function lineChart(series, { format, label, close = false, time, height = 200, min = 0, max = null, width = 720 }) {
  const [left, right, upper, lower] = [62, 14, 12, 26];
  const all = series.flatMap((one) => one.points).filter(([, value]) => known(value));
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": label });
  if (all.length < 2) {
    picture.append(svg("text", { x: width / 2, y: height / 2, class: "empty", "text-anchor": "middle" }, "Nothing measured yet"));
    return picture;
  }
  const times = all.map(([at]) => at);
  const values = all.map(([, value]) => value);
  const [t0, t1] = [Math.min(...times), Math.max(...times)];
  const least = Math.min(...values);
  // One first mini-batch of many seconds must not flatten all that came after it.
  const usual = values.toSorted((a, b) => a - b)[Math.floor(values.length * 0.95)];
  const most = close ? Math.min(Math.max(...values), usual * 1.5) : Math.max(...values);
  // What hardly varies is looked at closely: a few percent are what matters.
  const low = close && least > most * 0.7 ? least - (most - least || most * 0.05) * 1.5 : min;
  const high = max ?? (low > min ? most + (most - least || most * 0.05) : most * 1.15);
  const x = (at) => left + ((at - t0) / (t1 - t0 || 1)) * (width - left - right);
  const y = (value) => height - lower - ((value - low) / (high - low || 1)) * (height - upper - lower);
  for (const tick of niceTicks(low, high)) {
    picture.append(
      svg("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), class: "grid" }),
      svg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, tick === 0 ? "0" : format(tick)),
    );
  }
  for (const [at, anchor] of [[t0, "start"], [(t0 + t1) / 2, "middle"], [t1, "end"]]) {
    picture.append(svg("text", { x: x(at), y: height - 6, "text-anchor": anchor }, time(at)));
  }
  for (const one of series) {
    const points = one.points.map(([at, value]) => [x(at), known(value) ? y(Math.min(value, high)) : null]);
    picture.append(svg("path", { d: path(points), class: `line ${one.kind}` }));
  }
  return picture;
}

/** What was said against what was measured, both on logarithmic scales. */
export function scatter(points, { format, label, size = 320 }) {
  const [left, right, upper, lower] = [64, 14, 14, 40];
  const picture = svg("svg", { viewBox: `0 0 ${size} ${size}`, class: "chart scatter", role: "img", "aria-label": label });
  const fit = points.filter(([a, b]) => a > 0 && b > 0);
  const logs = fit.flat().map(Math.log10);
  const [low, high] = [Math.min(...logs) - 0.1, Math.max(...logs) + 0.1];
  const x = (value) => left + ((Math.log10(value) - low) / (high - low)) * (size - left - right);
  const y = (value) => size - lower - ((Math.log10(value) - low) / (high - low)) * (size - upper - lower);
  const [first, last] = [10 ** low, 10 ** high];
  picture.append(svg("line", { x1: x(first), y1: y(first), x2: x(last), y2: y(last), class: "baseline" }));
  for (const part of [0.08, 0.5, 0.92]) {
    const value = 10 ** (low + (high - low) * part);
    picture.append(
      svg("text", { x: x(value), y: size - 22, "text-anchor": "middle" }, format(value)),
      svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, format(value)),
    );
  }
  picture.append(
    svg("text", { x: (size + left) / 2, y: size - 4, "text-anchor": "middle", class: "axis" }, "estimated"),
    svg("text", { x: 4, y: 12, class: "axis" }, "measured"),
  );
  for (const [a, b] of fit) picture.append(svg("circle", { cx: x(a).toFixed(1), cy: y(b).toFixed(1), r: 3.5, class: "dot" }));
  return picture;
}
