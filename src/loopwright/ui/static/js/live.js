// One stream of events for the whole page. Nothing is missed without it, because events only say that there is something
// new, and a stream begins with what is so now. A browser allows six connections to a server for all its tabs together, so
// only a tab that is visible has a stream.

let source = null;
let wanted = "";
const listeners = new Set();
const lines = new Set();

export function listen(runs, listener) {
  listeners.add(listener);
  const asked = runs.map((run) => `run=${encodeURIComponent(run)}`).join("&");
  if (asked === wanted) return;
  close();
  wanted = asked;
  open();
}

function open() {
  if (source || !wanted || document.hidden) return;
  source = new EventSource(`/api/events?${wanted}`);
  source.addEventListener("run", (event) => { const said = JSON.parse(event.data); for (const one of listeners) one(said); });
  source.onopen = () => { for (const one of lines) one(true); };
  source.onerror = () => { for (const one of lines) one(false); };
}

function close() {
  source?.close();
  source = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));

export const onLine = (listener) => lines.add(listener);

// For what time alone changes, such as a run that stands still. It ends with the view.
export function everyMinute(signal, act) {
  const timer = setInterval(() => act().catch(() => {}), 60_000);
  signal.addEventListener("abort", () => clearInterval(timer));
}

export function forget() { listeners.clear(); }

export function stop() {
  close();
  wanted = "";
  listeners.clear();
}
