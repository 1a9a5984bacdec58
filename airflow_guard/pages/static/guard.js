// What the pages do beyond links and forms. Without this script they work, with times in UTC.
(function () {
  "use strict";

  // --- Times in the user's zone, which Airflow keeps in the browser's storage under "timezone" ------------------

  function zone() {
    try {
      var stored = window.localStorage.getItem("timezone");
      if (!stored) return undefined;
      return stored.charAt(0) === '"' ? JSON.parse(stored) : stored;
    } catch (error) {
      return undefined;
    }
  }

  function formatter() {
    var options = {
      year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
      hourCycle: "h23", timeZoneName: "short",
    };
    try {
      return new Intl.DateTimeFormat("en-CA", Object.assign({ timeZone: zone() }, options));
    } catch (error) {
      return new Intl.DateTimeFormat("en-CA", options); // a zone that this browser does not know
    }
  }

  function localise() {
    var format = formatter();
    document.querySelectorAll("time[data-instant]").forEach(function (element) {
      var parts = {};
      format.formatToParts(new Date(element.dateTime)).forEach(function (part) { parts[part.type] = part.value; });
      element.title = element.dateTime.replace("T", " ").replace("Z", " UTC");
      element.textContent =
        parts.year + "-" + parts.month + "-" + parts.day + " " + parts.hour + ":" + parts.minute + ":" +
        parts.second + " " + parts.timeZoneName;
    });
  }

  localise();
  window.addEventListener("storage", function (event) {
    if (event.key === "timezone" || event.key === null) localise();
  });

  // --- Links out of the frame ------------------------------------------------------------------------------------
  // Airflow shows these pages in a frame that may not open windows, replace the page around it or, in some versions,
  // download. The page around it has the same origin and may; so it is asked to follow the link.

  function outside() {
    try {
      return window.parent !== window && window.parent.document ? window.parent.document : null;
    } catch (error) {
      return null; // framed by another site, which the server forbids
    }
  }

  document.addEventListener("click", function (event) {
    var link = event.target.closest && event.target.closest("a[data-airflow], a[data-download]");
    var around = outside();
    if (!link || !around || event.defaultPrevented || event.button !== 0) return;
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    var copy = around.createElement("a");
    copy.href = link.href;
    if ("download" in link.dataset) copy.download = "";
    around.body.appendChild(copy);
    copy.click();
    copy.remove();
  });

  // --- Forms -----------------------------------------------------------------------------------------------------

  document.querySelectorAll("form[data-choose]").forEach(function (form) {
    var button = form.querySelector("button");
    if (button) button.hidden = true;
    form.addEventListener("change", function () { form.requestSubmit(); });
  });

  document.addEventListener("submit", function (event) {
    var form = event.target;
    if (form.method !== "get") {
      // A double click sends the form once. The server would take the second one for the first, too.
      if (form.dataset.sent) {
        event.preventDefault();
        return;
      }
      form.dataset.sent = "yes";
      form.setAttribute("aria-busy", "true");
      return;
    }
    // Filters that say nothing stay out of the address.
    form.querySelectorAll("input, select").forEach(function (field) {
      if (field.name && !field.value && !field.disabled) {
        field.disabled = true;
        window.setTimeout(function () { field.disabled = false; }, 0);
      }
    });
    form.setAttribute("aria-busy", "true");
  });

  // --- Rows that are chosen in a list ----------------------------------------------------------------------------

  document.querySelectorAll("button[data-choose-all]").forEach(function (button) {
    button.hidden = false;
    button.addEventListener("click", function () {
      var boxes = document.querySelectorAll('input[type="checkbox"][form="' + button.form.id + '"]');
      var all = Array.prototype.every.call(boxes, function (box) { return box.checked; });
      boxes.forEach(function (box) { box.checked = !all; });
    });
  });

  window.addEventListener("pageshow", function () {
    document.querySelectorAll("form[data-sent], form[aria-busy]").forEach(function (form) {
      delete form.dataset.sent;
      form.removeAttribute("aria-busy");
    });
  });

  document.documentElement.dataset.ready = "yes";
})();
