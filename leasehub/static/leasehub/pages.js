// The live parts of the pages: times that count down, and polling that rests while nobody looks. Everything else
// works without.
(() => {
  "use strict";

  const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

  // Says the same as leasehub/templatetags/times.py.
  function span(seconds) {
    const whole = Math.max(0, Math.floor(seconds));
    for (let index = 0; index < UNITS.length - 1; index += 1) {
      const [name, size] = UNITS[index];
      const [smaller, part] = UNITS[index + 1];
      if (whole >= size) {
        const rest = Math.floor((whole % size) / part);
        return rest ? `${Math.floor(whole / size)} ${name} ${rest} ${smaller}` : `${Math.floor(whole / size)} ${name}`;
      }
    }
    return `${whole} s`;
  }

  // The deadline in this page's own time: its clock need not agree with the server's.
  const deadlines = new WeakMap();

  function countDown() {
    for (const time of document.querySelectorAll("time[data-left-ms]")) {
      if (!deadlines.has(time)) {
        deadlines.set(time, performance.now() + Number(time.dataset.leftMs));
      }
      const left = (deadlines.get(time) - performance.now()) / 1000;
      const text = left > 0 ? span(left) : "ran out";
      if (time.textContent !== text) {
        time.textContent = text;
      }
      time.classList.toggle("over", left <= 0);
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const stale = document.getElementById("stale");
    document.body.addEventListener("htmx:beforeRequest", (event) => {
      const open = event.detail.elt.querySelector("details[open]");
      if (document.hidden || open) {
        // An open detail would be closed by the update: it waits until it is read.
        event.preventDefault();
      }
    });
    document.body.addEventListener("htmx:sendError", () => { stale.hidden = false; });
    document.body.addEventListener("htmx:responseError", () => { stale.hidden = false; });
    document.body.addEventListener("htmx:afterSwap", () => { stale.hidden = true; countDown(); });
    countDown();
    setInterval(countDown, 500);
  });
})();
