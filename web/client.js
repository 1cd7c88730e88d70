/* The server as the page sees it: JSON calls, and one streamed answer. All addresses are relative to the page, so it
 * also works behind a proxy that serves it below a path.
 *
 * The key, when the server wants one, stays in this tab (sessionStorage) unless the user asks to keep it. */

export class ServerError extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter; // seconds, or 0
  }
}

const KEY = "quern.key";

export const key = {
  get() {
    try {
      return sessionStorage.getItem(KEY) || localStorage.getItem(KEY) || "";
    } catch {
      return "";
    }
  },
  set(value, keep) {
    try {
      sessionStorage.setItem(KEY, value);
      if (keep && value) localStorage.setItem(KEY, value);
      else localStorage.removeItem(KEY);
    } catch {
      // a browser without storage asks again
    }
  },
};

function headers(extra) {
  const k = key.get();
  return k ? { ...extra, Authorization: `Bearer ${k}` } : { ...extra };
}

async function errorOf(response) {
  let message = "";
  try {
    const body = await response.json();
    message = typeof body.error === "string" ? body.error : body.error?.message;
  } catch {
    // not JSON: the status has to do
  }
  return new ServerError(response.status, message || `the server answered ${response.status}`,
    Number(response.headers.get("Retry-After")) || 0);
}

export async function getJson(path, signal) {
  const response = await fetch(path, { headers: headers(), cache: "no-store", signal });
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

/* Events of an SSE body as the text of their data fields. Comments (the server's pings) are skipped. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (let line of lines) {
        if (line.endsWith("\r")) line = line.slice(0, -1);
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // also when the reader of this generator leaves early
  }
}

/* One answer. Calls onText(text, reasoning) as it comes, either of which may be empty; resolves to { finish, usage } or
 * throws a ServerError; aborting the signal closes the connection, at which the server stops computing. */
export async function chat(request, signal, onText) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw await errorOf(response);
  const out = { finish: null, usage: null };
  for await (const text of events(response.body)) {
    if (text === "[DONE]") return out;
    const chunk = JSON.parse(text);
    if (chunk.error) throw new ServerError(chunk.error.code || 500, chunk.error.message || "the answer failed");
    if (chunk.usage) out.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    const { content, reasoning_content: reasoning } = choice?.delta ?? {};
    if (content || reasoning) onText(content || "", reasoning || "");
    if (choice?.finish_reason) out.finish = choice.finish_reason;
  }
  if (out.finish) return out;
  throw new ServerError(0, "the connection ended in the middle of the answer");
}
