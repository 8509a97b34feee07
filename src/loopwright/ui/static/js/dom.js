// Elements from data. Text is always text: nothing here reads markup.

export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false).map(textual));
  return element;
}

const textual = (child) => (child instanceof Node ? child : document.createTextNode(String(child)));

export function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(Boolean).map(textual));
  return element;
}

export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));

// A table that is wider than the window scrolls in here, also by keyboard; the view itself never does.
export const wideBox = (label, ...children) => h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, children);

export const pick = (label, options, value, change) =>
  h("label", null, label, h("select", { onchange: (event) => change(event.target.value) }, options.map(([key, text]) => {
    const option = h("option", { value: key }, text);
    option.selected = key === (value ?? "");
    return option;
  })));
