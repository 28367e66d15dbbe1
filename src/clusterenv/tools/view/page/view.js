// Draws what the server tells: `story` first, then `news` with every look at the run.

import { Chart, duration, make, short } from "./charts.js";

const MOST_POINTS = 2400, MOST_DOTS = 1200, MOST_EVENTS = 300, MOST_ROWS = 24;
const $ = (selector) => document.querySelector(selector);
const model = { points: [], dots: [], events: [], news: null, showsAll: false };

function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value != null) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

const digits = (value) => value == null ? "–"
  : value !== 0 && Math.abs(value) < 9.5e-4 ? value.toExponential(1) : String(+value.toPrecision(2));
const bytes = (value) => `${short(value)}B`;
const line = (name, style = "line", area = false) => ({ read: (point) => point[name], style, area });
const charts = {
  steps: new Chart($("#chart-steps"), [line("steps_per_s", "line", true)], { fromZero: true }),
  reward: new Chart($("#chart-reward"), [line("mean_reward")]),
  length: new Chart($("#chart-length"), [line("mean_length")], { fromZero: true }),
  divergence: new Chart($("#chart-divergence"),
    [line("threshold", "limit"), line("median_divergence", "line second"), line("divergence")], { fromZero: true }),
  lag: new Chart($("#chart-lag"), [line("lag", "line", true)], { fromZero: true }),
  bytes: new Chart($("#chart-bytes"), [line("bytes_per_s", "line", true)], { fromZero: true, format: bytes }),
};
$("#chart-divergence figcaption").prepend(el("span", { class: "legend" },
  el("span", {}, el("i"), "highest"), el("span", {}, el("i", { class: "second" }), "median"),
  el("span", {}, el("i", { class: "limit" }), "threshold")));

function drawCharts() {
  for (const [name, chart] of Object.entries(charts)) {
    chart.show(model.points, name === "reward" ? model.dots : []);
    // Local runs have no socket, and not every rule measures a divergence: nothing to look at then.
    const isFlat = name === "bytes" && model.points.every((point) => point.bytes_per_s === 0);
    chart.figure.hidden = name !== "steps" && (!chart.hasData || isFlat);
  }
}

function drawFigures({ status, point }) {
  const workers = status.hosts.flatMap((host) => host.workers);
  const ready = workers.filter((worker) => worker.state === "ready").length;
  const reward = point.mean_reward;
  const figures = [
    [short(point.steps_per_s), "steps per second"],
    [reward == null ? "–" : String(+reward.toPrecision(4)), "mean return"],
    [short(status.episodes), status.episodes === 1 ? "episode" : "episodes"],
    [String(status.version), "newest version"],
    [ready === workers.length ? String(ready) : `${ready} of ${workers.length}`, workers.length === 1 ? "worker ready" : "workers ready"],
    [String(status.hosts.reduce((sum, host) => sum + host.losses, 0)), "lost so far"],
  ];
  $("#figures").replaceChildren(...figures.map(([value, name]) => el("div", {}, el("b", {}, value), el("span", {}, name))));
}

const slotsOf = ({ first_slot: first, slots }) =>
  slots === 0 ? "–" : slots === 1 ? String(first) : `${first}–${first + slots - 1}`;

function hostRow(host, rate, version) {
  const over = host.threshold != null && host.divergence > host.threshold;
  const share = host.threshold ? Math.min(1, (host.divergence ?? 0) / host.threshold) : 0;
  const bar = el("i");
  bar.style.width = `${100 * share}%`;
  const divergence = [digits(host.divergence)];
  if (host.threshold != null) {
    divergence.push(el("span", { class: `meter${over ? " over" : ""}`, title: `threshold ${digits(host.threshold)}` }, bar));
  }
  const lag = host.held == null ? "–" : version - host.held;
  return el("tr", { class: "host" },
    el("td", { class: "text" }, el("span", { class: `dot ${host.state}`, title: host.state }), host.name),
    el("td", { class: "text" }, host.machine || "not here yet"),
    el("td", {}, slotsOf(host)), el("td", {}, short(rate ?? 0)),
    el("td", {}, host.held == null ? "–" : String(host.held)), el("td", {}, String(lag)),
    el("td", {}, ...divergence), el("td", {}, String(host.pulls)), el("td", {}, String(host.restarts)),
    el("td", { class: host.losses ? "bad" : null }, String(host.losses)), el("td", {}));
}

function workerRow(host, worker) {
  const log = el("button", { onclick: () => showLog(host.name, worker.name), "aria-label": `Log of ${worker.name} of ${host.name}` }, "log");
  const play = el("button", { onclick: () => showPlayer(worker), "aria-label": `Watch ${worker.name} of ${host.name}` }, "watch");
  return el("tr", { class: "worker" },
    el("td", { class: "text" }, el("span", { class: `dot ${worker.state}`, title: worker.state }), el("span", { class: "name" }, worker.name)),
    el("td", { class: "text" }, worker.pid ? `pid ${worker.pid}` : worker.state),
    el("td", {}, slotsOf(worker)), ...[0, 1, 2, 3, 4].map(() => el("td")),
    el("td", {}, String(worker.restarts)), el("td"),
    el("td", {}, worker.slots ? play : null, worker.pid ? log : null));
}

const COLUMNS = ["host", "machine", "slots", "steps/s", "version", "lag", "divergence", "pulls", "restarts", "losses", ""];
$("#hosts thead").append(el("tr", {}, ...COLUMNS.map((name, i) => el("th", { class: i < 2 ? "text" : null, scope: "col" }, name))));

function drawHosts({ status, rates }) {
  // Of very many, those that need a look: not ready, slow, or replaced, as in `top`.
  const isReady = (one) => one.state === "ready";
  const most = model.showsAll ? Infinity : MOST_ROWS;
  const hosts = status.hosts.length <= most ? status.hosts
    : [...status.hosts].sort((a, b) => isReady(a) - isReady(b) || rates[a.name] - rates[b.name]).slice(0, most);
  let room = Math.max(0, most - hosts.length), hidden = 0;
  const rows = [];
  for (const host of hosts) {
    rows.push(hostRow(host, rates[host.name], status.version));
    const workers = [...host.workers].sort((a, b) => isReady(a) - isReady(b) || b.restarts - a.restarts).slice(0, room);
    rows.push(...host.workers.filter((worker) => workers.includes(worker)).map((worker) => workerRow(host, worker)));
    room -= workers.length;
    hidden += host.workers.length - workers.length;
  }
  const more = [[status.hosts.length - hosts.length, "hosts, ready and faster"], [hidden, "workers"]].filter(([n]) => n > 0);
  if (more.length) rows.push(el("tr", { class: "more" }, el("td", { colspan: COLUMNS.length },
    `… and ${more.map(([n, what]) => `${n} more ${what}`).join(", ")}`, el("button", { onclick: showAll }, "show all"))));
  // A row that is replaced while somebody presses its button would not hear of it.
  const body = $("#hosts tbody");
  if (body.matches(":active")) return;
  const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  body.replaceChildren(...rows);
  [...body.querySelectorAll("button")].find((one) => focused && one.getAttribute("aria-label") === focused)?.focus({ preventScroll: true });
}

function showAll() {
  model.showsAll = true;
  setTimeout(() => drawHosts(model.news));
}

function bars(list, rows, format, styles = {}) {
  const most = Math.max(...rows.map(([, value]) => value), 1);
  list.className = "bars";
  list.replaceChildren(...rows.flatMap(([name, value]) => {
    const bar = el("i");
    bar.style.width = `${100 * Math.max(0, value) / most}%`;
    return [el("dt", {}, name), el("dd", { class: `bar ${styles[name] ?? ""}` }, bar), el("dd", {}, format(value))];
  }));
}

function drawSync({ status }) {
  const sorted = (counts) => Object.entries(counts).sort((a, b) => b[1] - a[1]);
  const causes = sorted(status.pulls_by_cause), kinds = sorted(status.bytes_by_kind).slice(0, 5);
  bars($("#causes dl"), causes, short);
  bars($("#kinds dl"), kinds, bytes);
  const saved = [["by socket", status.sync_bytes], ["avoided", status.bytes_avoided], ["by shared memory", status.shared_bytes]];
  bars($("#saved dl"), saved.filter(([, value]) => value !== 0), bytes, { avoided: "good" });
  $("#causes").hidden = !causes.length;
  $("#kinds").hidden = !kinds.length;
  $("#saved").hidden = saved.every(([, value]) => value === 0);
  $("#rule").textContent = status.sync;
}

function drawEvents({ status }) {
  const happened = model.events.filter((event) => event.kind !== "warning");
  const strip = $("#timeline .strip"), width = strip.clientWidth || 600, end = Math.max(1, status.uptime_s);
  const x = (t) => 3 + (width - 6) * Math.min(1, t / end);
  strip.replaceChildren(
    make("line", { class: "rail", x1: 3, x2: width - 3, y1: 10, y2: 10 }),
    ...happened.map((event) => make("line", { class: event.kind, x1: x(event.time_s), x2: x(event.time_s), y1: 2, y2: 18 })),
    make("text", { x: 0, y: 33 }, "0:00:00"), make("text", { x: width, y: 33, "text-anchor": "end" }, duration(end)));
  list($("#timeline ol"), happened, "Nothing was lost.", (event) => [el("span", { class: `kind ${event.kind}` }, event.kind), event.text]);
  list($("#warnings ol"), model.events.filter((event) => event.kind === "warning"), "No warnings.", warning);
}

function warning({ text }) {
  const [first, ...rest] = text.split("\n");
  return rest.length ? [el("details", {}, el("summary", {}, first), el("pre", {}, rest.join("\n")))] : [first];
}

function list(node, events, none, content) {
  if (node.dataset.count === String(events.length) && node.childElementCount) return;
  node.dataset.count = events.length;
  const rows = events.toReversed().map((event) =>
    el("li", {}, el("time", {}, duration(event.time_s)), el("span", { class: "what" }, ...content(event))));
  node.replaceChildren(...(rows.length ? rows : [el("p", { class: "none" }, none)]));
}

function draw() {
  const { status } = model.news;
  $("#env").textContent = status.env || "ClusterEnv";
  $("#run").textContent = status.run;
  $("#machine").textContent = status.machine;
  $("#pid").textContent = status.pid;
  const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
  $("#size").textContent = ` · ${counted(status.hosts.length, "host")} · ${counted(status.num_envs, "env")}`;
  document.title = `${short(model.news.point.steps_per_s)} steps/s · ${status.env || status.run}`;
  for (const part of [drawFigures, drawHosts, drawSync, drawEvents]) part(model.news);
  drawCharts();
}

function setState(kind, text) {
  $("#state").className = `pill ${kind}`;
  $("#state").textContent = text;
}

function take(news) {
  model.news = news;
  model.points.push(news.point);
  model.dots.push(...news.episodes.map((one) => [one.time_s, one.total_reward]));
  model.events.push(...news.events);
  if (model.dots.length > MOST_DOTS) model.dots = model.dots.filter((_, i) => i % 2 === 0);
  model.events = model.events.slice(-MOST_EVENTS);
  if (model.points.length > MOST_POINTS) model.points = model.points.filter((_, i) => i % 2 === 0);
  setState("live", `live  ${duration(news.status.uptime_s)}`);
  draw();
}

const source = new EventSource("events");
source.addEventListener("story", (event) => {
  const story = JSON.parse(event.data);
  Object.assign(model, { points: story.points.slice(0, -1), events: [], dots: [] });
  take({ ...story.latest, events: story.events });
  if (story.has_ended) finish();
});
source.addEventListener("news", (event) => take(JSON.parse(event.data)));
source.addEventListener("ended", finish);
source.addEventListener("silent", () => setState("away", "the head does not answer"));
source.addEventListener("error", () => { if (model.news) setState("away", "`clusterenv view` does not answer"); });

function finish() {
  setState("ended", `ended after ${duration(model.news.status.uptime_s)}`);
  source.close();
}

async function showLog(host, worker) {
  const dialog = $("#log"), text = dialog.querySelector("pre");
  $("#log-title").textContent = `${worker} of ${host}`;
  text.textContent = "";
  if (!dialog.open) dialog.showModal();
  const answer = await (await fetch(`logs/${host}/${worker}`)).json();
  text.textContent = answer.reason || answer.lines.join("\n") || "It has printed nothing.";
  text.scrollTop = text.scrollHeight;
}

function showPlayer(worker) {
  const dialog = $("#player"), picture = dialog.querySelector("img"), note = dialog.querySelector(".screen p");
  const caption = dialog.querySelector(".caption");
  $("#player-title").textContent = `Slot ${worker.first_slot}, played with the newest policy`;
  picture.hidden = true;
  note.hidden = false;
  note.textContent = "The env is being built …";
  caption.textContent = "";
  dialog.showModal();
  const pictures = new EventSource(`play/${worker.first_slot}`);
  pictures.onmessage = (event) => {
    const shown = JSON.parse(event.data);
    note.hidden = !shown.error;
    if (shown.error) {
      note.textContent = shown.error;
      caption.textContent = "There is nothing to watch.";
      picture.hidden = true;
      return;
    }
    picture.hidden = false;
    picture.src = `data:image/jpeg;base64,${shown.jpeg}`;
    caption.textContent = `version ${shown.version} · step ${shown.step} · return ${+shown.total_reward.toPrecision(4)}${shown.over ? " · episode over" : ""}`;
  };
  pictures.addEventListener("over", () => {
    pictures.close();
    if (picture.hidden && !caption.textContent) caption.textContent = "It has ended: what it said is where `clusterenv view` runs.";
  });
  dialog.addEventListener("close", () => { pictures.close(); picture.removeAttribute("src"); }, { once: true });
}

addEventListener("resize", () => { if (model.news) drawEvents(model.news); });
