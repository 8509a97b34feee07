// Alarms: what is wrong, since when, by which rule, and which trajectories show it.

import { h } from "../dom.js";
import { plain } from "../format.js";
import { keyParts, rolloutLink, stepLink } from "./links.js";

export function alarmCards(run, found) {
  if (!found.length) return h("p", { class: "good" }, "No alarm.");
  return found.map((alarm) => h("article", { class: `alarm${alarm.severe ? " severe" : ""}` },
    h("h3", null, plain(alarm.title), alarm.since === null ? null : h("span", { class: "since" }, "since ", h("a", { href: stepLink(run, alarm.since) }, `step ${alarm.since}`))),
    h("p", null, plain(alarm.numbers)),
    alarm.links.length ? h("p", { class: "bar" }, "Look at", alarm.links.map((link) => h("a", { href: href(run, link) }, told(link)))) : null,
    h("p", { class: "quiet small" }, `Rule: ${plain(alarm.rule)}.`)));
}

// One line for the top of a view.
export function alarmLine(run, found) {
  if (!found.length) return null;
  return h("div", { class: `alarm line${found.some((one) => one.severe) ? " severe" : ""}` },
    h("a", { href: `/run/${encodeURIComponent(run)}/health` }, h("b", null, found.length === 1 ? "1 alarm" : `${found.length} alarms`)),
    found.slice(0, 4).map((alarm) => h("span", null, plain(alarm.title), alarm.since === null ? "" : ` since step ${alarm.since}`)));
}

function href(run, link) {
  if (link.key) return rolloutLink(run, keyParts(link.key), { round: link.round || undefined });
  const query = new URLSearchParams(["status", "cause", "task_set"].filter((name) => link[name]).map((name) => [name, plain(link[name])])).toString();
  return stepLink(run, link.step) + (query ? `?${query}` : "");
}

const told = (link) => (link.key ? link.key : `step ${link.step}${link.status ? `, ${link.status} groups` : ""}`);
