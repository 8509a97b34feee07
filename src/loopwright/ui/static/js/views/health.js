// Is the run well: alarms with their numbers, where its groups stand, and what happened to its engines.

import { askRun } from "../api.js";
import { facts, h, replace, wideBox } from "../dom.js";
import { ago, clock, plain, whole } from "../format.js";
import { everyMinute } from "../live.js";
import { alarmCards } from "./alarms.js";
import { crewTable, doing, engineTable, flightTable, followed, productionTable, rankTable, sessionFacts, stateOf } from "./now.js";

const STATUSES = ["pending", "aborted", "completed", "expired", "consumed", "filtered", "failed", "discarded", "rolled_back"];

export async function show({ run, signal, watch }) {
  const box = h("div"), rest = h("div");
  const now = followed(run, null, (status) => {
    const told = status?.told || {};
    const parts = [["What goes on", facts(doing(status))], ["Engines now", engineTable(told)], ["Ranks of the learner now", rankTable(told)], ["Sessions at the gateway now", sessionFacts(told)], ["Actors now", crewTable(told)], ["In flight now", flightTable(told)], ["Production", productionTable(told)]];
    return status && status.state !== "not running" ? parts.filter(([, part]) => part).map(([title, part]) => h("section", { class: "card" }, h("h2", null, title), part)) : null;
  }, signal);
  const load = async () => draw(await askRun(run, "/health", {}, signal), await askRun(run, "", {}, signal));
  const draw = (data, { ended, steps }) => {
    const sets = Object.entries(data.conservation || {});
    const used = STATUSES.filter((status) => sets.some(([, one]) => one.standing[status]));
    replace(box,
      h("section", { class: "card" }, facts([["state", stateOf(data.status, data.alive, { ...data, ended, steps })], ["step", data.step], ["last step", ago(data.at)]])),
      h("section", null, h("h2", null, "Alarms"), alarmCards(run, data.alarms, data.problem)));
    replace(rest,
      h("section", { class: "card" }, h("h2", null, "Where every group stands"), sets.length ? [wideBox("Where every group stands", h("table", null,
        h("thead", null, h("tr", null, h("th", { scope: "col" }, "task set"), ["drawn", ...used.map((status) => status.replace("_", " ")), "sum", "rollouts stored", "of these known"].map((text) => h("th", { scope: "col", class: "right" }, text)))),
        h("tbody", null, sets.map(([name, { sampled, standing, total }]) => h("tr", null, h("th", { scope: "row" }, name),
          h("td", { class: "right strong" }, whole(sampled.groups)), used.map((status) => h("td", { class: "right" }, standing[status] ? whole(standing[status].groups) : "0")),
          side(total.groups, sampled.groups), h("td", { class: "right" }, whole(sampled.members)), side(total.members, sampled.members)))))),
      h("p", { class: "quiet small" }, sets.every(([, one]) => one.sampled.groups === one.total.groups && one.sampled.members === one.total.members) ? "Every group that was drawn stands somewhere, once." : h("span", { class: "bad" }, "What was drawn and where it stands differ. `loopwright audit` says which groups."))] : h("p", { class: "quiet" }, "Nothing has been drawn yet.")),
      h("section", { class: "card" }, h("h2", null, "What happened to engines"), data.engine_events.length ? wideBox("What happened to engines", h("table", null, h("thead", null, h("tr", null, ["when", "step", "what", ""].map((text) => h("th", { scope: "col" }, text || h("span", { class: "hidden" }, "details"))))),
        h("tbody", null, [...data.engine_events].reverse().map((event) => h("tr", null, h("td", null, clock(event.at)), h("td", null, event.step), h("td", null, plain(event.name).replace("_", " ")), h("td", { class: "prose" }, h("pre", null, Object.entries(event.facts).map(([name, value]) => `${name}: ${plain(value)}`).join("\n")))))))) : h("p", { class: "quiet" }, "No engine was lost.")));
  };
  await load();
  everyMinute(signal, load);
  return { node: h("div", null, h("div", { class: "head" }, h("h1", null, "Health")), box, now.box, rest), title: `Health of ${run}`, shown: () => watch([run], (said, old) => { now.news(said, old); if (old && (said.rows !== old.rows || said.events !== old.events || said.alive !== old.alive)) load().catch(() => {}); }) };
}

// A side of the conservation that has to equal the other one.
const side = (found, wanted) => h("td", { class: "right strong" }, found === wanted ? whole(found) : h("span", { class: "bad" }, `${whole(found)}, not ${whole(wanted)}`));
