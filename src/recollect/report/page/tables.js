// Tables show the rows of the chosen methods, and are sorted by a click on a heading.
function followChoice() {
  const names = new Set(experiment().variants.filter((_, i) => state.chosen.has(i)).map((v) => v.name));
  all("[data-experiment]").forEach((part) => { part.hidden = Number(part.dataset.experiment) !== state.experiment; });
  all(`[data-experiment="${state.experiment}"] [data-variants]`).forEach((part) => {
    part.hidden = !JSON.parse(part.dataset.variants).every((name) => names.has(name));
  });
}

// Each row of a first table has the colour and marker of its method.
function addSwatches() {
  DATA.experiments.forEach((e, i) => {
    const byName = Object.fromEntries(e.variants.map((v) => [v.name, v]));
    all(`.answer[data-experiment="${i}"] tr[data-variants]`).forEach((row) => {
      const variant = byName[JSON.parse(row.dataset.variants)[0]];
      row.cells[0].insertAdjacentHTML("afterbegin", `${dot(variant)} `);
      row.classList.toggle("ours", variant.ours);
    });
  });
}

function sortKey(cell) {
  const text = cell.textContent.trim();
  if (text === "all") return Infinity;
  const value = parseFloat(text.replace("−", "-"));
  return Number.isNaN(value) ? text : value;
}

// Numbers before texts, both ascending.
function compare(a, b) {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;
}

function sortTable(heading) {
  const table = heading.closest("table"), column = heading.cellIndex, body = table.tBodies[0];
  const isNumeric = [...body.rows].some((row) => typeof sortKey(row.cells[column]) === "number");
  const first = isNumeric ? "descending" : "ascending", other = isNumeric ? "ascending" : "descending";
  const direction = heading.getAttribute("aria-sort") === first ? other : first;
  all("th[aria-sort]", table).forEach((th) => th.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  const rows = [...body.rows].map((row) => [sortKey(row.cells[column]), row]);
  const isDash = ([key]) => key === "–";
  rows.sort((a, b) => isDash(a) - isDash(b) || sign * compare(a[0], b[0])).forEach(([, row]) => body.append(row));
}

function makeSortable() {
  all(".sheet thead th").forEach((heading) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sortTable(heading));
    heading.append(button);
  });
}
