// The trained steps of a run, the latest first, and a search through their trajectories.

import { askRun } from "../api.js";
import { h, replace, wideBox } from "../dom.js";
import { ago, duration, number, percent, plain } from "../format.js";
import { Metrics } from "../metrics.js";
import { keyParts, rolloutLink, stepLink } from "./links.js";

const NAMES = ["reward/mean", "reward/std", "response/tokens", "response/truncated", "groups/filtered", "groups/failed", "learner/mismatch_mean", "time/rollout", "time/wait", "time/train", "time/sync"];

// So many hits are shown before somebody asks for more.
const ENOUGH = 200;
const NAMED = 3;

// Why the first of the steps could not be searched.
function reasons(unsearched) {
  const told = [...unsearched].slice(0, NAMED).map(([step, why]) => `step ${step}: ${why}`);
  return told.length ? ` (${told.join("; ")}${unsearched.size > NAMED ? "; …" : ""})` : "";
}

export async function show({ run, query, signal, go, say, watch }) {
  const store = new Metrics(run, NAMES);
  let [page] = await Promise.all([askRun(run, "/steps", {}, signal), store.refresh(signal)]);
  const body = h("tbody");
  const at = (name, step) => store.values.get(name).get(step);
  const row = ({ step, groups, at: when }) => {
    const times = ["time/rollout", "time/wait", "time/train", "time/sync"].map((name) => at(name, step)).filter((value) => value !== undefined);
    return h("tr", null,
      h("td", { class: "one-line" }, h("a", { href: stepLink(run, step), class: "strong" }, `step ${step}`)),
      h("td", { class: "right" }, groups),
      h("td", { class: "right" }, number(at("reward/mean", step))),
      h("td", { class: "right" }, number(at("reward/std", step))),
      h("td", { class: "right" }, number(at("response/tokens", step))),
      h("td", { class: "right" }, percent(at("response/truncated", step))),
      h("td", { class: "right" }, `${at("groups/filtered", step) ?? "–"} / ${at("groups/failed", step) ?? "–"}`),
      h("td", { class: "right" }, number(at("learner/mismatch_mean", step))),
      h("td", { class: "right" }, times.length ? duration(times.reduce((a, b) => a + b, 0)) : "–"),
      h("td", { class: "right quiet" }, ago(when)));
  };
  const rows = [...page.steps];
  let { next, edition } = page;
  const begin = async () => {
    page = await askRun(run, "/steps", {}, signal);
    rows.splice(0, rows.length, ...page.steps);
    ({ next, edition } = page);
  };
  const more = h("button", { type: "button", onclick: async () => {
    page = await askRun(run, "/steps", { cursor: next }, signal);
    if (page.again) await begin();
    else { rows.push(...page.steps); ({ next } = page); }
    fill();
  } }, "Earlier steps");
  const fill = () => { replace(body, rows.map(row)); more.hidden = next === null; };
  fill();

  const found = h("div");
  const field = h("input", { type: "search", value: query.get("q") || "", placeholder: "a text in any trajectory", "aria-label": "Search the trajectories", size: "32" });
  let looking = new AbortController(), place = -1;
  const look = async (text) => {
    looking.abort();
    looking = new AbortController();
    signal.addEventListener("abort", () => looking.abort());
    go(`${location.pathname}${text ? `?q=${encodeURIComponent(text)}` : ""}`, { quiet: true });
    if (!text) { replace(found); place = -1; return; }
    const list = h("tbody");
    const state = h("p", { class: "quiet", role: "status" }, "Looking …");
    const halt = h("button", { type: "button", onclick: () => { looking.abort(); state.textContent = `${list.children.length} found; stopped.`; halt.hidden = true; } }, "Stop");
    place = -1;
    replace(found, h("section", { class: "card" }, h("h2", null, "Found"), h("div", { class: "bar" }, state, halt), wideBox("Trajectories that have the text", h("table", null, h("thead", { class: "hidden" }, h("tr", null, h("th", null, "step"), h("th", null, "rollout"), h("th", null, "text"))), list))));
    const onward = h("button", { type: "button", hidden: true, onclick: () => onwards(list.children.length + ENOUGH) }, "More");
    found.firstChild.append(onward);
    let next, steps = 0;
    const unsearched = new Map();
    const onwards = async (enough) => {
      onward.hidden = true;
      halt.hidden = false;
      try {
        do {
          const part = await askRun(run, "/search", { q: text, cursor: next }, looking.signal);
          if (part.again) { say("The run was resumed. The search has begun again."); look(text); return; }
          steps += part.steps;
          for (const one of part.unsearched) unsearched.set(one.step, plain(one.why));
          const lost = unsearched.size;
          next = part.next;
          list.append(...part.hits.map((hit) => h("tr", null, h("td", { class: "one-line" }, `step ${hit.step}`), h("td", null, h("a", { href: rolloutLink(run, keyParts(hit.key), { round: hit.round || undefined }) }, hit.key)), h("td", { class: "mono prose" }, hit.excerpt))));
          state.textContent = `${list.children.length} found in the latest ${steps} steps${next === null ? (lost ? ", which is all that could be read." : ", which is all") : " …"}${lost ? ` ${lost === 1 ? "1 step" : `${lost} steps`} could not be searched${reasons(unsearched)}.` : ""}`;
        } while (next !== null && list.children.length < enough);
        onward.hidden = next === null;
        halt.hidden = true;
      } catch (error) { if (error.name !== "AbortError") { state.textContent = error.message; halt.hidden = true; } }
    };
    await onwards(ENOUGH);
  };
  const form = h("form", { class: "bar", role: "search", onsubmit: (event) => { event.preventDefault(); look(field.value.trim()); } }, field, h("button", { type: "submit" }, "Search"));
  if (field.value) look(field.value);
  const head = [["step", ""], ["groups", "right"], ["reward", "right"], ["spread", "right"], ["tokens", "right"], ["truncated", "right"], ["groups filtered / failed", "right"], ["mismatch", "right"], ["time", "right"], ["trained", "right"]].map(([text, kind]) => h("th", { scope: "col", class: kind }, text));
  const node = h("div", null, h("div", { class: "head" }, h("h1", null, "Steps"), h("span", { class: "grow" }), form), found, h("div", { class: "card" }, rows.length ? wideBox("Trained steps", h("table", null, h("thead", null, h("tr", null, head)), body)) : h("p", { class: "quiet" }, "No step has been trained yet."), more));
  let seen = store.rows;
  return {
    node, title: `Steps of ${run}`,
    shown: () => watch([run], async (said) => {
      if (said.gone || (said.rows === seen && said.edition === store.edition)) return;
      seen = said.rows;
      try {
        await store.refresh(signal);
        page = await askRun(run, "/steps", {}, signal);
        // Another lineage: earlier steps are asked for again, from the new cursor.
        if (page.edition !== edition) { rows.length = 0; ({ next, edition } = page); }
        const oldest = page.steps.length ? page.steps[page.steps.length - 1].step : 0;
        rows.splice(0, rows.length, ...page.steps, ...rows.filter((one) => one.step < oldest));
        fill();
      } catch { /* the next event */ }
    }),
    destroy: () => looking.abort(),
    key: (event) => {
      if (event.key === "/") { field.focus(); return true; }
      if (event.key !== "j" && event.key !== "k") return false;
      // After a search, its hits come first.
      const links = [...found.querySelectorAll("a"), ...body.querySelectorAll("a")];
      place = Math.max(0, Math.min(links.length - 1, place + (event.key === "j" ? 1 : -1)));
      links[place]?.focus();
      return true;
    },
  };
}
