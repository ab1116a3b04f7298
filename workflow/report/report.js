// Tables that sort and filter, keys of rows and values of marks as tooltips. No network, no library.
const words = document.body.dataset;

document.querySelectorAll("table.sortable").forEach(table => {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0], rows = [...body.rows];
  if (rows.length < 3) return;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const down = head.ariaSort === "ascending";
      heads.forEach(other => other.ariaSort = null);
      head.ariaSort = down ? "descending" : "ascending";
      const key = row => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const order = (a, b) => isNaN(key(a)) || isNaN(key(b))
        ? key(a).localeCompare(key(b), "en", {numeric: true}) : key(a) - key(b);
      body.append(...[...body.rows].sort((a, b) => down ? order(b, a) : order(a, b)));
    };
  });
  if (rows.length < 12) return;
  const label = document.createElement("label"), input = document.createElement("input");
  const count = document.createElement("span");
  label.className = "filter";
  input.type = "search";
  count.setAttribute("role", "status");
  label.append(words.filter, input, count);
  table.parentElement.before(label);
  input.oninput = () => {
    const wanted = input.value.toLowerCase().split(/\s+/);
    rows.forEach(row => row.hidden = !wanted.every(word => row.textContent.toLowerCase().includes(word)));
    const shown = rows.filter(row => !row.hidden).length;
    count.textContent = input.value
      ? words.shown.replace("{shown}", shown).replace("{all}", rows.length) : "";
  };
});

// Drawings for one column lie in the page as text, since most readers never need them.
const phone = matchMedia("screen and (max-width: 760px)");
function fit() {
  if (!phone.matches) return;
  document.querySelectorAll("script.narrow").forEach(text => {
    const drawing = document.createElement("div");
    drawing.className = "narrow";
    drawing.innerHTML = text.textContent;
    text.replaceWith(drawing);
  });
}
phone.addEventListener("change", fit);
fit();

const tip = document.getElementById("tip");
function show(event) {
  const mark = event.target.closest("[data-tip], [data-row]");
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.dataset.tip ?? mark.dataset.row;
  const box = mark.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const x = event.clientX || box.left, y = event.clientX ? event.clientY : box.bottom;
  tip.style.left = Math.max(8, Math.min(x + 12, innerWidth - size.width - 8)) + "px";
  tip.style.top = (y + 18 + size.height > innerHeight ? y - size.height - 10 : y + 18) + "px";
}
for (const event of ["pointermove", "focusin", "click"]) document.addEventListener(event, show);
addEventListener("keydown", event => { if (event.key === "Escape") tip.hidden = true; });
addEventListener("scroll", () => tip.hidden = true, {passive: true});

function open() {
  for (let part = document.getElementById(location.hash.slice(1)); part; part = part.parentElement)
    if (part.tagName === "DETAILS") part.open = true;
}
addEventListener("hashchange", open);
open();
addEventListener("beforeprint", () => document.querySelectorAll("details.print").forEach(d => d.open = true));
