// Every setting of a run, with a filter.

import { askRun } from "../api.js";
import { h, replace, wideBox } from "../dom.js";
import { plain } from "../format.js";

export async function show({ run, signal }) {
  const { settings } = await askRun(run, "/config", {}, signal);
  const body = h("tbody");
  const filter = h("input", { type: "search", placeholder: "name or value", "aria-label": "Filter settings", oninput: () => fill() });
  const fill = () => {
    const wanted = filter.value.toLowerCase();
    replace(body, Object.entries(settings).filter(([name, value]) => `${name} ${plain(value)}`.toLowerCase().includes(wanted))
      .map(([name, value]) => h("tr", null, h("td", { class: "mono" }, name), h("td", { class: "mono" }, plain(value)))));
  };
  fill();
  return {
    node: h("div", null, h("div", { class: "head" }, h("h1", null, "Config"), h("span", { class: "grow" }), filter), h("div", { class: "card" }, wideBox("Settings", h("table", null, h("thead", { class: "hidden" }, h("tr", null, h("th", null, "setting"), h("th", null, "value"))), body)))),
    title: `Config of ${run}`,
    key: (event) => { if (event.key !== "/") return false; filter.focus(); return true; },
  };
}
