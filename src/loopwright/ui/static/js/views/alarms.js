// Alarms: what is wrong, since when, by which rule, and which trajectories show it.

import { h } from "../dom.js";
import { plain } from "../format.js";
import { keyParts, rolloutLink, runLink, stepLink } from "./links.js";

const IN_LINE = 4;

// `problem` says why not all alarms could be looked for.
export function alarmCards(run, found, problem) {
  if (!found.length) return problem ? trouble(problem) : h("p", { class: "good" }, "No alarm.");
  return [problem ? trouble(problem) : null, found.map((alarm) => h("article", { class: `alarm${alarm.severe ? " severe" : ""}` },
    h("h3", null, plain(alarm.title), alarm.since === null ? null : h("span", { class: "since" }, "since ", h("a", { href: stepOf(run, alarm, alarm.since) }, `step ${alarm.since}`))),
    h("p", null, plain(alarm.numbers)),
    alarm.links.length ? h("p", { class: "bar" }, "Look at", alarm.links.map((link) => h("a", { href: href(run, alarm, link) }, told(link)))) : null,
    h("p", { class: "quiet small" }, `Rule: ${plain(alarm.rule)}.`)))];
}

const trouble = (problem) => h("p", { class: "alarm" }, "Not all alarms could be looked for: ", plain(problem));

// One line for the top of a view.
export function alarmLine(run, found, problem) {
  if (!found.length) return problem ? trouble(problem) : null;
  return [problem ? trouble(problem) : null, h("div", { class: `alarm line${found.some((one) => one.severe) ? " severe" : ""}` },
    h("a", { href: `/run/${encodeURIComponent(run)}/health` }, h("b", null, found.length === 1 ? "1 alarm" : `${found.length} alarms`)),
    found.slice(0, IN_LINE).map((alarm) => h("span", null, plain(alarm.title), since(alarm))),
    found.length > IN_LINE ? h("span", null, `and ${found.length - IN_LINE} more`) : null)];
}

// Nobody may have looked further back than to that step: then only the numbers name it.
function since({ since: step, numbers }) {
  if (step !== null) return ` since step ${step}`;
  const vague = /since step \d+ or earlier/.exec(plain(numbers));
  return vague ? ` ${vague[0]}` : "";
}

// What happened to an engine is seen in the timeline, and not in the groups of the step.
const stepOf = (run, alarm, step) => (alarm.kind === "engines" ? runLink(run, `/timeline?to=${step}&count=1`) : stepLink(run, step));

function href(run, alarm, link) {
  if (link.key) return rolloutLink(run, keyParts(link.key), { round: link.round || undefined });
  const query = new URLSearchParams(["status", "cause", "task_set"].filter((name) => link[name]).map((name) => [name, plain(link[name])])).toString();
  return stepOf(run, alarm, link.step) + (query ? `?${query}` : "");
}

const told = (link) => (link.key ? link.key : `step ${link.step}${link.status ? `, ${link.status} groups` : ""}`);
