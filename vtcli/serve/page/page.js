// The page at /: asks /v1/chat/completions as any client does, and draws what the stream tells.
// Text of a model or of a tool goes through textContent only.
const $ = (id) => document.getElementById(id);
const images = []; // {name, url}: data URLs of the question's images
const servers = [{ path: "", model: "" }]; // at /?beside a second one, which a reverse proxy has below /beside
if (new URLSearchParams(location.search).has("beside")) servers.push({ path: "/beside", model: "" });
let running = null;

function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}
function say(text, bad = false) { $("status").textContent = text; $("status").classList.toggle("bad", bad); }
function headers() { return $("key").value ? { Authorization: `Bearer ${$("key").value}` } : {}; }
async function problem(reply) {
  if (reply.status === 401) { $("keyfield").hidden = false; $("key").focus(); }
  const told = await reply.json().catch(() => null);
  return told?.error?.message ?? `the server answered ${reply.status}`;
}

// Images of the question.
function read(file) {
  return new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done({ name: file.name || "image", url: reader.result });
    reader.onerror = () => fail(reader.error);
    reader.readAsDataURL(file);
  });
}
async function add(files) {
  const chosen = [...files].filter((file) => file.type.startsWith("image/"));
  images.push(...(await Promise.all(chosen.map(read))));
  list();
  if (chosen.length) $("question").focus();
}
function list() {
  $("images").replaceChildren(...images.map((image, at) => {
    const remove = make("button", { type: "button", textContent: "Remove", ariaLabel: `Remove image ${at}, ${image.name}` });
    remove.onclick = () => { images.splice(at, 1); list(); };
    return make("li", {}, make("img", { src: image.url, alt: `image ${at}: ${image.name}` }), remove);
  }));
}
$("files").onchange = (event) => { add(event.target.files); event.target.value = ""; };
addEventListener("paste", (event) => event.clipboardData?.files.length && add(event.clipboardData.files));
for (const kind of ["dragover", "dragleave", "drop"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") add(event.dataTransfer.files);
  });
}

// What was asked, and the same for other clients.
function body(asked, model) {
  const parts = asked.images.map((image) => ({ type: "image_url", image_url: { url: image.url } }));
  const messages = [{ role: "user", content: [...parts, { type: "text", text: asked.question }] }];
  return { model, messages, seed: asked.seed, temperature: asked.temperature };
}
function asCurl(asked, { path, model }) {
  const place = `image ${draw()} ${draw()}`; // where an image comes in; no question holds it
  const text = JSON.stringify(body({ ...asked, images: asked.images.map(() => ({ url: `data:image/png;base64,${place}` })) }, model));
  const format = text.replaceAll("\\", "\\\\").replaceAll("%", "%%").replaceAll("'", "'\\''").replaceAll(place, "%s");
  const files = asked.images.map((image) => ` "$(base64 -w0 '${image.name.replaceAll("'", "'\\''")}')"`).join("");
  const key = $("key").value ? ` -H "Authorization: Bearer $VTCLI_API_KEY"` : "";
  return `printf '${format}'${files} |\n  curl -s ${location.origin}${path}/v1/chat/completions -H 'Content-Type: application/json'${key} -d @-\n`;
}
function asPython(asked, { path, model }) {
  const names = asked.images.map((image) => JSON.stringify(image.name)).join(", ");
  return `import base64, os
from pathlib import Path
from openai import OpenAI

client = OpenAI(base_url="${location.origin}${path}/v1", api_key=os.environ.get("VTCLI_API_KEY", "none"))
images = [base64.b64encode(Path(name).read_bytes()).decode() for name in [${names}]]
content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}} for image in images]
content.append({"type": "text", "text": ${JSON.stringify(asked.question)}})
reply = client.chat.completions.create(
    model=${JSON.stringify(model)}, messages=[{"role": "user", "content": content}], seed=${asked.seed}, temperature=${asked.temperature}
)
print(reply.choices[0].message.content)
`;
}
async function copy(text, what) {
  try { await navigator.clipboard.writeText(text); say(`Copied as ${what}.`); }
  catch { say("The browser does not allow copying here.", true); }
}

// One answer, turn by turn as the report's viewer drew it on the server: its texts are escaped, and scripts of such a
// document never run.
async function drawn(server, html) {
  const made = new DOMParser().parseFromString(html, "text/html");
  await Promise.all([...made.querySelectorAll("image[data-href]")].map(async (image) => {
    const reply = await fetch(server.path + image.dataset.href, { headers: headers() });
    if (reply.ok) image.setAttribute("href", URL.createObjectURL(await reply.blob()));
  }));
  for (const link of made.querySelectorAll("a")) link.setAttribute("href", `#${encodeURIComponent(server.path + link.textContent)}`);
  return [...made.body.childNodes].map((node) => document.importNode(node, true));
}
function button(textContent, onclick) { return make("button", { type: "button", textContent, onclick }); }
function column(asked, server) { // of one model
  const badge = make("span", { className: "badge", textContent: "asking" });
  const facts = make("span", { className: "soft", textContent: `seed ${asked.seed}` });
  const inside = make("div", { className: "inside" }), actions = make("div", { className: "actions" });
  actions.append(button("Copy as curl", () => copy(asCurl(asked, server), "curl")));
  actions.append(button("Copy as Python", () => copy(asPython(asked, server), "Python")));
  return { server, badge, facts, inside, actions };
}
function card(asked) {
  const columns = servers.map((server) => column(asked, server)), [own] = columns;
  own.actions.prepend(button("Ask again with another seed", () => ask({ ...asked, seed: draw() })));
  const question = make("span", { className: "q", textContent: asked.question });
  const node = make("details", { className: "card", open: true });
  if (columns.length === 1) node.append(make("summary", {}, own.badge, question, own.facts), own.inside);
  else {
    node.append(make("summary", {}, question), make("div", { className: "beside" }, ...columns.map((one) => {
      const title = make("h4", {}, `${one.server.model} `, one.badge, " ", one.facts);
      return make("section", { ariaLabel: one.server.model }, title, one.inside);
    })));
  }
  $("answers").prepend(node);
  return columns;
}

// The newest trajectories, drawn by the report's viewer on the server when one is opened.
async function look() {
  const lists = await Promise.all(servers.map(async (server) => {
    const reply = await fetch(`${server.path}/v1/trajectories`, { headers: headers() }).catch(() => null);
    return reply?.ok ? (await reply.json()).data.map((found) => ({ ...found, server })) : [];
  }));
  const known = new Map([...$("kept").children].map((node) => [node.id, node]));
  $("kept").replaceChildren(...lists.flat().map((found) => known.get(found.server.path + found.id) ?? kept(found)));
}
function kept(found) {
  const badge = make("span", { className: `badge ${found.answered ? "ok" : "no_output"}`, textContent: found.stop.replaceAll("_", " ") });
  const facts = `${servers.length > 1 ? `${found.server.model} · ` : ""}${found.calls} call${found.calls === 1 ? "" : "s"}`;
  const summary = make("summary", {}, badge, make("span", { className: "q", textContent: found.question }));
  summary.append(make("span", { className: "soft", textContent: facts }));
  const node = make("details", { className: "card", id: found.server.path + found.id }, summary);
  node.ontoggle = () => node.open && node.children.length === 1 && fill(node, found);
  return node;
}
async function fill(node, { server, url }) {
  const told = make("div", { className: "inside note", textContent: "Loading…" });
  node.append(told);
  const reply = await fetch(`${server.path}${url}/card`, { headers: headers() });
  if (!reply.ok) { told.textContent = await problem(reply); return; }
  told.replaceWith(...(await drawn(server, await reply.text())));
}
function follow() {
  let id = location.hash.slice(1);
  try { id = decodeURIComponent(id); } catch { /* as it is */ }
  const node = [...$("kept").children].find((one) => one.id === id);
  if (node) { node.open = true; node.scrollIntoView(); }
}
$("again").onclick = look;
addEventListener("hashchange", follow);
async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const data = block.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
async function show(told, shown) {
  if (told.error) throw new Error(told.error.message);
  if (told.vtcli?.html) shown.inside.append(...(await drawn(shown.server, told.vtcli.html)));
  if (!told.choices[0]?.finish_reason) return;
  const found = (shown.found = told.vtcli.choices[0]);
  shown.badge.textContent = found.stop.replaceAll("_", " ");
  shown.badge.classList.add(found.answered ? "ok" : "no_output");
  shown.facts.textContent = `seed ${told.vtcli.seed} · ${found.turns} turn${found.turns === 1 ? "" : "s"}`;
}

function draw() { return crypto.getRandomValues(new Uint32Array(1))[0]; }
async function answer(asked, shown, signal) { // returns what went wrong
  try {
    const sent = JSON.stringify({ ...body(asked, shown.server.model), stream: true, stream_options: { include_cards: true } });
    const about = { method: "POST", signal, headers: { "Content-Type": "application/json", ...headers() } };
    const reply = await fetch(`${shown.server.path}/v1/chat/completions`, { ...about, body: sent });
    if (!reply.ok) throw new Error(await problem(reply));
    for await (const told of events(reply)) await show(told, shown);
    return null;
  } catch (error) {
    const stopped = signal.aborted;
    shown.badge.textContent = stopped ? "stopped" : "failed";
    shown.badge.classList.add(stopped ? "no_output" : "error");
    if (!stopped) shown.inside.append(make("p", { className: "note", textContent: error.message }));
    return error.message;
  } finally {
    shown.inside.append(shown.actions);
  }
}
function outcome(columns) { // what ended the rollouts
  const open = columns.filter((one) => one.found && !one.found.answered).map((one) => one.found.stop.replaceAll("_", " "));
  if (!open.length) return "Answered.";
  return `${open.length === columns.length ? "No answer" : "One without an answer"}: the rollout ended by ${open.join(" and ")}.`;
}
async function ask(asked) {
  running?.abort();
  const mine = (running = new AbortController());
  $("stop").disabled = false;
  say("The policy is at work.");
  const columns = card(asked), problems = await Promise.all(columns.map((shown) => answer(asked, shown, mine.signal)));
  if (running !== mine) return; // another question was asked meanwhile
  running = null;
  $("stop").disabled = true;
  const failed = problems.find((one) => one !== null);
  await look();
  if (mine.signal.aborted) say("Stopped.");
  else say(failed ?? outcome(columns), failed !== undefined);
}
$("ask").onsubmit = (event) => {
  event.preventDefault();
  const seed = $("seed").value === "" ? draw() : Number($("seed").value);
  ask({ question: $("question").value, images: [...images], seed, temperature: Number($("temperature").value) });
};
$("stop").onclick = () => running?.abort();
$("key").value = sessionStorage.getItem("key") ?? "";
$("key").onchange = () => { sessionStorage.setItem("key", $("key").value); begin(); };
addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
  if (event.ctrlKey || event.metaKey || event.altKey || !["j", "k"].includes(event.key) || event.target.matches("input, textarea")) return;
  const cards = [...document.querySelectorAll("details.card")], at = cards.indexOf(document.activeElement?.closest("details.card"));
  const next = cards[Math.min(cards.length - 1, Math.max(0, at + (event.key === "j" ? 1 : -1)))];
  if (next) { next.open = true; next.querySelector("summary").focus(); next.scrollIntoView({ block: "start" }); }
});

async function begin() {
  for (const server of servers) {
    const reply = await fetch(`${server.path}/v1/models`, { headers: headers() }).catch(() => null);
    if (!reply?.ok) { say(reply ? await problem(reply) : "The server does not answer.", true); return; }
    server.model = (await reply.json()).data[0].id;
  }
  document.title = $("model").textContent = servers.map((server) => server.model).join(" beside ");
  say("");
  await look();
  follow();
}
begin();
