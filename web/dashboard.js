/* The dashboard: GET stats once a second while it is seen, and pictures of what came.
 *
 * Counters only grow, so every rate is a difference of two samples over the time between them, and the percentiles of
 * the last minute are those of the difference of two histograms. A server that started anew has a smaller uptime: then
 * the history is dropped. */
import { el } from "./markdown.js";
import { getJson } from "./client.js";
import { blocks, line } from "./charts.js";

const SPAN_S = 120; // of the charts
const WINDOW_S = 60; // of rates of hits and of percentiles
const POLL_MS = 1000;
const MAP_BLOCKS = 16384; // a larger map is asked for every fourth time only
const STATES = ["free", "cached", "parked", "held", "shared"];

let samples = []; // [{ t, s }], t in seconds
let timer = 0, polls = 0, tiles, page;

/* --- numbers --- */

const number = (v, digits = 0) =>
  v === null || !isFinite(v) ? "–" : v.toLocaleString("en", { maximumFractionDigits: digits });
const percent = (v) => (v === null || !isFinite(v) ? "–" : `${(v * 100).toFixed(v < 0.0995 && v > 0 ? 1 : 0)}%`);

export function seconds(v) {
  if (v === null || !isFinite(v)) return "–";
  return v < 1 ? `${(v * 1000).toFixed(v < 0.01 ? 1 : 0)} ms` : `${v.toFixed(1)} s`;
}

/* The value below which a share q of the samples lie: linear inside a bucket; the last bucket has no upper end. */
export function quantile(upper, counts, q) {
  const n = counts.reduce((a, b) => a + b, 0);
  if (!n) return null;
  let below = 0;
  for (let i = 0; i < counts.length; i++) {
    if (counts[i] && below + counts[i] >= q * n) {
      if (i >= upper.length) return upper.at(-1);
      const low = i ? upper[i - 1] : 0;
      return low + (upper[i] - low) * ((q * n - below) / counts[i]);
    }
    below += counts[i];
  }
  return upper.at(-1);
}

function past(span) {
  const now = samples.at(-1).t;
  return samples.find((x) => now - x.t <= span + 0.5);
}

/* Growth of a counter per second, between the last two samples. */
function rate(pick, at = samples.length - 1) {
  if (at < 1) return 0;
  const a = samples[at - 1], b = samples[at];
  return Math.max(0, (pick(b.s) - pick(a.s)) / (b.t - a.t));
}

const series = (value) => samples.map((x, i) => [x.t, value(x.s, i)]);
const rates = (pick) => series((_, i) => rate(pick, i)).slice(1);

/* Percentiles of the last minute, or of all time when nothing came in it. */
function percentiles(name) {
  const now = samples.at(-1).s.hist[name], then = past(WINDOW_S).s.hist[name];
  let counts = now.counts.map((c, i) => c - then.counts[i]);
  const isRecent = counts.some((c) => c > 0);
  if (!isRecent) counts = now.counts;
  return { isRecent, at: [0.5, 0.9, 0.99].map((q) => quantile(now.upper, counts, q)) };
}

/* --- tiles --- */

function tile(title, className = "") {
  const box = el("section", `tile ${className}`, el("h2", "", title));
  box.setAttribute("aria-label", title);
  return box;
}

function chartTile(title) {
  const t = { box: tile(title), big: el("div", "big"), sub: el("div", "sub"), canvas: el("canvas") };
  t.canvas.setAttribute("role", "img");
  t.box.append(t.big, t.sub, t.canvas);
  t.set = (big, unit, sub, points, top) => {
    t.big.replaceChildren(big, " ", el("small", "", unit));
    t.sub.textContent = sub;
    t.canvas.setAttribute("aria-label", `${title}: ${big} ${unit}, over the last two minutes`);
    line(t.canvas, points, top);
  };
  return t;
}

function trioTile(title) {
  const t = { box: tile(title, "trio-tile"), canvas: el("canvas"), history: [] };
  const trio = el("div", "trio");
  const values = ["p50", "p90", "p99"].map((name) => {
    const big = el("div", "big");
    trio.append(el("div", "", big, el("div", "sub", name)));
    return big;
  });
  t.canvas.setAttribute("role", "img");
  t.canvas.setAttribute("aria-label", `${title}, median over the last two minutes`);
  t.box.append(trio, t.canvas);
  t.set = (name) => {
    const p = percentiles(name), now = samples.at(-1).t;
    p.at.forEach((v, i) => (values[i].textContent = seconds(v)));
    t.box.firstChild.textContent = `${title}${p.isRecent || p.at[0] === null ? "" : " (since the start)"}`;
    t.history = t.history.filter(([at]) => now - at < SPAN_S);
    if (p.isRecent) t.history.push([now, p.at[0]]);
    line(t.canvas, t.history, 0.001);
  };
  return t;
}

function build() {
  tiles = {
    running: chartTile("Running"), output: chartTile("Output"), prompt: chartTile("Prompt"),
    kv: chartTile("KV cache in use"), prefix: chartTile("Prefix hits"), busy: chartTile("Engine busy"),
    ttft: trioTile("Time to first token"), itl: trioTile("Between tokens"),
  };
  const map = tile("KV blocks", "wide");
  tiles.map = el("canvas", "map");
  tiles.map.setAttribute("role", "img");
  tiles.legend = el("div", "legend");
  tiles.counts = STATES.map((name, i) => {
    const count = el("span");
    tiles.legend.append(el("span", "", el("i", `s${i}`), `${name} `, count));
    return count;
  });
  map.append(tiles.map, tiles.legend);
  const tenants = tile("Tenants", "wide");
  tiles.tenants = el("tbody");
  const head = el("tr");
  for (const name of ["Tenant", "Share of output", "Running", "Waiting", "Prompt", "Output"])
    head.append(el("th", name === "Tenant" || name.startsWith("Share") ? "" : "to-right", name));
  tenants.append(el("div", "table", el("table", "", el("thead", "", head), tiles.tenants)));
  const about = tile("Since the start", "wide");
  tiles.about = el("div", "legend");
  about.append(tiles.about);
  tiles.problem = el("p", "error");
  tiles.problem.setAttribute("role", "alert");
  const first = ["running", "output", "prompt", "busy", "ttft", "itl", "kv", "prefix"].map((k) => tiles[k].box);
  document.getElementById("dash").replaceChildren(tiles.problem, el("div", "tiles", ...first, map, tenants, about));
}

/* --- drawing --- */

function drawTiles(s) {
  const last = past(WINDOW_S).s;
  tiles.running.set(number(s.running), `of ${s.max_num_seqs}`,
    `${s.waiting} waiting${s.swapped ? `, ${s.swapped} swapped` : ""}${s.paused ? `, ${s.paused} paused` : ""}`,
    series((x) => x.running), Math.min(4, s.max_num_seqs));
  tiles.output.set(number(rate((x) => x.tokens.output), 1), "tokens/s", `${number(s.tokens.output)} in all`,
    rates((x) => x.tokens.output), 10);
  tiles.prompt.set(number(rate((x) => x.tokens.prompt), 1), "tokens/s",
    `${number(s.tokens.prompt_cached)} of ${number(s.tokens.prompt)} cached`, rates((x) => x.tokens.prompt), 10);
  const used = (x) => (x.kv.blocks ? (x.kv.held + x.kv.parked) / x.kv.blocks : 0);
  tiles.kv.set(percent(used(s)), `of ${number(s.kv.blocks)} blocks`, `${s.kv.block_tokens} tokens a block`,
    series(used), 1);
  const asked = s.prefix.tokens_asked - last.prefix.tokens_asked;
  const found = s.prefix.tokens_found - last.prefix.tokens_found;
  const hit = asked > 0 ? found / asked : s.prefix.tokens_asked ? s.prefix.tokens_found / s.prefix.tokens_asked : null;
  tiles.prefix.set(percent(hit), asked > 0 ? "last minute" : "of all tokens",
    `exact ${number(s.prefix.exact)} · part ${number(s.prefix.prefix)} · none ${number(s.prefix.miss)}`,
    rates((x) => x.prefix.tokens_found), 10);
  const share = (i) => Math.min(1, rate((x) => x.busy_ns, i) / 1e9);
  tiles.busy.set(percent(share()), "", `${number(rate((x) => x.steps), 0)} steps/s`,
    series((_, i) => share(i)).slice(1), 1);
  tiles.ttft.set("ttft");
  tiles.itl.set("itl");
}

function drawMap(s) {
  const counts = [s.kv.free, s.kv.cached, s.kv.parked, s.kv.held - s.kv.shared, s.kv.shared];
  counts.forEach((c, i) => (tiles.counts[i].textContent = number(c)));
  tiles.map.setAttribute("aria-label", STATES.map((name, i) => `${counts[i]} blocks ${name}`).join(", "));
  if (!s.kv_map) return;
  const colours = [...tiles.legend.querySelectorAll("i")].map((i) => getComputedStyle(i).backgroundColor);
  blocks(tiles.map, Uint8Array.from(atob(s.kv_map), (c) => c.charCodeAt(0)), colours);
}

function drawTenants(s) {
  const all = s.tenants.reduce((n, t) => n + t.output_tokens, 0);
  tiles.tenants.replaceChildren(...s.tenants.map((t) => {
    const share = el("meter");
    share.max = 1;
    share.value = all ? t.output_tokens / all : 0;
    share.setAttribute("aria-label", `${t.name}: ${percent(share.value)} of the output`);
    const cells = [el("td", "", t.name), el("td", "share", share, ` ${percent(all ? share.value : null)}`)];
    for (const v of [t.running, t.waiting, t.prompt_tokens, t.output_tokens])
      cells.push(el("td", "to-right", number(v)));
    return el("tr", "", ...cells);
  }));
}

function drawAbout(s) {
  const up = s.uptime_s;
  const time = up < 7200 ? `${Math.floor(up / 60)} min ${Math.floor(up % 60)} s` : `${number(up / 3600, 1)} h`;
  const facts = [`up ${time}`, `${number(s.requests)} requests`];
  for (const [why, n] of Object.entries(s.ended)) if (n) facts.push(`${number(n)} ended by ${why}`);
  if (s.spec && s.spec.tokens) {
    const places = s.spec.tried_pos.map((n, i) => (n ? percent(s.spec.per_pos[i] / n) : null)).filter((x) => x);
    facts.push(`${percent(s.spec.accepted / s.spec.tokens)} of ${number(s.spec.tokens)} guesses held (by place: ` +
      `${places.join(", ")})`);
  }
  facts.push(`${s.preempted.swap + s.preempted.recompute} preemptions`, `${number(s.steps)} steps`,
    `context ${number(s.context)}`, s.device, `quern ${s.version}`);
  tiles.about.replaceChildren(...facts.map((f) => el("span", "", f)));
}

/* --- the poll --- */

async function poll() {
  timer = 0;
  if (!isSeen()) return;
  const began = performance.now();
  const wantsMap = !samples.length || samples.at(-1).s.kv.blocks <= MAP_BLOCKS || polls % 4 === 0;
  polls++;
  try {
    const s = await getJson(wantsMap ? "stats?map=1" : "stats");
    const t = performance.now() / 1000;
    if (!s.kv) throw new Error(`The server is starting: ${s.phase}, ${s.percent}%`);
    if (samples.length && s.uptime_s < samples.at(-1).s.uptime_s) samples = [];
    samples.push({ t, s });
    samples = samples.filter((x) => t - x.t < SPAN_S);
    page.onStats(s);
    tiles.problem.textContent = "";
    drawTiles(s);
    drawMap(s);
    delete s.kv_map; // large, and of this moment only
    drawTenants(s);
    drawAbout(s);
  } catch (error) {
    if (error.status === 401) page.onKey(() => {});
    tiles.problem.textContent = error instanceof TypeError ? "The server cannot be reached." : error.message;
    if (error instanceof TypeError) page.onStats(null);
  }
  schedule(Math.max(0, POLL_MS - (performance.now() - began)));
}

const isSeen = () => !document.hidden && !document.getElementById("dash").hidden;

function schedule(after) {
  clearTimeout(timer);
  timer = isSeen() ? setTimeout(poll, after) : 0;
}

/* The view was shown or hidden, or the tab was. */
export function wake() {
  if (!tiles) build();
  schedule(0);
}

export function start(lent) {
  page = lent;
  document.addEventListener("visibilitychange", () => tiles && schedule(0));
}
