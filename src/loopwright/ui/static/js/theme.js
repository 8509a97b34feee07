// Before anything is drawn: the theme that was chosen here, or the system's.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem("loopwright.theme");
  const apply = () => { document.documentElement.dataset.theme = chosen() || (system.matches ? "dark" : "light"); };
  apply();
  system.addEventListener("change", () => { apply(); dispatchEvent(new Event("themechange")); });
})();
