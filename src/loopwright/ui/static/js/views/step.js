// One train step: its groups with their rewards, a histogram that filters, and what was left out meanwhile.

import { askRun } from "../api.js";
import { facts, h, pick, replace } from "../dom.js";
import { number, percent, plain } from "../format.js";
import { chip, rolloutLink, stepLink } from "./links.js";
import { answerOf } from "./messages.js";

const CAUSES = ["infra", "task", "setup", "agent", "verifier", "judge", "filter"];
const STATUSES = [["", "trained"], ["filtered", "filtered"], ["failed", "failed"], ["expired", "expired"], ["rolled_back", "rolled back"]];
const WHY = { filtered: "The filter saw nothing to learn in them; another group took each one's place.", failed: "Too few members could be scored, after all tries.", expired: "Their tokens became too old; their members are made again.", rolled_back: "A resumed run no longer has the weights that sampled them; their tasks are drawn again." };

export async function show({ run, step, query, signal, go }) {
  const number_ = Number(step);
  const asked = { step: number_, task_set: query.get("task_set"), status: query.get("status"), cause: query.get("cause"), low: query.get("low"), high: query.get("high") };
  const [page, latest, about, names] = await Promise.all([
    askRun(run, "/step", asked, signal).catch((error) => { if (error.status === 404) return null; throw error; }),
    askRun(run, "/steps", { most: 1 }, signal),
    askRun(run, "", {}, signal),
    askRun(run, "/metrics", { name: ["reward/mean", "reward/std", "response/tokens", "response/truncated", "learner/mismatch_mean", "staleness/mean", "learner/loss"] }, signal),
  ]);
  const last = latest.steps[0]?.step ?? 0;
  // Behind the last step is the one that is being made, or was when the run ended.
  const end = about.steps && last >= about.steps ? last : last + 1;
  if (page === null || number_ > last + 1 || number_ < 1) return missing(run, number_, last);
  const change = (more) => {
    const next = new URLSearchParams(query);
    for (const [name, value] of Object.entries(more)) if (value === null || value === "") next.delete(name); else next.set(name, value);
    const text = next.toString();
    go(`${stepLink(run, step)}${text ? `?${text}` : ""}`);
  };
  const isHere = (bin) => asked.low !== null && Number(asked.low) <= bin.low && Number(asked.high) >= bin.high;
  const tallest = Math.max(1, ...page.histogram.map((bin) => bin.members));
  const histogram = h("div", { class: "histogram", role: "group", "aria-label": "Rewards of the step; each bar is a filter" }, page.histogram.map((bin) => {
    const range = bin.low === bin.high ? number(bin.low) : `${number(bin.low)} to ${number(bin.high)}`;
    return h("button", { type: "button", "aria-pressed": String(isHere(bin)), title: `reward ${range}: ${bin.members}`, onclick: () => change(isHere(bin) ? { low: null, high: null } : { low: bin.low, high: bin.high, status: null }) },
      h("span", null, bin.members, h("span", { class: "hidden" }, " rollouts with reward ")), h("span", { class: "fill", style: { height: `${(58 * bin.members) / tallest}px` } }), h("span", null, number(bin.low, 2)));
  }));
  const sets = page.task_sets.map(plain);
  const bar = h("div", { class: "bar" },
    pick("groups", STATUSES.map(([key, text]) => [key, key && page.left_out[key] ? `${text} (${page.left_out[key]})` : text]), asked.status, (value) => change({ status: value, low: null, high: null })),
    sets.length > 1 ? pick("task set", [["", "all"], ...sets.map((name) => [name, name])], asked.task_set, (value) => change({ task_set: value })) : null,
    pick("failure", [["", "any or none"], ...CAUSES.filter((cause) => page.causes[cause] || cause === asked.cause).map((cause) => [cause, `${cause}${page.causes[cause] ? ` (${page.causes[cause]})` : ""}`])], asked.cause, (value) => change({ cause: value })),
    query.toString() ? h("button", { type: "button", onclick: () => go(stepLink(run, step)) }, "No filter") : null);
  const list = h("div", null, page.groups.map((group) => one(run, group, signal)));
  const count = h("p", { class: "quiet", role: "status" });
  let shown = page.groups.length;
  const more = h("button", { type: "button", onclick: async () => {
    const next = await askRun(run, "/step", { ...asked, offset: shown }, signal);
    shown += next.groups.length;
    list.append(...next.groups.map((group) => one(run, group, signal)));
    told();
  } }, "More groups");
  const told = () => { count.textContent = `${shown} of ${page.total} groups`; more.hidden = shown >= page.total; };
  told();
  const next = number_ < end ? number_ + 1 : null;
  const before = number_ > 1 ? number_ - 1 : null;
  const row = names.steps.map((each, at) => [each, at]).filter(([each]) => each === number_).map(([, at]) => at);
  const metric = (name, told = number) => { for (const at of row.reverse()) { const value = names.values[name]?.[at]; if (value !== null && value !== undefined) return told(value); } return null; };
  const left = Object.entries(page.left_out);
  const node = h("div", null,
    h("div", { class: "head" }, h("h1", null, `Step ${step}`),
      before !== null ? h("a", { href: stepLink(run, before), title: "k" }, `← step ${before}`) : null, next !== null ? h("a", { href: stepLink(run, next), title: "j" }, `step ${next} →`) : null,
      h("span", { class: "grow" }), h("a", { href: `/run/${encodeURIComponent(run)}/timeline?to=${step}&count=1` }, "Timeline of this step")),
    h("div", { class: "card" }, facts([["reward", metric("reward/mean")], ["spread", metric("reward/std")], ["tokens per answer", metric("response/tokens")], ["truncated", metric("response/truncated", percent)], ["mismatch", metric("learner/mismatch_mean")], ["staleness", metric("staleness/mean")], ["loss", metric("learner/loss")],
      ["left out meanwhile", left.length ? left.map(([status, groups]) => `${groups} ${status.replace("_", " ")}`).join(", ") : "nothing"]]),
      page.histogram.length ? [h("h3", null, "Rewards"), histogram] : null),
    bar, asked.status && WHY[asked.status] ? h("p", { class: "quiet" }, WHY[asked.status]) : null,
    h("section", { class: "card" }, h("h2", { class: "hidden" }, "Groups"), page.total ? list : h("p", { class: "quiet" }, "No group matches."), count, more));
  const links = () => [...node.querySelectorAll(".group .chip")];
  return {
    node, title: `Step ${step} of ${run}`,
    key: (event) => {
      if (event.key === "j" && next !== null) { go(stepLink(run, next)); return true; }
      if (event.key === "k" && before !== null) { go(stepLink(run, before)); return true; }
      if (event.key === "/") { bar.querySelector("select").focus(); return true; }
      if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
        const all = links(), at = all.indexOf(document.activeElement);
        all[Math.max(0, Math.min(all.length - 1, at + (event.key === "ArrowRight" ? 1 : -1)))]?.focus();
        return true;
      }
      return false;
    },
  };
}

function missing(run, step, last) {
  return {
    title: `No step ${step} of ${run}`,
    node: h("div", null, h("h1", null, `There is no step ${step}`), h("p", null, last ? ["The last one is ", h("a", { href: stepLink(run, last) }, `step ${last}`), "."] : "No step has been trained yet.")),
  };
}

function one(run, group, signal) {
  const sides = h("div", { class: "sides", hidden: true });
  const button = h("button", { type: "button", "aria-expanded": "false", onclick: async () => {
    sides.hidden = !sides.hidden;
    button.setAttribute("aria-expanded", String(!sides.hidden));
    if (!sides.hidden && !sides.children.length) {
      replace(sides, h("p", { class: "quiet" }, "Loading …"));
      try { replace(sides, await Promise.all(group.members.slice(0, 16).map((member) => side(run, group, member, signal)))); } catch (error) { if (error.name !== "AbortError") replace(sides, h("p", { class: "bad" }, error.message)); }
    }
  } }, "Side by side");
  return h("article", { class: "group" },
    h("header", null, h("span", { class: "task" }, plain(group.task)), h("span", { class: "quiet" }, `${plain(group.task_set)}/${group.draw}`),
      h("span", { class: "quiet" }, `mean ${number(group.mean)}`), group.has_signal ? null : h("span", { class: "warn" }, "no signal: all rewards are equal"),
      group.why ? h("span", { class: "warn" }, plain(group.why)) : null, button),
    h("div", { class: "chips" }, group.members.map((member) => chip(run, group, member))), sides);
}

async function side(run, group, member, signal) {
  const key = `${plain(group.task_set)}/${group.draw}/${member.member}/${member.attempt}`;
  const rollout = await askRun(run, "/rollout", { key, round: group.round }, signal);
  return h("article", null, h("h3", null, h("a", { href: rolloutLink(run, { ...group, member: member.member, attempt: member.attempt }) }, `member ${member.member}`), ` · ${member.cause ?? (member.reward === null ? "not scored" : `reward ${number(member.reward)}`)}`), h("pre", { tabindex: "0", "aria-label": `answer of member ${member.member}` }, answerOf(rollout) || "(no answer)"));
}
