"use strict";
// Headings sort their column: numbers by value, all else by text; cells without a figure stay last.
function sortBy(heading) {
  const table = heading.closest("table");
  const place = heading.cellIndex;
  const down = heading.getAttribute("aria-sort") === "ascending";
  const factor = down ? -1 : 1;
  const keyOf = (row) => {
    const text = row.cells[place].dataset.value;
    if (text === undefined) return null;
    return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  const rows = Array.from(table.tBodies[0].rows, (row) => [keyOf(row), row]);
  rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : factor * compare(a, b)));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  for (const [, row] of rows) {
    row.classList.remove("group");
    table.tBodies[0].append(row);
  }
}
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}
// Paper cannot be unfolded; dozens of runs would be dozens of pages.
addEventListener("beforeprint", () => {
  const runs = document.querySelectorAll("details");
  if (runs.length <= 6) runs.forEach((each) => { each.open = true; });
});
