// Two or more runs: their curves in the same charts, and the settings in which they differ.

import { ask, askRun } from "../api.js";
import { Chart, ChartGroup } from "../chart.js";
import { h, pick, replace, wideBox } from "../dom.js";
import { plain } from "../format.js";
import { Metrics } from "../metrics.js";
import { charts, controls } from "./curves.js";

const MOST = 8;

export async function show({ query, signal, go, watch }) {
  const runs = query.getAll("run").slice(0, MOST);
  const address = (names) => `/compare?${names.map((name) => `run=${encodeURIComponent(name)}`).join("&")}`;
  const all = (await ask("/api/runs", {}, signal)).runs.map((one) => one.name).filter((name) => !runs.includes(name));
  const add = all.length && runs.length < MOST ? pick("add", [["", "a run …"], ...all.map((name) => [name, name])], "", (name) => { if (name) go(address([...runs, name])); }) : null;
  const abouts = await Promise.all(runs.map((run) => askRun(run, "", {}, signal)));
  const configs = await Promise.all(runs.map((run) => askRun(run, "/config", {}, signal)));
  const names = [...new Set(abouts.flatMap((about) => about.metrics))];
  const found = charts(names, "");
  const metrics = [...new Set(found.flatMap((one) => one.lines.map(([name]) => name)))];
  const stores = runs.map((run, at) => new Metrics(run, metrics.filter((name) => abouts[at].metrics.includes(name))));
  await Promise.all(stores.map((store) => store.refresh(signal)));
  const group = new ChartGroup();
  const build = () => found.filter((one) => !one.silent || one.lines.some(([name]) => stores.some((store) => store.series(name).values.some((value) => value > 0))))
    .map((one) => group.add(new Chart(one.title, () => one.lines.flatMap(([name, label, options], kind) =>
      runs.map((run, at) => ({ label: one.lines.length > 1 ? `${run}: ${label}` : run, tone: (at % 8) + 1, dash: kind, ...stores[at].series(name), ...(options || {}) }))), one)).node);
  const settings = [...new Set(configs.flatMap((config) => Object.keys(config.settings)))].sort();
  const differ = settings.filter((name) => new Set(configs.map((config) => plain(config.settings[name] ?? "not set"))).size > 1);
  const table = differ.length ? wideBox("Settings that differ", h("table", null,
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "setting"), runs.map((run) => h("th", { scope: "col" }, run)))),
    h("tbody", null, differ.map((name) => h("tr", null, h("th", { scope: "row", class: "mono" }, name), configs.map((config) => h("td", { class: "mono" }, name in config.settings ? plain(config.settings[name]) : h("span", { class: "quiet" }, "not set")))))))) : h("p", { class: "quiet" }, "Their configs are the same.");
  const legend = h("ul", { class: "legend" }, runs.map((run, at) => h("li", { class: `tone-${(at % 8) + 1}` }, h("span", { class: "swatch" }), h("a", { href: `/run/${encodeURIComponent(run)}` }, run),
    runs.length > 2 ? h("button", { type: "button", "aria-label": `Leave out ${run}`, onclick: () => go(address(runs.filter((name) => name !== run))) }, "×") : null)));
  const grid = h("div", { class: "cards" });
  const node = h("div", null,
    h("div", { class: "head" }, h("h1", null, `${runs.length} runs side by side`), h("span", { class: "grow" }), add), legend, controls(group, h), grid,
    h("section", { class: "card" }, h("h2", null, `Config: ${differ.length} settings differ`), table));
  return {
    node, title: runs.join(" and "), watches: true,
    shown: () => {
      replace(grid, build());
      group.draw();
      watch(runs, (said) => {
        const store = stores[runs.indexOf(said.run)];
        if (!said.gone && store && (said.rows !== store.rows || said.edition !== store.edition)) store.refresh(signal).then(() => group.draw(), () => {});
      });
    },
    destroy: () => group.destroy(),
    key: (event) => { if (event.key !== "r") return false; group.setZoom(null); return true; },
  };
}
