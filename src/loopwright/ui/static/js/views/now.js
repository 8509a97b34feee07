// What a run is doing at this moment, from what its driver tells every few seconds. Nothing of it is known of a run that
// does not run, or is of a version that told nothing.

import { askRun } from "../api.js";
import { facts, h, replace, wideBox } from "../dom.js";
import { ago, duration, plain, whole } from "../format.js";

const since = (at) => duration(Math.max(0, Date.now() / 1000 - at));

// `ended` is how the run's last process ended, or null if it was killed, or is of a version that does not tell.
export function stateOf(status, alive, { ended, step, steps }) {
  if (status?.state === "silent") return h("span", { class: "warn" }, `a process uses it, and has told nothing${status.age === null ? "" : ` for ${duration(status.age)}`}`);
  if (alive) return h("span", { class: "good" }, "running");
  if (ended?.how === "error") return h("span", { class: "bad" }, `ended with an error${ended.error ? `: ${plain(ended.error)}` : ""}`);
  if (ended?.how === "stopped") return h("span", { class: "quiet" }, "stopped");
  if (ended?.how === "finished" || (steps && step >= steps)) return h("span", { class: "good" }, "finished");
  return h("span", { class: "quiet" }, "not running");
}

// What goes on, and who waits for what: the facts of a first view.
export function doing(status) {
  const told = status?.told || {};
  return [
    ...(told.now || []).map((phase) => ["now", `${plain(phase.what)} of step ${phase.step}, for ${since(phase.since)}`]),
    ...(told.waits || []).map((wait) => ["waits", `${plain(wait.who)} for ${plain(wait.for)}, for ${since(wait.since)}`]),
    ["stopping", told.stopping ? "yes, after this step" : null],
  ];
}

export function engineTable(told) {
  if (!told.engines?.length) return null;
  return wideBox("Engines now", h("table", null,
    h("thead", null, h("tr", null, ["engine", "state", "weights", "proven", "calls", "lost"].map((text, at) => h("th", { scope: "col", class: at > 3 ? "right" : null }, text)))),
    h("tbody", null, told.engines.map((one) => h("tr", null,
      h("th", { scope: "row" }, plain(one.name)),
      h("td", null, one.serves ? h("span", { class: "good" }, told.engines_paused ? "paused" : "serves") : h("span", { class: "bad" }, one.away_since ? `away for ${since(one.away_since)}` : "starts"), one.serves || !one.last_words ? null : h("pre", { class: "small" }, plain(one.last_words))),
      h("td", null, one.version ?? "–"),
      h("td", null, told.proof === "off" ? "switched off" : one.proof ? `version ${one.proof.version}, ${ago(one.proof.at)}` : "not yet"),
      h("td", { class: "right" }, whole(one.calls)),
      h("td", { class: "right" }, one.losses ? h("span", { class: "warn" }, one.losses === 1 ? "once" : `${one.losses} times`) : "never"))))));
}

// The ranks of the learner, by what they say in beats and answers.
export function rankTable(told) {
  if (!told.ranks?.length) return null;
  return table("Ranks now", [["rank"], ["state"], ["last heard"], ["tokens/s", "right"]], told.ranks.map((one) => [
    plain(one.rank), one.alive ? h("span", { class: "good" }, "alive") : h("span", { class: "bad" }, "lost"), one.heard ? ago(one.heard) : "not yet", one.tokens_per_second === null ? "–" : whole(one.tokens_per_second)]));
}

// Sessions of agents at the gateway, as the driver or the gateway's last answer counts them.
export function sessionFacts(told) {
  const found = told.sessions;
  if (!found) return null;
  return facts([["open", whole(found.open)], ["wait for the model", found.waiting === null ? "not told" : whole(found.waiting)], ["completed", whole(found.completed)], ["last heard", found.heard ? ago(found.heard) : null], ["started again", found.restarts ? h("span", { class: "warn" }, times(found.restarts)) : null], ["lost", found.lost ? h("span", { class: "bad" }, plain(found.lost)) : null]]);
}

// Actors of a cluster that do the same work.
export function crewTable(told) {
  if (!told.crews?.length) return null;
  return table("Actors now", [["actors"], ["alive", "right"], ["calls", "right"], ["started again", "right"]], told.crews.map((one) => [
    [plain(one.role), one.given_up ? h("pre", { class: "small" }, plain(one.given_up)) : null], h("span", { class: one.alive < one.actors ? "bad" : "good" }, `${one.alive} of ${one.actors}`), whole(one.calls), one.restarts ? h("span", { class: "warn" }, times(one.restarts)) : "never"]));
}

const times = (count) => (count === 1 ? "once" : `${count} times`);

const table = (label, heads, rows) => wideBox(label, h("table", null,
  h("thead", null, h("tr", null, heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)))),
  h("tbody", null, rows.map(([first, ...rest]) => h("tr", null, h("th", { scope: "row" }, first), rest.map((cell, at) => h("td", { class: heads[at + 1][1] }, cell)))))));

export function flightTable(told) {
  const flying = told.in_flight;
  if (!flying) return null;
  const oldest = flying.oldest || [];
  return h("div", null,
    facts([["with agents", whole(flying.agents)], ["being judged", whole(flying.judged)], ["ended so far", whole(flying.finished)]]),
    oldest.length ? wideBox("The oldest rollouts in flight", h("table", null,
      h("thead", null, h("tr", null, ["oldest in flight", "for", "doing", "tokens", "engine"].map((text, at) => h("th", { scope: "col", class: at === 3 ? "right" : null }, text)))),
      h("tbody", null, oldest.map((one) => h("tr", null, h("th", { scope: "row", class: "mono" }, plain(one.rollout)), h("td", null, since(one.since)), h("td", null, one.stage === "judge" ? "is judged" : `turn ${one.turn}`), h("td", { class: "right" }, whole(one.tokens)), h("td", null, (one.engines || []).map(plain).join(", "))))))) : null);
}

const isSaid = (value) => value !== null && value !== undefined && value !== "";

// Counts and states of production, of whatever names they have.
export function productionTable(told) {
  if (!told.production) return null;
  const { task_sets: sets = {}, ...rest } = told.production;
  const text = (value) => (value !== null && typeof value === "object" ? Object.entries(value).filter(([, inner]) => isSaid(inner)).map(([name, inner]) => (inner !== null && typeof inner === "object" ? `${name.replaceAll("_", " ")} (${text(inner)})` : `${name.replaceAll("_", " ")} ${plain(inner)}`)).join(", ") : plain(value));
  return h("div", null, facts(Object.entries(rest).filter(([, value]) => isSaid(value)).map(([name, value]) => [name.replaceAll("_", " "), text(value)])),
    Object.entries(sets).map(([name, one]) => h("p", null, h("b", null, name), " ", h("span", { class: "small" }, text(one)))));
}

// A box that follows the status while the view is open. `draw(status)` gives its content.
export function followed(run, first, draw, signal) {
  const box = h("div", null, draw(first));
  const again = async () => { try { replace(box, draw((await askRun(run, "/status", {}, signal)).status)); } catch { /* the next time */ } };
  return { box, news: (said, old) => { if (said.told !== old?.told) again(); } };
}
