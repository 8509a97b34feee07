// All runs of a folder. Two or more can be chosen to be compared.

import { ask } from "../api.js";
import { sparkline } from "../chart.js";
import { h, replace } from "../dom.js";
import { ago, number, plain } from "../format.js";
import { reached, refused } from "../live.js";
import { stateOf } from "./now.js";

export async function show({ signal, go, watch }) {
  let data = await ask("/api/runs", {}, signal);
  const chosen = new Set();
  const compare = h("button", { type: "button", disabled: true, onclick: () => go(`/compare?${[...chosen].map((name) => `run=${encodeURIComponent(name)}`).join("&")}`) }, "Compare");
  const filter = h("input", { type: "search", placeholder: "name or model", "aria-label": "Filter runs", oninput: () => fill() });
  const body = h("tbody");
  const fill = () => {
    const wanted = filter.value.toLowerCase();
    replace(body, data.runs.filter((run) => `${run.name} ${plain(run.model)}`.toLowerCase().includes(wanted)).map(row));
  };
  const row = (run) => {
    const evaluations = Object.entries(run.eval || {}).map(([name, value]) => `${name} ${number(value)}`).join(", ");
    const box = h("input", { type: "checkbox", "aria-label": `Compare ${run.name}`, checked: chosen.has(run.name), onchange: (event) => {
      if (event.target.checked) chosen.add(run.name); else chosen.delete(run.name);
      compare.disabled = chosen.size < 2;
    } });
    return h("tr", null,
      h("td", null, box),
      h("td", { class: "prose" }, h("a", { href: `/run/${encodeURIComponent(run.name)}`, class: "strong" }, run.name), run.problem && h("div", { class: "bad small" }, run.problem), h("div", { class: "quiet small" }, plain(run.model))),
      h("td", null, stateOf(null, run.alive, run)),
      h("td", { class: "right" }, `${run.step ?? "–"}${run.steps ? ` / ${run.steps}` : ""}`),
      h("td", { class: "right" }, number(run["reward/mean"])),
      h("td", { class: "wide" }, sparkline(run.spark || [])),
      h("td", { class: "wide small" }, evaluations),
      h("td", { class: "wide quiet" }, ago(run.at)));
  };
  fill();
  const head = ["", "run", "state"].map((text) => h("th", { scope: "col" }, text || h("span", { class: "hidden" }, "compare")));
  const more = [["step", "right"], ["reward", "right"], ["", "wide"], ["evaluation", "wide"], ["last news", "wide"]].map(([text, kind]) => h("th", { scope: "col", class: kind }, text || h("span", { class: "hidden" }, "reward over steps")));
  const node = h("div", null,
    h("div", { class: "head" }, h("h1", null, `Runs in ${data.root}`), h("span", { class: "grow" }), filter, compare),
    data.runs.length ? h("div", { class: "card scroll" }, h("table", null, h("thead", null, h("tr", null, head, more)), body)) : h("p", { class: "quiet" }, "There is no run directly in this folder."),
    data.left_out ? h("p", { class: "quiet" }, `${data.left_out} more runs are not shown.`) : null);
  const again = setInterval(async () => {
    try {
      data = await ask("/api/runs", {}, signal);
      reached(true);
      fill();
    } catch (error) {
      if (error.status === 401) refused(error);
      else if (error.name !== "AbortError") reached(false);
    }
  }, 10000);
  let place = -1;
  return {
    node, title: "Runs",
    shown: fill,
    destroy: () => clearInterval(again),
    key: (event) => {
      if (event.key === "/") { filter.focus(); return true; }
      if (event.key !== "j" && event.key !== "k") return false;
      const links = [...body.querySelectorAll("a")];
      place = Math.max(0, Math.min(links.length - 1, place + (event.key === "j" ? 1 : -1)));
      links[place]?.focus();
      return true;
    },
  };
}
