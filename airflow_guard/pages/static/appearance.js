// Light or dark as Airflow is set, before anything is drawn. Airflow keeps its choice in the browser's storage under
// "theme" (light, dark or system); this page has the same origin and reads it there.
(function () {
  "use strict";
  var system = window.matchMedia("(prefers-color-scheme: dark)");

  function chosen() {
    try {
      return window.localStorage.getItem("theme");
    } catch (error) {
      return null; // storage is switched off
    }
  }

  function apply() {
    var choice = chosen();
    var dark = choice === "dark" || (choice !== "light" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  }

  apply();
  system.addEventListener("change", apply);
  window.addEventListener("storage", function (event) {
    if (event.key === "theme" || event.key === null) apply();
  });
})();
