/* Conversations, kept in this browser's localStorage and nowhere else.
 *
 * One key per conversation, so that two tabs disturb each other only inside the same one. A browser without storage
 * (or with a full one) still works: what could not be written lives in memory until the tab is closed, and save()
 * answers false so that the page can say so.
 *
 * A conversation: { id, title, created, updated, params, messages: [{ role, content, stats?, note? }] } */

const PREFIX = "quern.chat.";
const memory = new Map(); // id -> conversation: what this tab knows

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_");
}

function isConversation(c) {
  return c && typeof c.id === "string" && typeof c.title === "string" && Array.isArray(c.messages) &&
    c.messages.every((m) => m && typeof m.content === "string" && (m.role === "user" || m.role === "assistant"));
}

function read(key) {
  try {
    const c = JSON.parse(localStorage.getItem(key));
    return isConversation(c) ? c : null;
  } catch {
    return null;
  }
}

/* Everything there is, newest first. */
export function list() {
  try {
    for (let i = 0; i < localStorage.length; i++) {
      const key = localStorage.key(i);
      if (!key.startsWith(PREFIX) || memory.has(key.slice(PREFIX.length))) continue;
      const c = read(key);
      if (c) memory.set(c.id, c);
    }
  } catch {
    // no storage: what is in memory is all there is
  }
  return [...memory.values()].sort((a, b) => b.updated - a.updated);
}

export const get = (id) => memory.get(id);

export function create(params) {
  const now = Date.now();
  const c = { id: newId(), title: "", created: now, updated: now, params: { ...params }, messages: [] };
  memory.set(c.id, c);
  return c;
}

/* False when the browser would not take it. */
export function save(c, touch = true) {
  if (touch) c.updated = Date.now();
  memory.set(c.id, c);
  try {
    localStorage.setItem(PREFIX + c.id, JSON.stringify(c));
    return true;
  } catch {
    return false;
  }
}

export function remove(id) {
  memory.delete(id);
  try {
    localStorage.removeItem(PREFIX + id);
  } catch {
    // nothing was kept
  }
}

/* Another tab changed one: forget ours, list() reads it again. */
export function onChange(fn) {
  addEventListener("storage", (event) => {
    if (!event.key?.startsWith(PREFIX)) return;
    const id = event.key.slice(PREFIX.length);
    const c = event.newValue ? read(event.key) : null;
    if (c) memory.set(id, c);
    else memory.delete(id);
    fn(id);
  });
}

/* Small settings of the page: theme, last conversation, last parameters. */
export function setting(name, value) {
  try {
    if (value === undefined) return JSON.parse(localStorage.getItem(`quern.${name}`));
    localStorage.setItem(`quern.${name}`, JSON.stringify(value));
  } catch {
    // the default will do
  }
  return value ?? null;
}
