// One stream of events for the whole page. When it breaks, the browser asks again; nothing is missed, because events only
// say that there is something new.

let source = null;
let listened = "";
const listeners = new Set();
const lines = new Set();

export function listen(runs, listener) {
  listeners.add(listener);
  const wanted = runs.map((run) => `run=${encodeURIComponent(run)}`).join("&");
  if (wanted !== listened) {
    source?.close();
    listened = wanted;
    source = new EventSource(`/api/events?${wanted}`);
    source.addEventListener("run", (event) => { const said = JSON.parse(event.data); for (const one of listeners) one(said); });
    source.onopen = () => { for (const one of lines) one(true); };
    source.onerror = () => { for (const one of lines) one(false); };
  }
}

export const onLine = (listener) => lines.add(listener);

// For what time alone changes, such as a run that stands still. It ends with the view.
export function everyMinute(signal, act) {
  const timer = setInterval(() => act().catch(() => {}), 60_000);
  signal.addEventListener("abort", () => clearInterval(timer));
}

export function forget() { listeners.clear(); }

export function stop() {
  source?.close();
  source = null;
  listened = "";
  listeners.clear();
}
