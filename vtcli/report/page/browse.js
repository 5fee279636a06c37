// The list of trajectories: search, filters, keys, links to one of them. Report and `vtcli view` share it.
// Cards stand in the page, or come from pages/ beside it when one is opened; `vtcli view` tells new ones through feed.
// Texts of a model reach the page as text, or as HTML that the templates escaped.
document.documentElement.classList.add("js");
const WINDOW = 100; // cards in the document at a time, and how many more at its ends
const cards = document.querySelector("#cards"), form = document.querySelector("#filters");
const count = document.querySelector(".filters output"), before = document.querySelector("#more-before");
const fresh = document.querySelector("#fresh");
const entries = [], byId = new Map(), waiting = new Map();
const number = new Intl.NumberFormat("en").format;
let pageSize = 1, shown = [], first = 0, end = 0, texts = null, run = 0, version = 0, unseen = 0;
let linked = location.hash !== ""; // to a trajectory that is not there yet
let settled = false; // the feed told everything and is not asked again

function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}
function badge(text, kind = "") { return make("span", { className: `badge ${kind}`, textContent: text }); }

// Entries and their cards.
function summary(entry) {
  const calls = `${entry.calls} call${entry.calls === 1 ? "" : "s"}`;
  const reward = entry.reward === null ? "no verdict" : entry.reward.toFixed(3);
  const parts = [badge(entry.outcome, entry.outcome), badge(entry.task), badge(`${entry.form} question`)];
  for (const other of entry.others ?? []) if (other) parts.push(badge(`${other.model}: ${other.outcome}`, other.outcome));
  parts.push(make("span", { className: "q", textContent: entry.question }));
  return make("summary", {}, ...parts, make("span", { className: "soft", textContent: `${calls} · ${entry.stop} · reward ${reward}` }));
}
function card(entry) {
  entry.card ??= make("details", { className: "card", id: entry.id }, summary(entry));
  if (!entry.card.entry) {
    entry.card.entry = entry;
    entry.card.addEventListener("toggle", () => entry.card.open && fill(entry));
  }
  return entry.card;
}
function fill(entry) {
  if (entry.card.children.length > 1) return;
  const page = Math.floor(entry.at / pageSize), told = make("div", { className: "inside note", textContent: "Loading…" });
  entry.card.append(told);
  load(`pages/${page}.js?${version}`).catch(() => {
    told.textContent = "This trajectory could not be loaded: it lies in the folder pages/ beside this page, or the server has ended.";
    if (settled) poll(); // the file may have been written anew
  });
}
function load(address) {
  if (!waiting.has(address)) {
    waiting.set(address, new Promise((done, fail) => {
      const script = make("script", { src: address, onload: done, onerror: fail });
      document.head.append(script);
    }).catch((error) => { waiting.delete(address); throw error; }));
  }
  return waiting.get(address);
}
function add(found) {
  for (const entry of found) {
    entry.at = entries.length;
    entries.push(entry);
    byId.set(entry.id, entry);
  }
}
globalThis.vtcli = {
  list(size, found) { pageSize = size; add(found); begin(); },
  texts(found) { texts = found; },
  cards(at, bodies) { // of a page: HTML from the template, where nothing of a model is markup
    if (!waiting.has(document.currentScript.getAttribute("src"))) return; // of a list that began anew since
    bodies.forEach((html, i) => {
      if (!entries[at + i]) return;
      const node = card(entries[at + i]); // also of one that is not listed now: a page is loaded once
      while (node.children.length > 1) node.lastChild.remove();
      node.append(make("template", { innerHTML: html }).content);
    });
    document.activeElement?.closest("details.card")?.scrollIntoView({ block: "start" }); // what is above it grew
  },
};

// Search, filters and order.
function choices() {
  const found = { outcome: new Set(), task: new Set(), question: new Set(), operation: new Set(), part: new Set() };
  for (const entry of entries) {
    found.outcome.add(entry.outcome);
    found.task.add(entry.task);
    found.question.add(entry.form);
    entry.operations.forEach((name) => found.operation.add(name));
    Object.keys(entry.parts).forEach((name) => found.part.add(name));
    if (entry.reward !== null) found.part.add("total");
  }
  if (entries.some((entry) => !entry.operations.length)) found.operation.add("none");
  for (const [name, values] of Object.entries(found)) {
    const select = form.elements[name], known = new Set([...select.options].map((option) => option.value));
    for (const value of [...values].sort()) {
      if (!known.has(value)) select.append(make("option", { value, textContent: value.replaceAll("_", " ") }));
    }
  }
}
function words(entry) {
  if (entry.words === undefined) {
    const own = entry.text ?? (texts ? texts[entry.at] : entry.card?.textContent) ?? "";
    entry.words = [entry.id, entry.question, entry.answer, entry.truth, entry.task, own].join("\n").toLowerCase();
  }
  return entry.words;
}
function bound(name, otherwise) {
  const text = form.elements[name].value.trim();
  return text === "" || Number.isNaN(Number(text)) ? otherwise : Number(text);
}
function matches() {
  const value = (name) => form.elements[name].value;
  const wanted = value("text").toLowerCase().split(/\s+/).filter(Boolean);
  const compared = form.elements.models?.value;
  const [part, low, high] = [value("part"), bound("low", -Infinity), bound("high", Infinity)];
  return (entry) => {
    if (value("outcome") && entry.outcome !== value("outcome")) return false;
    if (value("task") && entry.task !== value("task")) return false;
    if (value("question") && entry.form !== value("question")) return false;
    if (compared && !compares(entry, compared)) return false;
    const operation = value("operation");
    if (operation === "none" ? entry.operations.length : operation && !entry.operations.includes(operation)) return false;
    if (part) {
      const reward = (part === "total" ? entry.reward : entry.parts[part]) ?? NaN;
      if (!(reward >= low && reward <= high)) return false;
    }
    return wanted.every((word) => words(entry).includes(word));
  };
}
function compares(entry, wanted) { // several models on one question
  const outcomes = [entry, ...entry.others].map((one) => one?.outcome);
  if (wanted === "differ") return new Set(outcomes.filter(Boolean)).size > 1;
  return outcomes.every((outcome, at) => outcome && (outcome === "right") === (at === Number(wanted)));
}
const least = (entry) => entry.reward ?? Infinity, most = (entry) => -(entry.reward ?? -Infinity);
const ORDERS = {
  newest: (a, b) => b.at - a.at,
  least: (a, b) => least(a) - least(b) || a.at - b.at,
  most: (a, b) => most(a) - most(b) || a.at - b.at,
  calls: (a, b) => b.calls - a.calls || a.at - b.at,
};
function apply(from = 0) {
  shown = entries.filter(matches());
  const order = ORDERS[form.elements.order.value];
  if (order) shown.sort(order);
  unseen = 0;
  draw(from, from + WINDOW);
}
async function asked() {
  if (form.elements.text.value && cards.dataset.texts && texts === null) {
    count.textContent = "loading the texts…";
    await load(cards.dataset.texts).catch(() => (texts = [])); // then only the list is searched
    entries.forEach((entry) => delete entry.words);
  }
  apply();
}
function draw(from, to) {
  first = Math.max(0, from);
  end = Math.min(shown.length, to);
  cards.replaceChildren(...shown.slice(first, end).map(card));
  told();
}
function told() {
  before.hidden = first === 0;
  fresh.hidden = !unseen;
  fresh.textContent = `Show ${number(unseen)} new`;
  count.textContent = `${number(shown.length)} of ${number(entries.length)} shown`;
}
function further() {
  if (end >= shown.length) return;
  const next = shown.slice(end, end + WINDOW);
  end += next.length;
  cards.append(...next.map(card));
}

// Keys and links.
function go(at) {
  while (at >= end && end < shown.length) further();
  const entry = shown[Math.max(first, Math.min(shown.length - 1, at))];
  if (!entry) return;
  entry.card.open = true;
  entry.card.querySelector("summary").focus();
  entry.card.scrollIntoView({ block: "start" });
  linked = false;
  history.replaceState(null, "", `#${encodeURIComponent(entry.id)}`);
}
function current() {
  const entry = document.activeElement?.closest("details.card")?.entry;
  return entry ? shown.indexOf(entry) : first - 1;
}
function follow() {
  let id = location.hash.slice(1);
  try { id = decodeURIComponent(id); } catch { /* as it is */ }
  const entry = byId.get(id);
  if (!entry) return;
  linked = false;
  if (!shown.includes(entry)) { form.reset(); apply(); }
  const at = shown.indexOf(entry);
  if (at >= end || at < first) draw(at, at + WINDOW);
  entry.card.open = true;
  entry.card.scrollIntoView();
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") { event.target.blur(); go(Math.max(first, current())); }
    return;
  }
  if (event.key === "/") { event.preventDefault(); form.elements.text.focus(); }
  if (event.key === "j") go(current() + 1);
  if (event.key === "k") go(current() - 1);
});
let later;
form.addEventListener("input", () => { clearTimeout(later); later = setTimeout(asked, 150); });
form.addEventListener("submit", (event) => event.preventDefault());
before.addEventListener("click", () => draw(first - WINDOW, end));
fresh.addEventListener("click", () => apply());
document.querySelector("#open").addEventListener("click", () => {
  const listed = shown.slice(first, end).map(card), open = !listed.every((node) => node.open);
  listed.forEach((node) => (node.open = open));
});
addEventListener("hashchange", follow);
new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && further(), { rootMargin: "800px" })
  .observe(cards.insertAdjacentElement("afterend", make("div", { className: "end" })));

// A server's feed.
function arrive(found) {
  add(found);
  choices();
  if (form.elements.order.value === "stored") { // they come last: what is read stays in its place
    shown.push(...found.filter(matches()));
    if (end - first < WINDOW) further();
    told();
  } else if (!cards.querySelector("details[open]") && !cards.contains(document.activeElement)) apply();
  else { unseen += found.length; told(); }
}
async function poll() {
  let wait = 2000;
  settled = false;
  try {
    const reply = await fetch(`feed?run=${run}&after=${entries.length}`), found = await reply.json();
    if (found.problem) throw new Error(found.problem);
    if (found.run !== run || found.from !== entries.length) { // the run began anew from a checkpoint
      [run, version] = [found.run, found.run];
      entries.length = 0;
      byId.clear();
      waiting.clear();
      apply();
    }
    if (found.entries.length) arrive(found.entries);
    if (!found.whole) wait = 0;
    if (found.curves) {
      document.querySelector("#curves").innerHTML = found.curves.join("");
      document.querySelector("#training").hidden = !found.curves.length;
    }
    const state = found.ended ? "The run has ended: `vtcli artifacts ls` lists what it made." : found.live ? `${found.progress ? `${found.progress}. ` : ""}Followed while it runs; the newest rollout came ${found.quiet_s ?? 0} s ago.` : "";
    document.querySelector("#state").textContent = state;
    settled = found.whole && !found.live;
    if (linked) follow();
  } catch (error) {
    document.querySelector("#state").textContent = `The server does not answer: ${error.message}`;
  }
  if (!settled) setTimeout(poll, wait);
}

// Beginning: cards of the page, a list that lies beside it (it calls vtcli.list), or a server's feed.
function begin() { choices(); apply(); follow(); }
const own = [...cards.querySelectorAll("details.card")];
if (cards.dataset.feed !== undefined) {
  begin();
  poll();
} else if (own.length) {
  add(own.map((node) => Object.assign(JSON.parse(node.dataset.entry), { card: node })));
  begin();
}
