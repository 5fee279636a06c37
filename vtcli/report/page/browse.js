// Filters and keys for the trajectories; the page reads without it.
document.documentElement.classList.add("js");
const cards = [...document.querySelectorAll("details.card")];
const picks = [...document.querySelectorAll(".filters select")];
const count = document.querySelector(".filters output");
function apply() {
  let shown = 0;
  for (const card of cards) {
    card.hidden = !picks.every((p) => !p.value || card.dataset[p.name] === p.value);
    shown += !card.hidden;
  }
  count.textContent = `${shown} of ${cards.length} shown`;
}
picks.forEach((p) => p.addEventListener("change", apply));
document.querySelector("#open")?.addEventListener("click", () => {
  const visible = cards.filter((c) => !c.hidden);
  const open = !visible.every((c) => c.open);
  visible.forEach((c) => (c.open = open));
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !"jk".includes(event.key) || event.target.matches("select, input")) return;
  const visible = cards.filter((c) => !c.hidden);
  const at = visible.indexOf(document.activeElement?.closest("details.card"));
  const next = visible[Math.min(visible.length - 1, Math.max(0, at + (event.key === "j" ? 1 : -1)))];
  if (next) { next.open = true; next.querySelector("summary").focus(); next.scrollIntoView({ block: "start" }); }
});
function follow() {
  const card = document.getElementById(location.hash.slice(1));
  if (card?.matches("details.card")) { card.open = true; card.scrollIntoView(); }
}
addEventListener("hashchange", follow);
if (picks.length) apply();
follow();
