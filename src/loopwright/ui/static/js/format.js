// Numbers, times and texts as people read them.

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 10000 || size < 0.001) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(size >= 1000 ? 4 : digits)));
}

export const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
export const percent = (value) => (value === null || value === undefined ? "–" : `${number(100 * value)} %`);

export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0.0995) return `${number(1000 * seconds, 2)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.round(seconds % 60)).padStart(2, "0")} s`;
  if (minutes < 60 * 48) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(minutes / 1440)} days`;
}

export const ago = (at) => (at ? `${roughly(Math.max(0, Date.now() / 1000 - at))} ago` : "–");

function roughly(seconds) {
  const [size, unit] = [[86400, "days"], [3600, "h"], [60, "min"], [1, "s"]].find(([one]) => seconds >= 2 * one) || [1, "s"];
  return `${Math.round(seconds / size)} ${unit}`;
}
export const clock = (at) => (at ? new Date(1000 * at).toLocaleString("sv") : "–");

// A text that the server has cut is {text, characters}.
export const isCut = (value) => value !== null && typeof value === "object" && typeof value.text === "string" && typeof value.characters === "number";
export const plain = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return value;
  if (isCut(value)) return `${value.text}…`;
  return JSON.stringify(value, null, 1);
};
