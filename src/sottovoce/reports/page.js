// What a report does beyond standing there: values under the pointer, chosen rows, sorted tables, open details on paper.
"use strict";
(() => {
  const all = (where, what) => [...where.querySelectorAll(what)];
  const SLOTS = 6;
  document.documentElement.classList.add("live");

  // Values: the nearest point under the pointer, or the next one by arrow keys.
  for (const figure of all(document, "figure")) {
    const svg = figure.querySelector("svg");
    const tip = document.createElement("div");
    let at = -1;
    tip.className = "tip";
    tip.setAttribute("role", "status");
    tip.hidden = true;
    figure.append(tip);
    const points = () => all(svg, "[data-tip]").filter((point) => !point.closest(".off"));
    const hide = () => {
      tip.hidden = true;
      for (const point of all(svg, ".here")) point.classList.remove("here");
    };
    const show = (point) => {
      hide();
      const box = point.getBoundingClientRect();
      const frame = figure.getBoundingClientRect();
      point.classList.add("here");
      tip.textContent = point.dataset.tip;
      tip.hidden = false;
      const left = box.left - frame.left + 12;
      tip.style.left = `${Math.max(0, Math.min(left, frame.width - tip.offsetWidth))}px`;
      tip.style.top = `${box.top - frame.top + 14}px`;
    };
    svg.addEventListener("pointermove", (event) => {
      let best = null;
      let near = 24;
      for (const point of points()) {
        const box = point.getBoundingClientRect();
        const far = Math.hypot(box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY);
        if (far < near) [best, near] = [point, far];
      }
      if (best) show(best);
      else hide();
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const found = points();
      if (!step || !found.length) return;
      event.preventDefault();
      at = (at + step + found.length) % found.length;
      show(found[at]);
    });
  }

  // Choices: a line that is chosen takes a free colour; there are six.
  const spread = (names) => {
    const order = names.sort((one, other) => one.dataset.at - other.dataset.at);
    let last = -Infinity;
    for (const name of order) {
      last = Math.max(Number(name.dataset.at), last + 15);
      name.setAttribute("y", last + 4);
    }
    let next = 251;
    for (const name of order.reverse()) {
      next = Math.min(Number(name.getAttribute("y")) - 4, next - 15);
      name.setAttribute("y", next + 4);
    }
  };
  const slotOf = (element) => [...element.classList].find((name) => /^s\d$/.test(name));
  for (const choice of all(document, "fieldset[data-for]")) {
    const boxes = all(choice, "input");
    const charts = all(document, `[data-group="${choice.dataset.for}"] > svg`);
    const settle = () => {
      const full = boxes.filter((box) => box.checked).length >= SLOTS;
      for (const box of boxes) box.disabled = full && !box.checked;
      for (const svg of charts) spread(all(svg, "text.name").filter((name) => !name.classList.contains("off")));
    };
    choice.addEventListener("change", (event) => {
      const box = event.target;
      const label = box.closest("label");
      const taken = boxes.filter((other) => other !== box && other.checked).map((o) => slotOf(o.closest("label")));
      const own = slotOf(label);
      const free = [...Array(SLOTS).keys()].map((slot) => `s${slot}`).find((slot) => !taken.includes(slot));
      const now = box.checked ? free : "off";
      if (own) label.classList.remove(own);
      if (box.checked) label.classList.add(now);
      for (const svg of charts)
        for (const part of all(svg, "[data-key]"))
          if (part.dataset.key === box.value) {
            part.classList.remove("off", slotOf(part) || "off");
            part.classList.add(now);
          }
      settle();
    });
    settle();
  }

  // Tables: a click on a head sorts by it, numbers as numbers.
  const value = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const number = text === "infinite" ? Infinity : parseFloat(text.replaceAll(",", ""));
    return Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) =>
    typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
  for (const head of all(document, "table.sort th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const body = head.closest("table").tBodies[0];
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of all(head.parentElement, "th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].sort((a, b) => compare(value(a, head.cellIndex), value(b, head.cellIndex)));
      body.append(...(up ? rows : rows.reverse()));
    });
  }
  for (const search of all(document, "input[data-table]"))
    search.addEventListener("input", () => {
      for (const row of document.getElementById(search.dataset.table).tBodies[0].rows)
        row.hidden = !row.textContent.toLowerCase().includes(search.value.toLowerCase());
    });

  // Paper: everything is open, whatever was closed on the screen.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all(document, "details:not([open])");
    for (const one of closed) one.open = true;
    for (const row of all(document, "tr[hidden]")) row.hidden = false;
  });
  addEventListener("afterprint", () => {
    for (const one of closed) one.open = false;
    for (const search of all(document, "input[data-table]")) search.dispatchEvent(new Event("input"));
  });
})();
