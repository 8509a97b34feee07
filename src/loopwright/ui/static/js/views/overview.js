// One run: how far it is, and its curves, which grow while it runs.

import { ApiError, askRun } from "../api.js";
import { Chart, ChartGroup } from "../chart.js";
import { facts, h, pick, replace } from "../dom.js";
import { ago, duration, number, plain } from "../format.js";
import { everyMinute } from "../live.js";
import { Metrics } from "../metrics.js";
import { alarmLine } from "./alarms.js";
import { charts, controls } from "./curves.js";
import { doing, stateOf } from "./now.js";

const MEAN_OF = 20;

export async function show({ run, query, signal, go, watch }) {
  const about = await askRun(run, "", {}, signal);
  const taskSet = query.get("task_set") || "";
  let names = about.metrics;
  let store = new Metrics(run, wanted(names, taskSet));
  let pace = about.step_seconds;
  await store.refresh(signal);
  const group = new ChartGroup();
  const grid = h("div", { class: "cards" });
  const progress = h("div", { class: "card" });
  const warned = h("div", { role: "status" });
  const warn = async () => {
    try {
      const { alarms, problem } = await askRun(run, "/alarms", {}, signal);
      replace(warned, alarmLine(run, alarms, problem));
    } catch (error) {
      if (error instanceof ApiError && error.status) replace(warned, alarmLine(run, [], error.message));
      else if (error.name !== "AbortError" && !(error instanceof ApiError)) throw error;
    }
  };
  let { status, ended } = about;
  const tell = (now) => {
    const share = about.steps ? Math.min(1, now.step / about.steps) : null;
    replace(progress, facts([
      ["state", stateOf(status, now.alive, { ...now, ended, steps: about.steps })],
      ...doing(now.alive ? status : null),
      ["step", `${now.step}${about.steps ? ` of ${about.steps} (${Math.round(100 * share)} %)` : ""}`],
      ["reward", latest(store, "reward/mean")],
      ["last step", now.at ? ago(now.at) : "–"],
      ["time per step", pace ? `${duration(pace)}, the mean of the last ${Math.min(MEAN_OF, now.step - 1)}` : "–"],
      ...Object.entries(about.facts).map(([name, value]) => [name, plain(value)]),
    ]));
  };
  let shownSilent = 0;
  const build = () => {
    for (const chart of group.charts) chart.plot?.destroy();
    group.charts.clear();
    const found = charts(names, taskSet).filter((one) => !one.silent || one.lines.some(([name]) => store.series(name).values.some((value) => value > 0)));
    shownSilent = found.filter((one) => one.silent).length;
    replace(grid, found.map((one) => group.add(new Chart(one.title, () => one.lines.map(([name, label, options], at) => ({ label, tone: (at % 8) + 1, dash: at % 3, ...store.series(name), ...(options || {}) })), one)).node));
    group.draw();
  };
  tell(about);
  const sets = about.task_sets.map(plain).filter((name) => names.includes(`reward/mean/${name}`));
  const choice = sets.length ? pick("task set", [["", "all"], ...sets.map((name) => [name, name])], taskSet, (name) => go(`/run/${encodeURIComponent(run)}${name ? `?task_set=${encodeURIComponent(name)}` : ""}`)) : null;
  const bar = controls(group, h);
  if (choice) bar.prepend(choice);
  const empty = h("p", { class: "quiet", hidden: store.rows > 0 }, "No step has been trained yet. The curves begin with the first one.");
  const node = h("div", null, h("h1", { class: "hidden" }, `Curves of ${run}`), warned, progress, bar, empty, grid);
  everyMinute(signal, warn);
  const news = async (said, old) => {
    if (said.gone) return;
    if (said.told !== old?.told) ({ status } = await askRun(run, "/status", {}, signal));
    if (old && said.alive !== old.alive) ({ status, ended } = await askRun(run, "", {}, signal));
    if (said.edition !== store.edition || said.rows !== store.rows) {
      const now = await askRun(run, "", {}, signal);
      const more = now.metrics.length !== names.length;
      if (more) { names = now.metrics; store = new Metrics(run, wanted(names, taskSet)); }
      await store.refresh(signal);
      empty.hidden = store.rows > 0;
      const silent = charts(names, taskSet).filter((one) => one.silent && one.lines.some(([name]) => store.series(name).values.some((value) => value > 0))).length;
      if (more || silent !== shownSilent) build(); else group.draw();
      pace = now.step_seconds;
      node.dataset.rows = store.rows;
      await warn();
    }
    tell(said);
  };
  return {
    node, title: run,
    shown: () => { build(); warn(); node.dataset.rows = store.rows; watch([run], (said, old) => news(said, old).catch((error) => { if (error.name !== "AbortError" && !(error instanceof ApiError)) throw error; })); },
    destroy: () => group.destroy(),
    key: (event) => { if (event.key === "r") { group.setZoom(null); return true; } if (event.key === "/") { bar.querySelector("input[type=number]").focus(); return true; } return false; },
  };
}

const wanted = (names, taskSet) => [...new Set([...charts(names, taskSet).flatMap((one) => one.lines.map(([name]) => name)), "reward/mean"])].filter((name) => names.includes(name));
const latest = (store, name) => { const { values } = store.series(name); return values.length ? number(values[values.length - 1]) : "–"; };
