// The metrics of one run, kept up to date: values by step for each name.

import { askRun } from "./api.js";

export class Metrics {
  constructor(run, names) {
    this.run = run;
    this.names = names;
    this.clear();
  }

  clear() {
    this.edition = null;
    this.rows = 0;
    this.values = new Map(this.names.map((name) => [name, new Map()]));
  }

  // Fetches what is new. True if there was something.
  async refresh(signal) {
    if (!this.names.length) return false;
    const found = await askRun(this.run, "/metrics", { name: this.names, since: this.rows || undefined }, signal);
    // Averaged rows, and those of a file that was written anew, come from the beginning.
    if (found.edition !== this.edition || found.bucket > 1 || found.first < this.rows) {
      const again = this.edition !== null && found.first > 0;
      this.clear();
      this.edition = found.edition;
      if (again) return this.refresh(signal);
    }
    const before = this.rows;
    this.rows = found.rows;
    for (const [name, column] of Object.entries(found.values)) {
      const known = this.values.get(name);
      column.forEach((value, place) => { if (value !== null) known?.set(found.steps[place], value); });
    }
    return found.rows !== before;
  }

  series(name) {
    const found = this.values.get(name) || new Map();
    const steps = [...found.keys()].sort((a, b) => a - b);
    return { steps, values: steps.map((step) => found.get(step)) };
  }
}
