// The tokens of one chain, a page at a time. Colour tells one thing of each token; hover or focus tells all of it.

import { askRun } from "../api.js";
import { h, pick, replace } from "../dom.js";
import { number, plain, whole } from "../format.js";

const PAGE = 1000;
const COLOURS = [["logprob", "logprob"], ["version", "weight version"], ["mismatch", "mismatch"], ["push", "push"], ["advantage", "advantage"], ["none", "nothing"]];
const KEPT = "loopwright.colour";
const WHY = { not_trained: "its rollout is in no step", recorded: "only recorded", constrained: "a constraint left no choice", too_old: "too old", no_advantage: "its rollout has advantage 0" };

const PULLS = "Where the token's own term of the loss pulls it. The other tokens of the step share the same weights.";

// Where the token's own term pulls it, or that what is stored does not tell. By the advantage, the policy's part of the
// loss pulls the other way if the sign is another: then a different config has trained the token.
function pulled(push, { push_meaning: means, advantage }) {
  const likelier = means && push > 0 === (means.likelier === "above");
  if (!means || !advantage || likelier !== advantage > 0) return h("span", { class: "quiet" }, "not certain");
  return `towards ${likelier ? "likelier" : "less likely"}${means.may_be_clipped ? ", if not clipped" : ""}`;
}

export class TokenPane {
  constructor(about, rollout, signal, changed) {
    Object.assign(this, { about, rollout, signal, changed });
    this.chain = 0;
    this.from = 0;
    this.colour = localStorage.getItem(KEPT) || "logprob";
    this.text = h("div", { class: "tokens", role: "group", "aria-label": "Tokens" });
    this.detail = h("section", { class: "card token", "aria-live": "polite", "aria-label": "The token pointed at" }, h("h2", null, "Token"), h("p", { class: "quiet" }, "Point at a token, or step through them with ← and →."));
    this.legend = h("div", { class: "legend" });
    this.pager = h("div", { class: "bar" });
    this.note = h("p", { class: "quiet small" });
    this.node = h("div", null, h("div", { class: "bar" }, this.pager, pick("colour", COLOURS, this.colour, (value) => { this.colour = value; localStorage.setItem(KEPT, value); this.paint(); })), this.legend, this.note, h("div", { class: "card" }, this.text));
    const point = (event) => { const span = event.target.closest?.("span[data-i]"); if (span) this.tell(Number(span.dataset.i)); };
    this.text.addEventListener("mouseover", point);
    this.text.addEventListener("focusin", point);
  }

  async open(chain, from) {
    this.chain = Math.min(chain, this.rollout.chains.length - 1);
    this.from = from;
    this.data = await askRun(this.about.run, "/tokens", { key: this.about.key, round: this.about.round, chain: this.chain, from, count: PAGE }, this.signal);
    this.changed({ chain: this.chain || undefined, from: from || undefined });
    this.draw();
  }

  draw() {
    const { data } = this;
    const spans = data.ids.map((id, at) => h("span", { "data-i": at, "data-s": data.sampled[at], tabindex: at ? "-1" : "0" }, shownText(plain(data.texts[at]), data.texts[at] === null ? `⟨${id}⟩` : null)));
    replace(this.text, spans);
    const { total } = data, last = Math.min(total, this.from + PAGE);
    const jump = h("input", { type: "number", min: "0", max: String(total - 1), value: String(this.from), "aria-label": "From token", onchange: (event) => this.open(this.chain, Math.max(0, Math.min(total - 1, Number(event.target.value)))) });
    replace(this.pager,
      this.rollout.chains.length > 1 ? pick("chain", this.rollout.chains.map((_, at) => [String(at), `${at + 1} of ${this.rollout.chains.length}`]), String(this.chain), (value) => this.open(Number(value), 0)) : null,
      h("button", { type: "button", disabled: this.from === 0, title: "[", onclick: () => this.open(this.chain, Math.max(0, this.from - PAGE)) }, "←"),
      h("label", null, "tokens", jump, `to ${whole(last - 1)} of ${whole(total)}`),
      h("button", { type: "button", disabled: last >= total, title: "]", onclick: () => this.open(this.chain, this.from + PAGE) }, "→"));
    this.note.textContent = [data.why_no_texts && `Ids instead of texts: ${data.why_no_texts}.`, this.rollout.chains[this.chain].trained ? "" : "This chain is only recorded, not trained."].filter(Boolean).join(" ");
    this.paint();
  }

  value(at) {
    const { data } = this;
    if (!data.sampled[at]) return null;
    if (this.colour === "logprob") return data.logprobs[at];
    if (this.colour === "version") return data.versions[at];
    if (this.colour === "mismatch") return data.mismatch?.[at] ?? null;
    if (this.colour === "push") return data.push?.[at] ?? null;
    if (this.colour === "advantage") return data.advantage ?? null;
    return null;
  }

  paint() {
    const { data } = this;
    // Somebody chose a colour before the tokens have arrived.
    if (!data) return;
    const values = data.ids.map((_, at) => this.value(at));
    const known = values.filter((value) => value !== null);
    const largest = Math.max(1e-12, ...known.map(Math.abs));
    const versions = [...new Set(known)].sort((a, b) => a - b);
    const classOf = (value) => {
      if (value === null) return "";
      if (this.colour === "logprob") return value > -0.105 ? "" : `w${Math.min(5, Math.ceil(-value / 0.9))}`;
      if (this.colour === "version") return `v${versions.indexOf(value) % 5}`;
      const level = Math.min(5, Math.ceil((5 * Math.abs(value)) / largest));
      // With most losses a token is made likelier by a share below zero.
      const cool = this.colour === "push" && data.push_meaning?.likelier !== "above" ? value < 0 : value > 0;
      return level === 0 ? "" : `${cool ? "c" : "w"}${level}`;
    };
    [...this.text.children].forEach((span, at) => {
      const off = data.sampled[at] && (data.constrained?.[at] || data.why_untrained?.[at]);
      const found = [classOf(values[at]), off ? "off" : ""].filter(Boolean).join(" ");
      if (found) span.className = found; else span.removeAttribute("class");
    });
    const level = (name, text) => h("li", null, h("span", { class: `level ${name}` }), text);
    const missing = !known.length && { mismatch: "mismatch is not stored for these tokens", push: "push is not stored for these tokens", advantage: "no advantage is stored" }[this.colour];
    const meaning = missing ? [h("li", null, missing)] : {
      logprob: () => [level("", "probability above 0.9"), level("w1", "0.4"), level("w3", "0.07"), level("w5", "below 0.03")],
      version: () => versions.slice(0, 12).map((version, at) => level(`v${at % 5}`, `version ${version}`)),
      mismatch: () => [level("c5", `trainer gives more (up to ${number(largest)})`), level("w5", "trainer gives less")],
      push: () => {
        const means = data.push_meaning, sides = means?.likelier === "above" ? ["above", "below"] : ["below", "above"];
        const pulls = (way) => (means ? `: pulls towards ${way}${means.may_be_clipped ? ", if not clipped" : ""}` : "");
        return [level("c5", `share of the loss ${sides[0]} zero (up to ${number(largest)} of the step's)${pulls("likelier")}`), level("w5", `${sides[1]} zero${pulls("less likely")}`)];
      },
      advantage: () => [level("c5", "better than its group"), level("w5", "worse")],
      none: () => [],
    }[this.colour]();
    replace(this.legend, h("ul", { class: "legend" }, h("li", null, h("span", { class: "swatch tone-1" }), "sampled"), h("li", null, h("span", { class: "quiet" }, "grey: given")), meaning));
  }

  tell(at) {
    const { data } = this;
    const sampled = Boolean(data.sampled[at]);
    const stored = (values) => (values ? (values[at] === null ? "–" : number(values[at], 5)) : h("span", { class: "quiet" }, "not stored"));
    const quiet = (text) => h("span", { class: "quiet" }, text);
    // The same rows for every token: what moves under the pointer would point at another one.
    const of = (value) => (sampled ? value() : quiet("–"));
    const text = data.texts[at] === null ? "–" : JSON.stringify(plain(data.texts[at]));
    const why = data.why_untrained?.[at] || (data.constrained?.[at] ? "constrained" : null);
    const push = data.push?.[at];
    this.detail.classList.add("open");
    replace(this.detail, h("h2", null, `Token ${whole(this.from + at)}`), h("dl", { class: "rows" }, [
      ["id", h("b", { "data-field": "id" }, String(data.ids[at]))],
      ["text", h("code", { class: "short", title: text }, text)],
      ["origin", sampled ? "sampled" : "given"],
      ["logprob", of(() => h("b", { "data-field": "logprob" }, String(data.logprobs[at])))],
      ["probability", of(() => number(Math.exp(data.logprobs[at])))],
      ["version", of(() => String(data.versions[at]))],
      ["mismatch", of(() => h("span", { "data-field": "mismatch" }, stored(data.mismatch)))],
      ["advantage", of(() => (data.advantage === null || data.advantage === undefined ? quiet("not stored") : number(data.advantage)))],
      ["push", of(() => [h("span", { "data-field": "push" }, stored(data.push)), push ? quiet(" of the step") : null])],
      ["trained", of(() => (why ? h("span", { class: "warn" }, `no: ${WHY[why] || why}`) : !this.rollout.chains[this.chain].trained ? "no: only recorded" : data.why_untrained ? "yes" : quiet("not stored")))],
      ["pulls", of(() => h("span", { "data-field": "pulls", title: PULLS }, push ? pulled(push, data) : quiet("–")))],
    ].map(([name, value]) => [h("dt", null, name), h("dd", null, value)])));
  }

  key(event) {
    const spans = this.text.children;
    if (event.key === "[" && this.from > 0) { this.open(this.chain, Math.max(0, this.from - PAGE)); return true; }
    if (event.key === "]" && this.data && this.from + PAGE < this.data.total) { this.open(this.chain, this.from + PAGE); return true; }
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return false;
    const here = [...spans].indexOf(document.activeElement);
    const next = here < 0 ? 0 : Math.max(0, Math.min(spans.length - 1, here + (event.key === "ArrowRight" ? 1 : -1)));
    if (here >= 0) spans[here].tabIndex = -1;
    if (spans[next]) { spans[next].tabIndex = 0; spans[next].focus(); }
    return true;
  }
}

// Line breaks are tokens too: they show, and they break the line.
function shownText(text, otherwise) {
  if (otherwise !== null) return otherwise;
  return text.replace(/\r/g, "␍").replace(/\n/g, "↵\n").replace(/\t/g, "⇥\t") || "∅";
}
