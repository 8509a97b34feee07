// Addresses of views, and small things that several views show of a rollout.

import { h } from "../dom.js";
import { number, plain } from "../format.js";

export const runLink = (run, rest = "") => `/run/${encodeURIComponent(run)}${rest}`;
export const stepLink = (run, step) => runLink(run, `/step/${step}`);

export function rolloutLink(run, { task_set: set, draw, member, attempt }, more = {}) {
  const query = new URLSearchParams(Object.entries(more).filter(([, value]) => value !== undefined && value !== null && value !== "")).toString();
  return runLink(run, `/rollout/${encodeURIComponent(set)}/${draw}/${member}/${attempt}${query ? `?${query}` : ""}`);
}

export function keyParts(key) {
  const parts = key.split("/");
  const [draw, member, attempt] = parts.splice(-3).map(Number);
  return { task_set: parts.join("/"), draw, member, attempt };
}

// A member of a group: its reward, or why it has none.
export function chip(run, group, one, here = false) {
  const failed = one.cause !== null;
  const text = failed ? one.cause : one.reward === null ? "not scored" : number(one.reward);
  const bits = [one.stop === "budget" ? "cut" : "", one.attempt ? `try ${one.attempt + 1}` : "", one.advantage !== null && one.advantage !== undefined ? `adv ${number(one.advantage, 2)}` : ""].filter(Boolean);
  const title = [`member ${one.member}`, failed ? plain(one.error) : `reward ${text}`, ...bits, one.oldest === null ? "" : `oldest token of version ${one.oldest}`].filter(Boolean).join(", ");
  return h("a", { class: `chip${failed ? " failed" : ""}${here ? " here" : ""}`, href: rolloutLink(run, { ...group, member: one.member, attempt: one.attempt }, { round: group.round || undefined }), title, "aria-current": here ? "true" : null }, h("span", { class: "hidden" }, `member ${one.member}: ${failed ? "failed, " : "reward "}`), text, bits.length ? [" ", h("span", { class: "bit" }, bits.join(" "))] : null);
}
