/* The chat view: the list of conversations, the messages of one, and the answers on their way.
 *
 * An answer belongs to its conversation, not to the view: it goes on while another one is looked at. A job holds what
 * is on its way; `jobs` has at most one per conversation. Text is drawn once per frame however fast it comes. */
import { el, render, Stream } from "./markdown.js";
import { chat } from "./client.js";
import * as store from "./store.js";

const $ = (id) => document.getElementById(id);
const IDEAS = ["Explain how a hand mill works", "Write a haiku about flour", "Three uses for an old millstone"];
const SAVE_MS = 1000; // how often a growing answer is written down

const jobs = new Map(); // conversation id -> job
let page; // what app.js lends us
let current; // the conversation that is shown
let atEnd = true; // the reader is at the end, so keep the end in view

/* --- small parts --- */

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

function iconButton(name, label, onClick) {
  const button = el("button", "icon", icon(name));
  button.type = "button";
  button.setAttribute("aria-label", label);
  button.title = label;
  button.addEventListener("click", onClick);
  return button;
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // plain http on another machine's address has no clipboard interface
    const area = el("textarea", "hidden");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  page.toast("Copied");
}

const ms = (v) => (v < 1000 ? `${Math.round(v)} ms` : `${(v / 1000).toFixed(2)} s`);

function statsText(s) {
  if (!s) return "";
  const parts = [`${s.tokens} tokens`];
  if (s.rate) parts.push(`${s.rate.toFixed(1)} tokens/s`);
  if (s.ttft !== undefined) parts.push(`first after ${ms(s.ttft)}`);
  if (s.cached) parts.push(`${s.cached} of ${s.prompt} prompt tokens cached`);
  if (s.finish === "length") parts.push("ended at the limit");
  if (s.finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

/* --- messages --- */

function footOf(message, index, job) {
  const foot = el("div", "foot", el("span", "stats", statsText(message.stats)));
  if (job) return foot;
  const isLast = index === current.messages.length - 1;
  foot.append(iconButton("copy", "Copy", () => copyText(message.content)));
  if (message.role === "user") foot.append(iconButton("edit", "Edit", () => edit(index)));
  else if (isLast) foot.append(iconButton("again", "Regenerate", regenerate));
  return foot;
}

function problemOf(message) {
  const again = el("button", "button quiet", "Try again");
  again.type = "button";
  again.addEventListener("click", regenerate);
  const box = el("div", "problem", el("span", "", message.error), again);
  box.setAttribute("role", "alert");
  return box;
}

/* What a model says before its answer, folded. */
function thoughtOf(message) {
  const text = el("div", "", message.reasoning ?? "");
  const box = el("details", "thought", el("summary", "", "Reasoning"), text);
  box.hidden = !message.reasoning;
  return { box, text };
}

function nodeOf(message, index) {
  const job = jobs.get(current.id);
  const isGrowing = job?.message === message;
  const node = el("article", `msg ${message.role}`);
  node.setAttribute("aria-label", message.role === "user" ? "You" : "Answer");
  const text = el("div", message.role === "user" ? "text" : "md");
  if (message.role === "user") text.textContent = message.content;
  else if (!isGrowing) render(text, message.content);
  const thought = thoughtOf(message);
  node.append(thought.box, text);
  if (message.error && !isGrowing) node.append(problemOf(message));
  const foot = footOf(message, index, isGrowing);
  node.append(foot);
  if (isGrowing) {
    job.view = { text, thought, stream: new Stream(text), stats: foot.firstChild };
    draw(job);
  }
  return node;
}

function show() {
  $("messages").replaceChildren(...current.messages.map(nodeOf));
  $("empty").hidden = current.messages.length > 0;
  showState();
  scroll();
}

/* The end of an answer: the others stay as they are, and so does the focus in them. */
function showLast() {
  $("messages").lastChild.replaceWith(nodeOf(current.messages.at(-1), current.messages.length - 1));
  showState();
  scroll();
}

function showState() {
  const isBusy = jobs.has(current.id);
  const send = $("send");
  send.setAttribute("aria-label", isBusy ? "Stop" : "Send");
  send.firstElementChild.firstElementChild.setAttribute("href", isBusy ? "#i-stop" : "#i-send");
  send.disabled = !isBusy && !$("input").value.trim();
  document.title = current.title ? `${current.title} · quern` : "quern";
}

function scroll(force) {
  if (force) atEnd = true;
  if (atEnd) $("log").scrollTop = $("log").scrollHeight;
}

/* --- answers --- */

function draw(job) {
  job.frame = 0;
  if (!job.view) return;
  const { reasoning } = job.message;
  if (reasoning) {
    job.view.thought.text.textContent = reasoning;
    job.view.thought.box.hidden = false;
  }
  job.view.stream.set(job.message.content);
  job.view.text.classList.toggle("waiting", !job.message.content);
  job.view.stats.textContent = job.first ? statsText(live(job)) : "";
  scroll();
}

/* Until the server's own count comes with the last event, a piece of text counts as a token. */
function live(job, usage) {
  const tokens = usage?.completion_tokens ?? job.pieces;
  const seconds = (job.last - job.first) / 1000;
  const s = { tokens, ttft: job.first - job.started };
  if (tokens > 1 && seconds > 0) s.rate = (tokens - 1) / seconds;
  if (usage) {
    s.prompt = usage.prompt_tokens;
    s.cached = usage.prompt_tokens_details?.cached_tokens || 0;
  }
  return s;
}

function requestOf(conversation) {
  const { system, ...params } = conversation.params;
  const messages = conversation.messages.filter((m) => m.content).map(({ role, content }) => ({ role, content }));
  if (system) messages.unshift({ role: "system", content: system });
  return { model: page.model(), messages, ...params };
}

function keep(conversation) {
  if (!store.get(conversation.id)) return; // deleted while its answer was on the way
  if (!store.save(conversation)) page.toast("This browser's storage is full: the conversation is not kept.");
}

async function answer(conversation) {
  const request = requestOf(conversation);
  const message = { role: "assistant", content: "" };
  const job = { message, controller: new AbortController(), started: performance.now(), pieces: 0 };
  conversation.messages.push(message);
  jobs.set(conversation.id, job);
  if (conversation === current) show();
  let saved = job.started, finish, usage;
  const onText = (text, reasoning) => {
    job.last = performance.now();
    job.first ??= job.last;
    job.pieces++;
    message.content += text;
    if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
    if (job.last - saved > SAVE_MS) {
      saved = job.last;
      store.save(conversation);
    }
    job.frame ||= requestAnimationFrame(() => draw(job));
  };
  try {
    ({ finish, usage } = await chat(request, job.controller.signal, onText));
  } catch (error) {
    if (job.controller.signal.aborted) finish = "stopped";
    else if (error.status === 401) page.onKey(() => retry(conversation));
    else if (error instanceof TypeError || error.status === 404) page.reconnect(); // away, or with another model
    if (finish !== "stopped") message.error = sentence(error);
  }
  cancelAnimationFrame(job.frame);
  jobs.delete(conversation.id);
  if (job.first) message.stats = { ...live(job, usage), finish };
  else if (finish === "stopped") message.stats = { tokens: 0, finish };
  keep(conversation);
  page.announce(message.error || `Answer ${finish === "stopped" ? "stopped" : "finished"}.`);
  showList();
  if (conversation === current) showLast();
}

function sentence(error) {
  if (error.status === 429 || error.status === 503)
    return `${error.message}${error.retryAfter ? ` (try again in ${error.retryAfter} s)` : ""}`;
  return error instanceof TypeError ? "The server cannot be reached." : error.message;
}

function retry(conversation) {
  if (jobs.has(conversation.id)) return;
  while (conversation.messages.at(-1)?.role === "assistant") conversation.messages.pop();
  if (conversation.messages.length) answer(conversation);
}

export function regenerate() {
  atEnd = true;
  retry(current);
}

/* True when there was something to stop. */
export function stop() {
  const job = jobs.get(current.id);
  job?.controller.abort();
  return !!job;
}

function send(text) {
  if (!text.trim() || jobs.has(current.id)) return;
  current.messages.push({ role: "user", content: text });
  current.title ||= text.trim().replace(/\s+/g, " ").slice(0, 60);
  keep(current);
  store.setting("last", current.id);
  scroll(true);
  answer(current);
  showList();
}

/* A user's message becomes a field; sending it drops what came after. */
function edit(index) {
  if (jobs.has(current.id)) return;
  const node = $("messages").children[index];
  const area = el("textarea");
  area.value = current.messages[index].content;
  area.rows = Math.min(12, area.value.split("\n").length + 1);
  area.setAttribute("aria-label", "Edit the message");
  const send2 = () => {
    const text = area.value;
    if (!text.trim()) return;
    current.messages.length = index;
    send(text);
  };
  const cancel = el("button", "button quiet", "Cancel");
  const ok = el("button", "button accent", "Send");
  cancel.addEventListener("click", show);
  ok.addEventListener("click", send2);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      show();
      $("input").focus();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send2();
      $("input").focus();
    }
  });
  node.replaceChildren(el("div", "editor", area, el("div", "row", cancel, ok)));
  area.focus();
}

export function editLast() {
  const index = current.messages.findLastIndex((m) => m.role === "user");
  if (index >= 0) edit(index);
  return index >= 0;
}

/* --- conversations --- */

export function open(conversation) {
  current = conversation;
  atEnd = true;
  if (current.messages.length) store.setting("last", current.id);
  show();
  showList();
  page.onOpen(current);
}

export function openNew() {
  open(current?.messages.length === 0 ? current : store.create(current?.params));
  $("input").focus();
}

function rename(item, conversation) {
  const input = el("input");
  input.value = conversation.title;
  input.setAttribute("aria-label", "Name of the conversation");
  const done = (keepIt) => {
    if (keepIt && input.value.trim()) {
      conversation.title = input.value.trim().slice(0, 120);
      store.save(conversation, false);
    }
    showList();
    showState();
  };
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter") done(true);
    else if (event.key === "Escape") done(false);
  });
  input.addEventListener("blur", () => input.isConnected && done(true));
  item.replaceChildren(input);
  input.select();
}

function remove(conversation) {
  jobs.get(conversation.id)?.controller.abort();
  store.remove(conversation.id);
  if (conversation === current) open(store.list().find((c) => c.messages.length) || store.create(conversation.params));
  else showList();
  page.toast(`“${conversation.title.slice(0, 30)}” deleted`, "Undo", () => {
    store.save(conversation, false);
    open(conversation);
  });
}

export function showList() {
  const items = store.list().filter((c) => c.messages.length).map((c) => {
    const pick = el("button", "pick", c.title || "Untitled");
    pick.addEventListener("click", () => open(c));
    const item = el("li", c === current ? "current" : "", pick,
      iconButton("edit", "Rename", () => rename(item, c)), iconButton("trash", "Delete", () => remove(c)));
    if (c === current) pick.setAttribute("aria-current", "true");
    return item;
  });
  $("chats").replaceChildren(...items);
}

/* --- the view --- */

function fit() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
  showState();
}

function onSubmit(event) {
  event.preventDefault();
  if (stop()) return;
  const text = $("input").value;
  $("input").value = "";
  fit();
  send(text);
}

function onInputKey(event) {
  const isTouch = matchMedia("(pointer: coarse)").matches; // where Enter is the only way to a new line
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !isTouch) {
    event.preventDefault();
    if (!jobs.has(current.id)) onSubmit(event);
  } else if (event.key === "ArrowUp" && !$("input").value && editLast()) event.preventDefault();
}

export function start(lent) {
  page = lent;
  $("composer").addEventListener("submit", onSubmit);
  $("input").addEventListener("input", fit);
  $("input").addEventListener("keydown", onInputKey);
  $("latest").addEventListener("click", () => scroll(true));
  $("log").addEventListener("scroll", () => {
    const log = $("log");
    atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 48;
    $("latest").hidden = atEnd;
  });
  $("messages").addEventListener("click", (event) => {
    const button = event.target.closest('[data-action="copy-code"]');
    if (button) copyText(button.closest(".code").querySelector("code").textContent);
  });
  for (const idea of IDEAS) {
    const button = el("button", "button", idea);
    button.addEventListener("click", () => send(idea));
    $("ideas").append(button);
  }
  addEventListener("pagehide", () => jobs.size && store.save(current));
  store.onChange((id) => {
    showList();
    if (id === current.id && !jobs.has(id)) open(store.get(id) || store.create(current.params));
  });
  const all = store.list();
  open(all.find((c) => c.id === store.setting("last")) || store.create(store.setting("params")));
}
