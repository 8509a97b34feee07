// One trajectory: the conversation as people read it, or the same as tokens.

import { askRun } from "../api.js";
import { facts, h, replace } from "../dom.js";
import { clock, duration, isCut, number, plain, whole } from "../format.js";
import { chip, rolloutLink, stepLink } from "./links.js";
import { longText, messageBlock } from "./messages.js";
import { TokenPane } from "./tokens.js";

const REASONS = { first: "the first call", rewritten: "the history was edited", branch: "went back and continued differently", separate: "another conversation", compacted: "the history was summarised", tools: "other tools were offered", template: "the template writes the history differently" };

export async function show({ run, task_set, draw, member, attempt, query, signal, go, say }) {
  const key = `${task_set}/${draw}/${member}/${attempt}`;
  const rollout = await askRun(run, "/rollout", { key, round: query.get("round") }, signal);
  const about = { run, key, round: rollout.round };
  const where = { task_set, draw, member, attempt };
  const panes = { conversation: () => conversation(rollout, about, signal), tokens: null };
  const pane = h("div");
  const tokens = new TokenPane(about, rollout, signal, (more) => go(rolloutLink(run, where, { ...Object.fromEntries(query), view: "tokens", ...more }), { quiet: true }));
  let view = query.get("view") === "tokens" && rollout.chains.length ? "tokens" : "conversation";
  const buttons = ["conversation", "tokens"].map((name) => h("button", { type: "button", "aria-pressed": String(name === view), disabled: name === "tokens" && !rollout.chains.length, title: "t", onclick: () => choose(name) }, name === "tokens" ? "Tokens" : "Conversation"));
  const choose = async (name) => {
    view = name;
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(["conversation", "tokens"][at] === name)));
    go(rolloutLink(run, where, { ...Object.fromEntries(query), view: name === "tokens" ? "tokens" : undefined }), { quiet: true });
    tokens.detail.hidden = name !== "tokens";
    if (name === "tokens") { replace(pane, tokens.node); await tokens.open(Number(query.get("chain") || 0), Number(query.get("from") || 0)); }
    else replace(pane, panes.conversation());
  };
  const copy = h("button", { type: "button", title: "c", onclick: async () => {
    try {
      const text = JSON.stringify(await askRun(run, "/copy", { key, round: rollout.round }, signal), null, 1);
      await navigator.clipboard.writeText(text);
      say(`Copied ${whole(text.length)} characters of JSON.`);
    } catch (error) { say(`It could not be copied: ${error.message}`); }
  } }, "Copy as JSON");
  const group = { task_set, draw, round: rollout.round };
  const place = rollout.members.findIndex((one) => one.member === rollout.member);
  const neighbour = (by) => rollout.members[place + by];
  const aside = h("aside", null, tokens.detail,
    h("section", { class: "card" }, h("h2", null, "Score"), score(rollout), rejudged(rollout)),
    evidence(rollout, about, signal),
    rollout.chains.length ? h("section", { class: "card" }, h("h2", null, `Chains (${rollout.chains.length})`), tree(rollout.chains, (chain) => { query.set("chain", chain); query.delete("from"); choose("tokens"); })) : null,
    h("section", { class: "card" }, h("h2", null, "Task"), facts([["truth", plain(rollout.task.truth)], ...Object.entries(isCut(rollout.task.metadata) ? {} : rollout.task.metadata || {}).map(([name, value]) => [name, plain(value)])]),
      rollout.tools.length ? h("details", null, h("summary", null, `${rollout.tools.length} tools offered`), h("pre", null, rollout.tools.map((tool) => plain(tool)).join("\n"))) : null));
  const node = h("div", null,
    h("div", { class: "head" }, h("h1", null, plain(rollout.task.id)), h("span", { class: "quiet" }, `member ${member}${Number(attempt) ? `, try ${Number(attempt) + 1}` : ""} of ${task_set}/${draw}`), h("span", { class: "grow" }), buttons, copy),
    h("div", { class: "bar" }, rollout.step ? h("a", { href: stepLink(run, rollout.step) }, `Step ${rollout.step}`) : h("span", { class: "quiet" }, rollout.status.replace("_", " ")), h("div", { class: "chips", role: "group", "aria-label": "Members of the group" }, rollout.members.map((one) => chip(run, group, one, one.member === rollout.member)))),
    rollout.attempts.length > 1 ? h("div", { class: "bar small" }, h("span", { class: "quiet" }, "tries"), rollout.attempts.map((one) => (one === rollout.attempt ? h("b", null, one + 1) : h("a", { href: rolloutLink(run, { ...where, attempt: one }) }, one + 1)))) : null,
    h("div", { class: "two" }, pane, aside));
  return {
    node, title: `${plain(rollout.task.id)} ${key}`,
    shown: () => choose(view),
    key: (event) => {
      if (event.key === "t" && rollout.chains.length) { choose(view === "tokens" ? "conversation" : "tokens"); return true; }
      if (event.key === "c") { copy.click(); return true; }
      const by = { j: 1, k: -1 }[event.key];
      if (by && neighbour(by)) { go(rolloutLink(run, { ...group, member: neighbour(by).member, attempt: neighbour(by).attempt }, { round: rollout.round || undefined, view: view === "tokens" ? view : undefined })); return true; }
      return view === "tokens" && tokens.key(event);
    },
  };
}

function conversation(rollout, about, signal) {
  return h("div", null,
    rollout.messages.map((message, place) => messageBlock(message, place, about, signal)),
    rollout.messages_left_out ? h("p", { class: "quiet" }, `${rollout.messages_left_out} more messages are not shown; the tokens have them.`) : null,
    rollout.output ? h("article", { class: "message tone-4" }, h("header", null, h("b", null, "program"), h("span", null, plain(rollout.output.runner)), h("span", null, rollout.output.exit_code === null ? "was ended" : `exit code ${rollout.output.exit_code}`)),
      longText(rollout.output.text, { ...about, path: "output/text" }, signal), plain(rollout.output.verifier) ? h("details", null, h("summary", null, "verifier"), longText(rollout.output.verifier, { ...about, path: "output/verifier" }, signal)) : null) : null);
}

function score(rollout) {
  const { reward, timing } = rollout;
  const lines = [];
  if (reward.kind === "scored") lines.push(["reward", h("b", null, number(reward.value, 5))], ...Object.entries(reward.parts).map(([name, value]) => [name, number(value)]), ["answer", plain(reward.answer)]);
  else if (reward.kind === "failed") lines.push(["failed", h("b", { class: "bad" }, reward.cause)], ["error", plain(reward.error)], ["detail", h("pre", null, plain(reward.detail))]);
  else lines.push(["reward", "not scored"]);
  const { trained } = rollout;
  if (trained) lines.push(["advantage", number(trained.advantage)], ["push", trained.push === null || trained.push === undefined ? null : `${number(100 * trained.push)} % of the step`]);
  // A group is trained without the members that failed.
  else if (rollout.step) lines.push(["advantage", h("span", { class: "quiet" }, reward.kind === "scored" ? "not stored" : "did not train")]);
  lines.push(["left out", rollout.why ? h("span", { class: "warn" }, plain(rollout.why)) : null]);
  lines.push(["ended", rollout.stop === "budget" ? "out of budget" : rollout.stop], ["agent", duration(timing.agent_seconds)], ["judge", duration(timing.judge_seconds)], ["held", timing.held_seconds ? duration(timing.held_seconds) : null], ["began", clock(timing.started)], ["judged", timing.judged_at ? clock(timing.judged_at) : null], ["worker", plain(rollout.worker)], ["engines", (rollout.engines || []).map(plain).join(", ")], ["drift", rollout.drift ? `${rollout.drift.wrong} of ${rollout.drift.tokens} tokens, had it been tokenised again` : null]);
  return facts(lines);
}

const rejudged = (rollout) => (rollout.rejudged.length ? h("div", null, h("h3", null, "Judged again"), facts(rollout.rejudged.map((one) => [plain(one.judger), one.score === null ? `no score: ${plain(one.failure)}` : number(one.score)]))) : null);

function evidence(rollout, about, signal) {
  const text = rollout.reward.evidence;
  return text ? h("section", { class: "card" }, h("h2", null, "Evidence of the judger"), longText(text, about, signal)) : null;
}

// Chains hang on the chain with which they share the longest beginning.
function tree(chains, open) {
  const branch = (parent) => {
    const found = chains.map((chain, at) => [chain, at]).filter(([chain]) => chain.parent === parent);
    return found.length ? h("ul", { class: parent === null ? "tree" : null }, found.map(([chain, at]) => h("li", null,
      h("button", { type: "button", "data-chain": at, onclick: () => open(at) }, h("b", null, `chain ${at + 1}`), ` ${whole(chain.tokens)} tokens, ${whole(chain.sampled)} sampled`,
        h("div", { class: "quiet" }, `${REASONS[chain.start] || chain.start}${chain.parent === null ? "" : `; leaves chain ${chain.parent + 1} at token ${whole(chain.shared)}`}${chain.trained ? "" : "; only recorded, not trained"}`)),
      branch(at)))) : null;
  };
  return branch(null);
}
