// Who did what when, in the last steps or in chosen ones.

import { askRun } from "../api.js";
import { facts, h, pick, replace } from "../dom.js";
import { duration, number, percent, plain } from "../format.js";
import { doing, flightTable, followed } from "./now.js";

const TONES = { rollout: 1, wait: 5, train: 2, compute: 2, sync: 4, evaluate: 3, checkpoint: 6, export: 6, generate: 1, judge: 3, load: 4, engine_lost: 7, engine_back: 3, learner_lost: 7 };
const COUNTS = ["1", "3", "10", "20"];

export async function show({ run, query, signal, go, watch }) {
  const to = query.get("to"), count = query.get("count") || "3";
  const box = h("div");
  const detail = h("div", { class: "card", "aria-live": "polite" }, h("p", { class: "quiet" }, "Point at a bar."));
  const address = (more) => {
    const next = new URLSearchParams(query);
    for (const [name, value] of Object.entries(more)) if (value === null || value === "") next.delete(name); else next.set(name, value);
    return `/run/${encodeURIComponent(run)}/timeline${next.toString() ? `?${next}` : ""}`;
  };
  let data = null;
  const now = followed(run, null, (status) => {
    const told = status?.told || {}, flying = flightTable(told);
    return flying && !to ? h("section", { class: "card" }, h("h2", null, "Now"), facts(doing(status)), flying) : null;
  }, signal);
  const load = async () => {
    data = await askRun(run, "/timeline", { to, count }, signal);
    draw();
  };
  const tell = (span) => replace(detail, facts([["what", plain(span.name)], ["step", span.step], ["took", duration(span.end - span.start)], ["who", plain(span.who)], ["ended", span.ok ? "well" : plain(span.error) || "with an error"], ...Object.entries(span.facts || {}).map(([name, value]) => [name, plain(value)])]));
  const draw = () => {
    if (!data.spans.length) { replace(box, h("p", { class: "quiet" }, "Nothing has ended yet.")); return; }
    const { begin, end } = data;
    const whole = Math.max(1e-9, end - begin);
    const lanes = new Map();
    for (const span of data.spans) {
      const lane = laneOf(span);
      if (!lanes.has(lane)) lanes.set(lane, []);
      lanes.get(lane).push(span);
    }
    const rows = [...lanes].map(([lane, spans]) => {
      const busy = union(spans);
      return [h("span", { class: "small" }, lane), h("div", { class: "lane" }, spans.map((span) => {
        const label = `${plain(span.name)}, step ${span.step}, ${duration(span.end - span.start)}${span.ok ? "" : ", failed"}`;
        return h("button", { type: "button", class: `tone-${TONES[plain(span.name)] || 8}${span.ok ? "" : " broken"}${span.end > span.start ? "" : " mark"}`, "aria-label": label, title: label, onmouseover: () => tell(span), onfocus: () => tell(span), style: { left: `${(100 * (span.start - begin)) / whole}%`, width: `${(100 * (span.end - span.start)) / whole}%` } });
      })), h("span", { class: "small quiet right", title: "share of the time without work" }, percent(Math.max(0, 1 - busy / whole)))];
    });
    const work = (data.work || []).map((lane) => {
      const most = Math.ceil(Math.max(...lane.cells)), what = lane.work === "judge" ? "judging" : lane.worker === null ? "in flight" : `worker ${plain(lane.worker)}`;
      const label = `${what}: ${lane.rollouts} rollouts, at most ${most} at once, nothing to do in ${percent(lane.idle)} of the time`;
      return [h("span", { class: "small" }, what, " ", h("span", { class: "quiet" }, `≤ ${most}`)), h("div", { class: "lane" }, density(lane, most, label)), h("span", { class: "small quiet right", title: "share of the time without work" }, percent(lane.idle))];
    });
    const totals = new Map();
    for (const span of data.spans) totals.set(plain(span.name), (totals.get(plain(span.name)) || 0) + span.end - span.start);
    replace(box, h("section", { class: "card" },
      h("h2", null, data.steps.length > 1 ? `Steps ${data.steps[0]} to ${data.steps[data.steps.length - 1]}` : `Step ${data.steps[0]}`, h("span", { class: "quiet" }, ` · ${duration(whole)}`)),
      h("div", { class: "lanes" }, h("span"), h("span", { class: "small quiet ticks" }, [0, 0.25, 0.5, 0.75, 1].map((share) => h("span", { class: share % 1 ? "between" : null }, share ? duration(share * whole) : "0 s"))), h("span", { class: "small quiet right" }, "idle"), work, rows),
      h("ul", { class: "legend" }, [...totals].map(([name, seconds]) => h("li", { class: `tone-${TONES[name] || 8}` }, h("span", { class: "swatch box" }), `${name} ${duration(seconds)} (${number((100 * seconds) / whole, 2)} %)`))),
      data.left_out ? h("p", { class: "quiet" }, `${data.left_out} earlier spans are not shown.`) : null), detail);
  };
  await load();
  const at = data.steps[data.steps.length - 1];
  const earlier = h("button", { type: "button", title: "k", disabled: data.first === null || data.steps[0] <= data.first, onclick: () => go(address({ to: data.steps[0] - 1 })) }, "← earlier");
  const later = h("button", { type: "button", title: "j", disabled: data.last === null || at >= data.last, onclick: () => go(address({ to: Math.min(data.last, at + Number(count)) })) }, "later →");
  const node = h("div", null, h("div", { class: "head" }, h("h1", null, "Timeline"), h("span", { class: "grow" }), earlier, later, pick("steps", COUNTS.map((one) => [one, one]), count, (value) => go(address({ count: value }))), to ? h("button", { type: "button", onclick: () => go(address({ to: null })) }, "Latest") : null), now.box, box);
  return {
    node, title: `Timeline of ${run}`,
    shown: () => watch([run], (said, old) => { now.news(said, old); if (!to && old && (said.rows !== old.rows || said.events !== old.events)) load().catch(() => {}); }),
    key: (event) => { if (event.key === "j" && !later.disabled) { later.click(); return true; } if (event.key === "k" && !earlier.disabled) { earlier.click(); return true; } return false; },
  };
}

// How many rollouts were under way, as a filled curve.
function density(lane, most, label) {
  const canvas = h("canvas", { width: lane.cells.length, height: 20, role: "img", "aria-label": label, title: label });
  const pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(lane.work === "judge" ? "--tone-3" : "--tone-1");
  lane.cells.forEach((cell, at) => { const high = cell ? Math.max(1, (20 * cell) / most) : 0; pen.fillRect(at, 20 - high, 1, high); });
  return canvas;
}

// A lane is an engine, a worker or a rank if the event names one; else the kind of work.
function laneOf(span) {
  const who = plain(span.who);
  if (/^(engine|rank|worker) /.test(who)) return who;
  for (const name of ["engine", "worker", "rank"]) if (span.facts && span.facts[name] !== undefined) return `${name} ${plain(span.facts[name])}`;
  return plain(span.name);
}

function union(spans) {
  let sum = 0, until = -Infinity;
  for (const { start, end } of [...spans].sort((a, b) => a.start - b.start)) {
    sum += Math.max(0, end - Math.max(start, until));
    until = Math.max(until, end);
  }
  return sum;
}
