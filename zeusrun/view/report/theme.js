(function () {
  const root = document.documentElement, key = "zeusrun-theme", order = ["auto", "light", "dark"];
  let theme = "auto";
  try { theme = localStorage.getItem(key) || "auto"; } catch (blocked) { /* keeps none */ }
  if (!order.includes(theme)) theme = "auto";
  function show(button) {
    if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme;
    if (button) button.textContent = "Theme: " + theme;
  }
  show();
  document.addEventListener("DOMContentLoaded", function () {
    const button = document.getElementById("theme");
    button.hidden = false;
    show(button);
    button.addEventListener("click", function () {
      theme = order[(order.indexOf(theme) + 1) % order.length];
      try { localStorage.setItem(key, theme); } catch (blocked) { /* keeps none */ }
      show(button);
    });
  });
})();
