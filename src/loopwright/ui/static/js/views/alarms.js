// Alarms: what is wrong, since when, by which rule, and which trajectories show it.

import { h } from "../dom.js";
import { plain } from "../format.js";
import { keyParts, rolloutLink, stepLink } from "./links.js";

// `problem` says why not all alarms could be looked for.
export function alarmCards(run, found, problem) {
  if (!found.length) return problem ? trouble(problem) : h("p", { class: "good" }, "No alarm.");
  return [problem ? trouble(problem) : null, found.map((alarm) => h("article", { class: `alarm${alarm.severe ? " severe" : ""}` },
    h("h3", null, plain(alarm.title), alarm.since === null ? null : h("span", { class: "since" }, "since ", h("a", { href: stepLink(run, alarm.since) }, `step ${alarm.since}`))),
    h("p", null, plain(alarm.numbers)),
    alarm.links.length ? h("p", { class: "bar" }, "Look at", alarm.links.map((link) => h("a", { href: href(run, link) }, told(link)))) : null,
    h("p", { class: "quiet small" }, `Rule: ${plain(alarm.rule)}.`)))];
}

const trouble = (problem) => h("p", { class: "alarm" }, "Not all alarms could be looked for: ", plain(problem));

// One line for the top of a view.
export function alarmLine(run, found, problem) {
  if (!found.length) return problem ? trouble(problem) : null;
  return [problem ? trouble(problem) : null, h("div", { class: `alarm line${found.some((one) => one.severe) ? " severe" : ""}` },
    h("a", { href: `/run/${encodeURIComponent(run)}/health` }, h("b", null, found.length === 1 ? "1 alarm" : `${found.length} alarms`)),
    found.slice(0, 4).map((alarm) => h("span", null, plain(alarm.title), alarm.since === null ? "" : ` since step ${alarm.since}`)))];
}

function href(run, link) {
  if (link.key) return rolloutLink(run, keyParts(link.key), { round: link.round || undefined });
  const query = new URLSearchParams(["status", "cause", "task_set"].filter((name) => link[name]).map((name) => [name, plain(link[name])])).toString();
  return stepLink(run, link.step) + (query ? `?${query}` : "");
}

const told = (link) => (link.key ? link.key : `step ${link.step}${link.status ? `, ${link.status} groups` : ""}`);
