// SPDX-License-Identifier: Apache-2.0
// Numbers for people.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const count = (n) => whole.format(n ?? 0);

export const pct = (n) => (n === null || n === undefined ? "–" : `${whole.format(n)} %`);

export function signedPct(n) {
  if (n === null || n === undefined) return "–";
  return `${n > 0 ? "+" : n < 0 ? "−" : "±"}${Math.abs(n).toFixed(1)} %`;
}

export function mib(n) {
  if (n === null || n === undefined) return "–";
  if (n >= 1024 * 1024) return `${short.format(n / 1024 / 1024)} TiB`;
  return n >= 1024 ? `${short.format(n / 1024)} GiB` : `${short.format(n)} MiB`;
}

export function ms(n) {
  if (!n) return "–";
  return n >= 1000 ? `${short.format(n / 1000)} s` : `${short.format(n)} ms`;
}

export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

export const moment = (at) =>
  new Date(at * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const words = (reason) => reason.replaceAll("_", " ").replace("slurm", "Slurm").replace("gpu", "GPU");

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
