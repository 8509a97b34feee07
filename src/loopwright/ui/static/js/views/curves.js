// Which metrics belong into one chart. Used by the curves of a run and by comparisons.

const TIMES = [["time/rollout", "rollouts"], ["time/wait", "waiting"], ["time/train", "training"], ["time/sync", "weights"], ["time/paused", "paused"]];
const CAUSES = ["infra", "task", "setup", "agent", "verifier", "judge", "filter"];

// [title, lines: [name, label, options], options]. `of` appends the task set.
export function charts(names, taskSet) {
  const known = new Set(names);
  const of = (name) => (taskSet ? `${name}/${taskSet}` : name);
  const lines = (...pairs) => pairs.map(([name, label, options]) => [of(name), label, options]).filter(([name]) => known.has(name));
  const plainly = (...pairs) => pairs.filter(([name]) => known.has(name));
  const evaluations = (end, label) => names.filter((name) => name.startsWith("eval/") && name.endsWith(end)).filter((name) => !taskSet || name.split("/")[1] === taskSet)
    .map((name) => [name, `${label} ${name.slice(5, -end.length)}`, { points: true }]);
  const shares = names.filter((name) => /^eval\/.+\/(accuracy|pass@\d+|majority@\d+)$/.test(name)).map((name) => [name, name.slice(5), { points: true }]);
  return [
    ["Reward", [...lines(["reward/mean", "trained groups"], ["reward/drawn", "all groups"]), ...evaluations("/reward", "eval")]],
    ["Accuracy", shares, { percent: true }],
    ["Length", lines(["response/tokens", "tokens per answer"])],
    ["Truncated answers", lines(["response/truncated", "out of budget"]), { percent: true }],
    ["Entropy", plainly(["learner/entropy", "nats per token"])],
    ["KL", plainly(["learner/kl", "from the reference"], ["learner/mismatch_kl", "sampler to trainer"])],
    ["Mismatch", plainly(["learner/mismatch_mean", "mean difference of logprobs"], ["learner/mismatch_max", "largest"])],
    ["Staleness", plainly(["staleness/mean", "mean, in steps"], ["staleness/max", "oldest"])],
    ["Tokens too old", plainly(["staleness/masked", "masked"]), { percent: true }],
    ["Failures by cause", lines(...CAUSES.map((cause) => [`failures/${cause}`, cause])), { silent: true }],
    ["Groups left out", lines(["groups/failed", "failed"], ["groups/filtered", "filtered"]), { silent: true }],
    ["Step time", plainly(...TIMES), { note: "seconds" }],
    ["Idle", plainly(["slots/idle", "slots"], ["time/idle_share", "learner"]), { percent: true }],
    ["Loss", plainly(["learner/loss", "loss"])],
    ["Gradient norm", plainly(["learner/grad_norm", "before clipping"])],
    ["Programs", lines(["time/program_start", "to the first call"], ["time/program_run", "to the end"]), { note: "seconds" }],
    ["Parts of the reward", names.filter((name) => name.startsWith(taskSet ? `reward/parts_of/${taskSet}/` : "reward/parts/")).slice(0, 8).map((name) => [name, name.split("/").pop()])],
  ].filter(([, found]) => found.length).map(([title, found, options]) => ({ title, lines: found, ...(options || {}) }));
}

// The bar above the curves: smoothing and zoom.
export function controls(group, h) {
  const from = h("input", { type: "number", min: "0", size: "6", "aria-label": "from step", placeholder: "first" });
  const to = h("input", { type: "number", min: "0", size: "6", "aria-label": "to step", placeholder: "last" });
  const chosen = () => group.setZoom(from.value === "" && to.value === "" ? null : [Number(from.value || 0), Number(to.value === "" ? Infinity : to.value)].map((one, at) => (one === Infinity ? last(group) : one)));
  from.onchange = to.onchange = chosen;
  group.onzoom = (zoom) => { from.value = zoom ? Math.round(zoom[0]) : ""; to.value = zoom ? Math.round(zoom[1]) : ""; };
  const smooth = h("input", { type: "range", min: "0", max: "0.98", step: "0.02", value: "0", oninput: (event) => group.setSmoothing(Number(event.target.value)) });
  return h("div", { class: "bar" }, h("label", null, "smoothing", smooth), h("label", null, "steps", from, "to", to), h("button", { type: "button", title: "r", onclick: () => group.setZoom(null) }, "Reset zoom"), h("span", { class: "quiet small wide" }, "drag in a chart to zoom"));
}

const last = (group) => Math.max(...[...group.charts].map((chart) => chart.plot?.data[0].at(-1) ?? 0));
