for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), table = head.closest("table"), body = table.tBodies[0];
    const column = [...head.parentNode.children].indexOf(head);
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => { const cell = row.cells[column]; return cell.dataset.value ?? cell.textContent.trim(); };
    const missing = value => value === "" || value === "-";
    const order = (a, b) => {
      const x = key(a), y = key(b);
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      const numbers = !isNaN(x) && !isNaN(y);
      const sign = numbers ? x - y : x.localeCompare(y);
      return down === numbers ? -sign : sign;
    };
    body.append(...[...body.rows].sort(order));
  });
}
