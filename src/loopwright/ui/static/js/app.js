// The frame: which view an address means, the tabs of a run, keys, and what is told when the server or a run goes away.

import { ApiError, ask, login } from "./api.js";
import { h, replace } from "./dom.js";
import { forget, listen, onLine, onRefused, stop } from "./live.js";
import * as compare from "./views/compare.js";
import * as configView from "./views/config.js";
import * as health from "./views/health.js";
import * as overview from "./views/overview.js";
import * as rollout from "./views/rollout.js";
import * as runs from "./views/runs.js";
import * as step from "./views/step.js";
import * as steps from "./views/steps.js";
import * as timeline from "./views/timeline.js";

const VIEWS = [
  [/^\/$/, runs, []],
  [/^\/compare$/, compare, []],
  [/^\/run\/([^/]+)$/, overview, ["run"]],
  [/^\/run\/([^/]+)\/steps$/, steps, ["run"]],
  [/^\/run\/([^/]+)\/step\/(\d+)$/, step, ["run", "step"]],
  [/^\/run\/([^/]+)\/rollout\/([^/]+)\/(\d+)\/(\d+)\/(\d+)$/, rollout, ["run", "task_set", "draw", "member", "attempt"]],
  [/^\/run\/([^/]+)\/timeline$/, timeline, ["run"]],
  [/^\/run\/([^/]+)\/health$/, health, ["run"]],
  [/^\/run\/([^/]+)\/config$/, configView, ["run"]],
];
const TABS = [["", "Curves", "1"], ["/steps", "Steps", "2"], ["/timeline", "Timeline", "3"], ["/health", "Health", "4"], ["/config", "Config", "5"]];

const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
const tabs = document.getElementById("tabs");
const notice = document.getElementById("notice");
const live = document.getElementById("live");
const keys = document.getElementById("keys");
let current = null;
let aborting = new AbortController();
let only = null;
let online = true;

export function go(path, { quiet = false } = {}) {
  if (quiet) history.replaceState(null, "", path);
  else { history.pushState(null, "", path); show(); }
}

async function show() {
  current?.destroy?.();
  aborting.abort();
  aborting = new AbortController();
  forget();
  current = null;
  say("");
  const { signal } = aborting;
  const found = VIEWS.find(([pattern]) => pattern.test(location.pathname));
  if (!found) { frame({}); replace(main, h("h1", null, "There is no such view"), h("p", null, h("a", { href: "/" }, "All runs"))); return; }
  const [pattern, view, names] = found;
  const parts = pattern.exec(location.pathname).slice(1).map(decoded);
  const place = Object.fromEntries(names.map((name, at) => [name, parts[at]]));
  const query = new URLSearchParams(location.search);
  frame(place);
  const context = { ...place, query, signal, go, say, only, watch: (which, listener) => watch(which, listener) };
  replace(main, h("p", { class: "quiet" }, "Loading …"));
  try {
    const made = await view.show(context);
    if (signal.aborted) { made.destroy?.(); return; }
    current = made;
    document.title = `${made.title} · Loopwright`;
    replace(main, made.node);
    made.shown?.();
    if (!place.run && !made.watches) { stop(); live.textContent = ""; }
  } catch (error) {
    if (error.name === "AbortError" || signal.aborted) return;
    if (error instanceof ApiError && error.status === 401) { askKey(error); return; }
    replace(main, h("h1", null, sentence(error.message)), error.remedy && h("p", { class: "quiet" }, sentence(error.remedy)), h("p", null, h("button", { type: "button", onclick: show }, "Try again"), " ", h("a", { href: "/" }, "All runs")));
    if (!(error instanceof ApiError)) throw error;
    if (place.run) watch([place.run], (said) => { if (!said.gone) show(); });
  }
}

// An address that somebody cut may end in the middle of a character.
function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function frame({ run, step: number, task_set, draw, member, attempt }) {
  const at = run && `/run/${encodeURIComponent(run)}`;
  const trail = [];
  if (run) trail.push(" / ", h("a", { href: at }, run));
  if (number) trail.push(` / step ${number}`);
  if (draw) trail.push(` / ${task_set}/${draw}/${member}/${attempt}`);
  replace(crumbs, trail);
  tabs.hidden = !run;
  const here = location.pathname;
  const part = here.includes("/step/") || here.includes("/rollout/") ? "/steps" : here.slice((at || "").length);
  replace(tabs, run ? TABS.map(([end, text, key]) => h("a", { href: at + end, "aria-current": part === end ? "page" : null, title: `${text} (${key})` }, text)) : []);
}

function say(text) {
  notice.hidden = !text;
  notice.textContent = text;
}

// What becomes of the runs in view: the line at the top tells it, and the view gets the news.
function watch(which, listener) {
  const before = new Map();
  listen(which, (said) => {
    if (!which.includes(said.run)) return;
    const old = before.get(said.run);
    before.set(said.run, said);
    live.classList.toggle("on", Boolean(said.alive));
    if (which.length === 1) live.textContent = said.gone ? "deleted" : said.alive ? `step ${said.step}` : "not running";
    else live.textContent = "";
    if (said.gone) say(`Run ${said.run} is gone: its folder was deleted or moved. What is shown was read before.`);
    else if (old?.gone) say(`Run ${said.run} is back.`);
    else if (old?.alive && !said.alive) say(`Run ${said.run} has ended or was killed. What is shown stays; the page goes on when it resumes.`);
    else if (old && !old.alive && said.alive) say(`Run ${said.run} was resumed.`);
    else if (old?.edition && said.edition !== old.edition) say(`Run ${said.run} went back to a checkpoint. Later steps are made again.`);
    listener(said, old);
  });
}

onLine((isOn) => {
  if (online === isOn) return;
  online = isOn;
  if (isOn) { say(""); live.textContent = ""; }
  else { live.classList.remove("on"); live.textContent = "no connection"; say("The server of this page does not answer. The page goes on when it is back."); }
});

onRefused((error) => {
  current?.destroy?.();
  current = null;
  aborting.abort();
  stop();
  online = true;
  say("");
  live.textContent = "";
  askKey(error);
});

function askKey(error) {
  document.title = "Key needed · Loopwright";
  tabs.hidden = true;
  const input = h("input", { type: "password", name: "key", autocomplete: "off", size: "40", "aria-label": "Key" });
  const problem = h("p", { class: "bad", role: "alert" });
  const form = h("form", { class: "bar", onsubmit: async (event) => {
    event.preventDefault();
    try { await login(input.value.trim()); show(); } catch (wrong) { problem.textContent = `${sentence(wrong.message)}: ${wrong.remedy}.`; }
  } }, input, h("button", { type: "submit" }, "Open"));
  replace(main, h("h1", null, "The key of this server"), h("p", { class: "quiet" }, sentence(error.remedy), "."), form, problem);
  input.focus();
}

// The key in the link's fragment becomes a cookie, and leaves the address.
async function trade() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (!given) return;
  history.replaceState(null, "", location.pathname + location.search);
  try { await login(given); } catch { /* the first question is refused, and asks for the key */ }
}

const KEYS = [
  ["?", "these keys"], ["g", "all runs"], ["1 – 5", "curves, steps, timeline, health, config of a run"], ["j, k", "the next, the one before: run, step, member"],
  ["/", "search, filter"], ["t", "a trajectory as conversation or as tokens"], ["← →", "the token before, the next"], ["[ ]", "the page of tokens before, the next"], ["c", "copy as JSON"], ["r", "reset the zoom"], ["d", "light or dark"], ["Esc", "close, leave a field"],
];

function showKeys() {
  replace(keys, h("h2", { id: "keys-title" }, "Keys"), h("dl", { class: "keys" }, KEYS.map(([key, what]) => [h("dt", null, h("kbd", null, key)), h("dd", null, what)])), h("p", null, h("button", { type: "button", onclick: () => keys.close() }, "Close")));
  keys.showModal();
}

function toggleTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("loopwright.theme", next);
  dispatchEvent(new Event("themechange"));
}

document.getElementById("theme").addEventListener("click", toggleTheme);
document.getElementById("help").addEventListener("click", showKeys);

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && document.activeElement instanceof HTMLElement && !keys.open) { document.activeElement.blur(); return; }
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName || "") && document.activeElement.type !== "checkbox") return;
  if (keys.open) return;
  if (current?.key?.(event)) { event.preventDefault(); return; }
  const run = /^\/run\/[^/]+/.exec(location.pathname)?.[0];
  const tab = TABS.find(([, , key]) => key === event.key);
  if (event.key === "?") showKeys();
  else if (event.key === "d") toggleTheme();
  else if (event.key === "g") go("/");
  else if (tab && run) go(run + tab[0]);
  else return;
  event.preventDefault();
});

addEventListener("click", (event) => {
  const link = event.target instanceof Element ? event.target.closest("a[href^='/']") : null;
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || link.target) return;
  event.preventDefault();
  if (link.getAttribute("href") !== location.pathname + location.search) { go(link.getAttribute("href")); scrollTo(0, 0); }
});
addEventListener("popstate", show);
addEventListener("pagehide", stop);
addEventListener("pageshow", (event) => { if (event.persisted) show(); });

await trade();
try { only = (await ask("/api/runs")).single; } catch { /* the view says why */ }
if (only && location.pathname === "/") history.replaceState(null, "", `/run/${encodeURIComponent(only)}`);
show();
