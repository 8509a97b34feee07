// Questions to the server. A refused one becomes an ApiError with what is wrong and what to do.

export class ApiError extends Error {
  constructor(status, message, remedy) {
    super(message);
    this.status = status;
    this.remedy = remedy;
  }
}

export async function ask(path, params = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined && one !== null && one !== "") query.append(name, one);
  }
  const text = query.toString();
  let answer;
  try {
    answer = await fetch(text ? `${path}?${text}` : path, { signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the server of this page does not answer", "is `loopwright ui` still running? The page goes on when it is back");
  }
  if (answer.ok) return answer.json();
  let said = {};
  try { said = (await answer.json()).error || {}; } catch { /* no JSON: the status says it */ }
  throw new ApiError(answer.status, said.message || `the server answered ${answer.status}`, said.remedy || "");
}

export const askRun = (run, what, params, signal) => ask(`/api/runs/${encodeURIComponent(run)}${what}`, params, signal);

export async function login(key) {
  const answer = await fetch("/api/login", { method: "POST", body: key, credentials: "same-origin" });
  if (!answer.ok) throw new ApiError(answer.status, "this is not the key of this server", "copy the link again, or read the key file");
}
