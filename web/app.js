/* The page's frame: views, panels, theme, keys, parameters, and the little messages. The views are chat.js and
 * dashboard.js; they reach back through the object lent to them. */
import { el } from "./markdown.js";
import { getJson, key } from "./client.js";
import * as store from "./store.js";
import * as chat from "./chat.js";
import * as dashboard from "./dashboard.js";

const $ = (id) => document.getElementById(id);
const THEMES = ["system", "light", "dark"];
const HASH = { chat: "#/", dash: "#/dashboard" }; // not names of elements: the browser would move the focus there
const RETRY_MS = 2000; // while the server is starting or away

/* --- messages to the user --- */

let toastTimer = 0;

function toast(text, action, onAction) {
  const parts = [el("span", "", text)];
  if (action) {
    const button = el("button", "", action);
    button.addEventListener("click", () => {
      $("toast").replaceChildren();
      onAction();
    });
    parts.push(button);
  }
  $("toast").replaceChildren(...parts);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => $("toast").replaceChildren(), action ? 8000 : 2500);
}

function announce(text) {
  $("announce").textContent = text;
}

/* --- the key --- */

let afterKey = [];

function askKey(then) {
  afterKey.push(then);
  if ($("key-dialog").open) return;
  $("key-error").hidden = !key.get();
  $("key-error").textContent = "The server does not take that key.";
  $("key").value = key.get();
  $("key-dialog").showModal();
}

function onKeyForm(event) {
  event.preventDefault();
  key.set($("key").value.trim(), $("key-keep").checked);
  $("key-dialog").close();
  const waiting = afterKey;
  afterKey = [];
  connect();
  for (const then of waiting) then();
}

/* --- the server --- */

let modelName = "";

function showServer(s) {
  const state = s ? s.state : "away";
  $("state").className = `dot ${state === "ready" ? "ready" : state === "failed" || state === "away" ? "failed" : ""}`;
  const words = [s?.model, state !== "ready" && state, s?.percent !== undefined && `${s.percent}%`];
  $("model-name").textContent = s ? words.filter(Boolean).join(" ") : "no server";
  $("model").title = $("model-name").textContent;
  if (!s?.model) return;
  modelName ||= s.model;
  $("empty-model").textContent = modelName;
}

let connectTimer = 0;

function connectLater() {
  clearTimeout(connectTimer);
  connectTimer = setTimeout(connect, RETRY_MS);
}

/* Asks who is there, and again until somebody is. */
async function connect() {
  clearTimeout(connectTimer);
  try {
    const s = await getJson("stats");
    showServer(s);
    if (s.state === "starting") return connectLater();
    const { data } = await getJson("v1/models");
    $("models").replaceChildren(...data.map((m) => el("option", "", m.id)));
    $("models").closest("label").hidden = data.length < 2;
    const chosen = data.find((m) => m.id === store.setting("model"));
    modelName = (chosen || data[0] || { id: modelName }).id;
    $("models").value = modelName;
    $("empty-model").textContent = modelName;
  } catch (error) {
    if (error.status === 401) return askKey(() => {});
    showServer(null);
    connectLater();
  }
}

/* --- views and panels --- */

function view(name, focus) {
  const isDash = name === "dash";
  document.body.dataset.view = name;
  $("dash").hidden = !isDash;
  $("chat").hidden = isDash;
  for (const tab of ["chat", "dash"]) {
    $(`tab-${tab}`).setAttribute("aria-selected", tab === name);
    $(`tab-${tab}`).tabIndex = tab === name ? 0 : -1;
  }
  if (location.hash !== HASH[name]) history.replaceState(null, "", HASH[name]);
  if (isDash) {
    dashboard.wake();
    announce("Dashboard");
  }
  if (focus) (isDash ? $("dash") : $("input")).focus();
}

const isNarrow = () => matchMedia("(max-width: 860px)").matches;

function togglePanel(id, toggle, want) {
  const panel = $(id);
  const classes = panel.classList;
  const isLeft = classes.contains("left");
  const isOpen = !isLeft ? !panel.hidden : isNarrow() ? classes.contains("open") : !classes.contains("shut");
  const open = want ?? !isOpen;
  if (open === isOpen) return false;
  if (isLeft) classes.toggle(isNarrow() ? "open" : "shut", isNarrow() ? open : !open);
  else panel.hidden = !open;
  $(toggle).setAttribute("aria-expanded", open);
  if (open) panel.querySelector("button, textarea, input")?.focus();
  else $(toggle).focus();
  return true;
}

const toggleChats = (want) => togglePanel("chats-panel", "chats-toggle", want);
const toggleParams = (want) => togglePanel("params", "params-toggle", want);

/* --- theme --- */

function nextTheme() {
  const now = document.documentElement.dataset.theme || "system";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  store.setting("theme", next);
  toast(next === "system" ? "Theme: as the system" : `Theme: ${next}`);
}

/* --- parameters --- */

const fields = [...document.querySelectorAll("[data-param]")];
let conversation;

function showParams(c) {
  conversation = c;
  for (const field of fields) field.value = c.params[field.dataset.param] ?? "";
  if (!isNarrow()) return;
  $("chats-panel").classList.remove("open");
  $("chats-toggle").setAttribute("aria-expanded", false);
}

function onParam(event) {
  const field = event.target;
  const name = field.dataset.param;
  if (field.value.trim() === "" || !field.checkValidity()) delete conversation.params[name];
  else conversation.params[name] = field.type === "number" ? Number(field.value) : field.value;
  store.setting("params", conversation.params);
  if (conversation.messages.length) store.save(conversation, false);
}

function resetParams() {
  conversation.params = {};
  store.setting("params", {});
  showParams(conversation);
  if (conversation.messages.length) store.save(conversation, false);
}

/* --- keys: each works while no field has the focus, Escape always --- */

const KEYS = [
  ["/", "Write a message", () => view("chat", true)],
  ["n", "New chat", () => { view("chat"); chat.openNew(); }],
  ["c", "Chat", () => view("chat", true)],
  ["d", "Dashboard", () => view("dash", true)],
  ["s", "Conversations", () => { view("chat"); toggleChats(); }],
  ["p", "Parameters", () => { view("chat"); toggleParams(); }],
  ["r", "Regenerate the last answer", () => { view("chat"); chat.regenerate(); }],
  ["e", "Edit the last message", () => { view("chat"); chat.editLast(); }],
  ["t", "Theme: system, light, dark", nextTheme],
  ["?", "This list", () => $("help-dialog").showModal()],
];
const MORE = [["Enter", "Send; with Shift a new line"], ["↑", "In an empty field: edit the last message"],
  ["Esc", "Stop the answer, close a panel, leave the field"]];

function onKeydown(event) {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    if (isNarrow() && toggleChats(false)) return;
    if (toggleParams(false) || chat.stop()) return;
    document.activeElement.blur();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  const found = KEYS.find(([k]) => k === event.key);
  if (!found) return;
  event.preventDefault();
  found[2]();
}

function onTabKey(event) {
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  const name = $("dash").hidden ? "dash" : "chat";
  view(name);
  $(`tab-${name}`).focus();
}

/* --- start --- */

const on = (id, type, fn) => $(id).addEventListener(type, fn);

on("tab-chat", "click", () => view("chat"));
on("tab-dash", "click", () => view("dash"));
document.querySelector(".tabs").addEventListener("keydown", onTabKey);
on("chats-toggle", "click", () => toggleChats());
on("params-toggle", "click", () => toggleParams());
on("params-close", "click", () => toggleParams(false));
on("params-reset", "click", resetParams);
on("new", "click", () => { view("chat"); chat.openNew(); });
on("theme", "click", nextTheme);
on("help", "click", () => $("help-dialog").showModal());
on("help-close", "click", () => $("help-dialog").close());
on("key-form", "submit", onKeyForm);
on("key-cancel", "click", () => { afterKey = []; $("key-dialog").close(); });
on("models", "change", () => { modelName = $("models").value; store.setting("model", modelName); });
fields.forEach((field) => field.addEventListener("change", onParam));
document.addEventListener("keydown", onKeydown);
addEventListener("hashchange", () => view(location.hash === HASH.dash ? "dash" : "chat"));
for (const [k, what] of [...KEYS, ...MORE]) $("keys").append(el("dt", "", el("kbd", "", k)), el("dd", "", what));
$("chats-toggle").setAttribute("aria-expanded", !isNarrow());

const lent = { toast, announce, reconnect: connect, model: () => modelName, onKey: askKey, onOpen: showParams,
  onStats: showServer };
chat.start(lent);
dashboard.start(lent);
view(location.hash === HASH.dash ? "dash" : "chat");
if (!isNarrow() && location.hash !== HASH.dash) $("input").focus();
connect();
