// A conversation as people read it. All of it is text from models, tools and programs, and is shown as text.

import { askRun } from "../api.js";
import { h } from "../dom.js";
import { isCut, plain, whole } from "../format.js";

const TONES = { system: 5, developer: 5, user: 1, assistant: 3, tool: 2 };
const KNOWN = ["role", "content", "reasoning", "reasoning_content", "tool_calls", "tool_call_id", "name"];

export const answerOf = (rollout) => plain([...rollout.messages].reverse().find((message) => message.role === "assistant")?.content);

// `more` fetches the rest of a text that was cut: {run, key, round, path}.
export function longText(value, more, signal) {
  const pre = h("pre", null, contentText(value));
  if (!isCut(value)) return pre;
  const button = h("button", { type: "button", onclick: async () => {
    button.disabled = true;
    let from = value.text.length;
    pre.textContent = value.text;
    while (from < value.characters) {
      const part = await askRun(more.run, "/text", { key: more.key, round: more.round, path: more.path, from }, signal);
      if (!part.text) break;
      pre.append(plain(part.text));
      from = part.next;
    }
    button.remove();
  } }, `Show all ${whole(value.characters)} characters`);
  return h("div", null, pre, button);
}

function contentText(value) {
  if (Array.isArray(value)) return value.map((part) => (part && typeof part === "object" && "text" in part && !isCut(part) ? plain(part.text) : plain(part))).join("\n");
  return plain(value);
}

export function messageBlock(message, place, about, signal) {
  const role = plain(message.role) || "message";
  const path = `messages/${place}`;
  const reasoning = message.reasoning ?? message.reasoning_content;
  const others = Object.entries(message).filter(([name, value]) => !KNOWN.includes(name) && value !== null && value !== "" && value !== undefined);
  return h("article", { class: `message tone-${TONES[role] || 4}`, "aria-label": `${role}, message ${place + 1}` },
    h("header", null, h("b", null, role), message.name ? h("span", null, plain(message.name)) : null, message.tool_call_id ? h("span", { class: "mono" }, plain(message.tool_call_id)) : null),
    reasoning ? h("details", { open: true }, h("summary", null, "reasoning"), longText(reasoning, { ...about, path: `${path}/${message.reasoning ? "reasoning" : "reasoning_content"}` }, signal)) : null,
    message.content !== null && message.content !== undefined && message.content !== "" ? longText(message.content, { ...about, path: `${path}/content` }, signal) : null,
    (Array.isArray(message.tool_calls) ? message.tool_calls : []).map((call) => h("div", { class: "call" }, h("div", { class: "small" }, h("b", null, "calls "), h("code", null, plain(call.name ?? call.function?.name)), call.id ? h("span", { class: "quiet mono" }, ` ${plain(call.id)}`) : null), h("pre", null, pretty(call.arguments ?? call.function?.arguments)))),
    others.length ? h("details", null, h("summary", null, "more"), h("pre", null, others.map(([name, value]) => `${name}: ${plain(value)}`).join("\n"))) : null);
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 1); } catch { return plain(text); }
}
