// Curves over train steps, drawn by uPlot. All charts of a page share smoothing and zoom.

import { h, replace } from "./dom.js";
import { number } from "./format.js";

const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

export class ChartGroup {
  constructor() {
    this.charts = new Set();
    this.smoothing = 0;
    this.zoom = null;
    this.onzoom = () => {};
    this.redraw = () => this.draw();
    addEventListener("themechange", this.redraw);
    this.sizes = new ResizeObserver((entries) => { for (const entry of entries) entry.target.chart?.resize(); });
  }

  add(chart) {
    this.charts.add(chart);
    chart.group = this;
    this.sizes.observe(chart.canvas);
    return chart;
  }

  setZoom(zoom) {
    this.zoom = zoom;
    this.onzoom(zoom);
    for (const chart of this.charts) chart.applyZoom();
  }

  setSmoothing(share) { this.smoothing = share; this.draw(); }

  draw() { for (const chart of this.charts) chart.draw(); }

  destroy() {
    removeEventListener("themechange", this.redraw);
    this.sizes.disconnect();
    for (const chart of this.charts) chart.plot?.destroy();
    this.charts.clear();
  }
}

// lines(): [{label, tone, dash, points, steps, values}]. Of a silent chart, lines that are always 0 are left out.
export class Chart {
  constructor(title, lines, { note = "", percent = false, silent = false } = {}) {
    this.title = title;
    this.lines = () => lines().filter((line) => line.steps.length && !(silent && line.values.every((value) => !(value > 0))));
    this.percent = percent;
    this.canvas = h("div", { class: "canvas" });
    this.canvas.chart = this;
    this.legend = h("ul", { class: "legend" });
    this.node = h("section", { class: "card chart" }, h("h2", null, title, note && h("span", { class: "quiet small" }, note)), this.canvas, this.legend);
    this.plot = null;
    this.shape = "";
  }

  draw() {
    if (!this.canvas.isConnected) return;
    const lines = this.lines();
    this.node.hidden = !lines.length;
    if (!lines.length) return;
    const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
    const place = new Map(steps.map((step, at) => [step, at]));
    const data = [steps];
    const series = [{}];
    const smooth = this.group.smoothing;
    const style = getComputedStyle(document.documentElement);
    for (const line of lines) {
      const colour = style.getPropertyValue(`--tone-${line.tone}`).trim();
      const raw = new Array(steps.length).fill(null);
      line.steps.forEach((step, at) => { raw[place.get(step)] = line.values[at]; });
      const few = line.points || line.steps.length < 25;
      if (smooth > 0 && !line.points) {
        data.push(raw);
        series.push({ stroke: fade(colour), width: 1, spanGaps: true, points: { show: false } });
        data.push(averaged(raw, smooth));
        series.push({ stroke: colour, width: 2, dash: DASHES[line.dash || 0], spanGaps: true, points: { show: false } });
      } else {
        data.push(raw);
        series.push({ stroke: colour, width: 1.6, dash: DASHES[line.dash || 0], spanGaps: true, points: { show: few, size: line.points ? 6 : 4, fill: colour } });
      }
    }
    const shape = JSON.stringify([series.map((one) => [one.stroke, one.width, one.dash, one.points?.show])]);
    if (this.plot && shape === this.shape) this.plot.setData(data, !this.group.zoom);
    else this.build(data, series, shape, style);
    this.applyZoom();
    this.tell(lines);
  }

  build(data, series, shape, style) {
    this.plot?.destroy();
    this.shape = shape;
    const axis = { stroke: style.getPropertyValue("--quiet").trim(), grid: { stroke: style.getPropertyValue("--line").trim(), width: 1 }, ticks: { show: false }, font: "11px system-ui, 'DejaVu Sans', sans-serif", size: 48 };
    const show = (value) => (this.percent ? `${number(100 * value)}%` : number(value));
    this.plot = new uPlot({
      width: this.canvas.clientWidth || 360,
      height: 170,
      legend: { show: false },
      scales: { x: { time: false }, y: { range: (_, low, high) => this.range(low, high) } },
      cursor: { y: false, drag: { x: true, y: false, setScale: false }, sync: { key: "loopwright" }, points: { size: 6 } },
      select: { show: true },
      axes: [{ ...axis, size: 26, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000] }, { ...axis, values: (_, ticks) => ticks.map(show) }],
      series,
      hooks: {
        setSelect: [(plot) => {
          if (plot.select.width < 4) return;
          this.group.setZoom([plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")]);
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
        setCursor: [(plot) => this.point(plot.cursor.idx)],
      },
    }, data, this.canvas);
    this.canvas.setAttribute("role", "img");
    this.canvas.ondblclick = () => this.group.setZoom(null);
  }

  // A share that never changes would get an axis up to thousands of percent.
  range(low, high) {
    if (this.percent && low === high && (low === 0 || low === 1)) return [0, 1];
    return low === null || low === undefined ? [null, null] : uPlot.rangeNum(low, high, 0.1, true);
  }

  resize() { if (this.plot && this.canvas.clientWidth) this.plot.setSize({ width: this.canvas.clientWidth, height: 170 }); }

  applyZoom() {
    if (!this.plot) return;
    const steps = this.plot.data[0];
    const [low, high] = this.group.zoom || [steps[0], steps[steps.length - 1]];
    this.plot.setScale("x", { min: low, max: high > low ? high : low + 1 });
  }

  // The legend tells the latest values, or those under the cursor.
  tell(lines) {
    this.shown = lines;
    const last = lines.map((line) => `${line.label} ${this.text(line.values[line.values.length - 1])} at step ${line.steps[line.steps.length - 1]}`);
    this.canvas.setAttribute("aria-label", `${this.title}: ${last.join(", ")}`);
    this.values = lines.map((line) => h("b", null, this.text(line.values[line.values.length - 1])));
    replace(this.legend, lines.map((line, at) => h("li", { class: `tone-${line.tone}` }, h("span", { class: `swatch ${["", "dash", "dot", "dash"][line.dash || 0]}` }), line.label, this.values[at])));
  }

  point(index) {
    if (!this.shown || !this.values) return;
    const step = index === null || index === undefined ? null : this.plot.data[0][index];
    this.shown.forEach((line, at) => {
      const place = step === null ? line.values.length - 1 : line.steps.indexOf(step);
      this.values[at].textContent = place < 0 ? "–" : this.text(line.values[place]);
    });
  }

  text(value) { return this.percent ? `${number(100 * value)} %` : number(value); }
}

// An exponential average that forgets with `share`, and does not lag at the beginning.
function averaged(values, share) {
  let sum = 0, weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = share * sum + value;
    weight = share * weight + 1;
    return sum / weight;
  });
}

const fade = (colour) => `${colour}55`;

export function sparkline(values) {
  const node = h("span", { class: "spark", role: "img", "aria-label": `reward of the last ${values.length} steps` });
  if (values.filter((value) => value !== null).length < 2) return node;
  const stroke = getComputedStyle(document.documentElement).getPropertyValue("--tone-1").trim();
  new uPlot({
    width: 90, height: 22, legend: { show: false }, cursor: { show: false }, padding: [2, 2, 2, 2], scales: { x: { time: false } },
    axes: [{ show: false }, { show: false }], series: [{}, { stroke, width: 1.5, spanGaps: true, points: { show: false } }],
  }, [values.map((_, at) => at), values], node);
  return node;
}
