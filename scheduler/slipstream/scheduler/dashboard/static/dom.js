// SPDX-License-Identifier: Apache-2.0
// Elements from data. Text only ever becomes text: there is no way here to make markup of a string.

/** h("p", { class: "x", onclick }, "text", child): strings become text nodes. */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) set(node, name, value);
  node.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== false));
  return node;
}

function set(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else if (name === "class") node.className = value;
  else if (name === "vars") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
  else node.setAttribute(name, value === true ? "" : value);
}

/** A name that a user chose: kept apart, so that its direction cannot reorder what is around it. */
export function named(text, props = {}) {
  return h("bdi", { title: text.length > 24 ? text : null, ...props }, text);
}

/** Only what differs is written: a text that is set again is laid out again. */
export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

export function attr(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

export function cssVar(node, name, value) {
  if (node.style.getPropertyValue(name) !== value) node.style.setProperty(name, value);
}

/** At most one call per frame, and never closer than `apart` ms. */
export function calmly(act, apart = 0) {
  let due = 0;
  let last = -Infinity;
  const run = () => {
    due = 0;
    last = performance.now();
    act();
  };
  return () => {
    if (due) return;
    const wait = apart - (performance.now() - last);
    due = wait > 0 ? setTimeout(() => requestAnimationFrame(run), wait) : requestAnimationFrame(run);
  };
}

export async function fetched(path) {
  const answer = await fetch(path, { cache: "no-store" });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error ?? `${path}: ${answer.status}`);
  return told;
}
