// One stream of events for the whole page. Nothing is missed without it, because events only say that there is something
// new, and a stream begins with what is so now. A browser allows six connections to a server for all its tabs together, so
// only a tab that is visible has a stream.

import { ask } from "./api.js";

const AGAIN_MS = 2000;

let source = null;
let wanted = "";
let again = 0;
const listeners = new Set();
const lines = new Set();
const refusals = new Set();

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
  source.onopen = () => reached(true);
  source.onerror = () => { reached(false); if (source.readyState === EventSource.CLOSED) ended(); };
}

// A browser does not ask again after an answer that is no stream: the server may be another one, with another key.
async function ended() {
  close();
  try { await ask("/api/runs"); } catch (error) { if (error.status === 401) { refused(error); return; } }
  clearTimeout(again);
  again = setTimeout(open, AGAIN_MS);
}

function close() {
  clearTimeout(again);
  source?.close();
  source = null;
}

// Whether the server answers. Views that ask without a stream tell it too.
export function reached(isOn) { for (const one of lines) one(isOn); }

export function refused(error) { for (const one of refusals) one(error); }

document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));

export const onLine = (listener) => lines.add(listener);
export const onRefused = (listener) => refusals.add(listener);

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
