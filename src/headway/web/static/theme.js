// Light, dark or the system setting. Runs before anything is drawn, so that nothing flashes.
"use strict";
(function () {
  const CHOICES = ["automatic", "light", "dark"];
  const KEY = "headway-theme";

  function known() {
    try {
      const chosen = localStorage.getItem(KEY);
      return CHOICES.includes(chosen) ? chosen : "automatic";
    } catch { return "automatic"; }
  }

  // The style sheet has one rule for the system setting, which is switched on or off here.
  function apply(choice) {
    const media = { automatic: "(prefers-color-scheme: dark)", light: "not all", dark: "screen" }[choice];
    for (const sheet of document.styleSheets) {
      for (const rule of sheet.cssRules) {
        if (!(rule instanceof CSSMediaRule)) continue;
        if (rule.media.mediaText.includes("prefers-color-scheme")) rule.headwayDark = true;
        if (rule.headwayDark) rule.media.mediaText = media;
      }
    }
    document.documentElement.style.colorScheme = choice === "automatic" ? "" : choice;
    document.documentElement.dataset.theme = choice;
  }

  apply(known());
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const say = () => { button.textContent = "Theme: " + known(); };
    say();
    button.addEventListener("click", () => {
      const next = CHOICES[(CHOICES.indexOf(known()) + 1) % CHOICES.length];
      try { localStorage.setItem(KEY, next); } catch { /* then it is forgotten */ }
      apply(next);
      say();
      dispatchEvent(new Event("themechange"));
    });
  });
})();
