/* Markdown to DOM nodes, for text nobody trusts.
 *
 * No string ever becomes HTML here: every node is made by createElement and every piece of text is a text node, so a
 * model that writes tags writes letters. The only attributes that carry model text are href (http and https alone) and
 * the language of a code block. Pictures become links, since the page makes no request of its own to anywhere.
 *
 * Streaming: a block that another block follows can no longer change, so a Stream keeps those and makes only the last
 * one again. How far is looked ahead, how deep things nest and how long a line is matched are bounded, so that text of
 * any shape takes about linear time. */

const DEPTH_MAX = 8; // quotes and lists inside each other
const AHEAD_MAX = 2000; // characters between the two ends of a link or an emphasis; of a line with block syntax

export function el(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/* --- inline --- */

const SPECIAL = /[\\`*_~[!<\n]|https?:\/\//g;
const ESCAPABLE = /[!-/:-@[-`{-~]/;

export function safeUrl(text) {
  if (!/^https?:\/\//i.test(text)) return null;
  try {
    const url = new URL(text);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}

function link(url, children) {
  const href = safeUrl(url);
  if (!href) return null;
  const a = el("a", "", ...children);
  a.href = href;
  a.rel = "noopener noreferrer nofollow";
  a.target = "_blank";
  return a;
}

// [label](url "title") at `at`, which is the '['.
function takeLink(text, at) {
  let depth = 0;
  const end = Math.min(text.length, at + AHEAD_MAX);
  if (!text.slice(at, end).includes("]")) return null;
  for (let i = at; i < end; i++) {
    const c = text[i];
    if (c === "\\") i++;
    else if (c === "[") depth++;
    else if (c === "]" && --depth === 0) {
      const rest = text.slice(i + 1, i + 1 + AHEAD_MAX);
      const m = /^\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"\n]*")?\s*\)/.exec(rest);
      return m ? { label: text.slice(at + 1, i), url: m[1], end: i + 1 + m[0].length } : null;
    }
  }
  return null;
}

// *x*, **x**, ***x***, _x_, ~~x~~: the run at `at` and its twin. What ends an emphasis does not depend on where it
// starts, so `barren` remembers up to where each mark was looked for in vain.
function takeEmphasis(text, at, barren) {
  const c = text[at];
  let n = 1;
  while (n < 3 && text[at + n] === c) n++;
  if (c === "~" && n !== 2) return null;
  if (!text[at + n] || /\s/.test(text[at + n])) return null;
  if (c === "_" && at > 0 && /[\p{L}\p{N}]/u.test(text[at - 1])) return null;
  const mark = c.repeat(n);
  const stop = Math.min(text.length, at + AHEAD_MAX);
  let i = text.indexOf(mark, Math.max(at + n, barren[mark] || 0));
  for (; i >= 0 && i < stop; i = text.indexOf(mark, i + 1)) {
    const after = text[i + n] || " ";
    if (/\s/.test(text[i - 1]) || text[i - 1] === "\\" || after === c) continue;
    if (c === "_" && /[\p{L}\p{N}]/u.test(after)) continue;
    return { n, inner: text.slice(at + n, i), end: i + n };
  }
  barren[mark] = i < 0 ? text.length : stop;
  return null;
}

function emphasis(c, n, children) {
  if (c === "~") return el("del", "", ...children);
  if (n === 1) return el("em", "", ...children);
  const strong = el("strong", "", ...children);
  return n === 2 ? strong : el("em", "", strong);
}

// The end of a code span that starts with this run of backticks, or -1.
function closeOf(text, run, from) {
  const runs = /`+/g;
  runs.lastIndex = from;
  for (let m; (m = runs.exec(text)) && m.index - from < AHEAD_MAX * 4; ) if (m[0].length === run.length) return m.index;
  return -1;
}

/* What starts at text[i]: a node, or null and the letters to take as they are; and where it goes on. */
function takeInline(text, i, depth, barren) {
  const c = text[i];
  const ahead = text.slice(i, i + AHEAD_MAX);
  if (c === "\\") {
    const e = text[i + 1] || "";
    if (e === "\n") return { node: el("br"), next: i + 2 };
    return { letters: ESCAPABLE.test(e) ? e : c + e, next: i + 2 };
  }
  if (c === "`") {
    const run = /^`+/.exec(ahead)[0];
    const close = closeOf(text, run, i + run.length);
    if (close < 0) return { letters: run, next: i + run.length };
    let code = text.slice(i + run.length, close).replace(/\n/g, " ");
    if (code.startsWith(" ") && code.endsWith(" ") && code.trim()) code = code.slice(1, -1);
    return { node: el("code", "", code), next: close + run.length };
  }
  if (c === "[" || (c === "!" && text[i + 1] === "[")) {
    const found = takeLink(text, c === "!" ? i + 1 : i);
    const node = found && link(found.url, inline(found.label || found.url, depth + 1));
    return node ? { node, next: found.end } : { letters: c, next: i + 1 };
  }
  if (c === "*" || c === "_" || c === "~") {
    const found = takeEmphasis(text, i, barren);
    if (found) return { node: emphasis(c, found.n, inline(found.inner, depth + 1)), next: found.end };
    const run = /^[*]+|^_+|^~+/.exec(ahead)[0];
    return { letters: run, next: i + run.length };
  }
  if (c === "\n") return { node: el("br"), next: i + 1 };
  const url = /^<(https?:\/\/[^\s<>]+)>/i.exec(ahead) || /^()https?:\/\/[^\s<>"`]*[^\s<>"`.,;:!?'*_~)\]]/i.exec(ahead);
  const node = url && link(url[1] || url[0], [url[1] || url[0]]);
  return node ? { node, next: i + url[0].length } : { letters: c, next: i + 1 };
}

export function inline(text, depth = 0) {
  const out = [], barren = {};
  let letters = "", i = 0;
  const flush = () => {
    if (letters) out.push(document.createTextNode(letters));
    letters = "";
  };
  while (i < text.length && depth < DEPTH_MAX) {
    SPECIAL.lastIndex = i;
    const m = SPECIAL.exec(text);
    if (!m) break;
    letters += text.slice(i, m.index);
    const found = takeInline(text, m.index, depth, barren);
    i = found.next;
    if (found.node) {
      flush();
      out.push(found.node);
    } else letters += found.letters;
  }
  letters += text.slice(i);
  flush();
  return out;
}

/* --- blocks --- */

const FENCE = /^ {0,3}(```+|~~~+)\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}|$)/;
const TABLE_RULE = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

const isBlank = (line) => !/\S/.test(line);
const match = (pattern, line) => (line.length <= AHEAD_MAX ? pattern.exec(line) : null);
const startsBlock = (line) => match(FENCE, line) || match(HEADING, line) || match(RULE, line) || QUOTE.test(line);

function takeFence(lines, i) {
  const [, mark, language] = FENCE.exec(lines[i]);
  const close = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}\\s*$`);
  let j = i + 1;
  while (j < lines.length && !close.test(lines[j])) j++;
  return { kind: "code", language, text: lines.slice(i + 1, j).join("\n"), next: Math.min(j + 1, lines.length) };
}

function takeItems(lines, i) {
  const first = ITEM.exec(lines[i]);
  const ordered = /\d/.test(first[2]);
  const items = [];
  let j = i;
  while (j < lines.length) {
    const m = ITEM.exec(lines[j]);
    if (!m || /\d/.test(m[2]) !== ordered || match(RULE, lines[j])) break;
    const indent = m[0].length;
    const body = [lines[j].slice(indent)];
    for (j++; j < lines.length; j++) {
      const line = lines[j].replace(/^\t+/, (tabs) => "    ".repeat(tabs.length));
      if (isBlank(line)) body.push("");
      else if (line.search(/[^ ]/) >= Math.min(indent, 2)) body.push(line.replace(/^ */, (s) => s.slice(indent)));
      else if (ITEM.test(line) || startsBlock(line) || body.at(-1) === "") break;
      else body.push(line);
    }
    while (body.length > 1 && body.at(-1) === "") body.pop();
    items.push(body);
  }
  return { kind: "list", ordered, start: parseInt(first[2], 10) || 1, items, next: j };
}

function cells(line) {
  const out = [];
  let cell = "", inCode = false;
  const text = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  for (let i = 0; i < text.length; i++) {
    if (text[i] === "\\" && text[i + 1] === "|") cell += text[++i];
    else if (text[i] === "|" && !inCode) {
      out.push(cell.trim());
      cell = "";
    } else {
      if (text[i] === "`") inCode = !inCode;
      cell += text[i];
    }
  }
  out.push(cell.trim());
  return out.slice(0, 64);
}

function takeTable(lines, i) {
  const align = cells(lines[i + 1]).map((c) => (c.endsWith(":") ? (c.startsWith(":") ? "to-center" : "to-right") : ""));
  let j = i + 2;
  while (j < lines.length && lines[j].includes("|") && !isBlank(lines[j])) j++;
  return { kind: "table", align, head: cells(lines[i]), rows: lines.slice(i + 2, j).map(cells), next: j };
}

function takeBlock(lines, i) {
  const line = lines[i];
  let m;
  if (match(FENCE, line)) return takeFence(lines, i);
  if ((m = match(HEADING, line))) return { kind: "heading", level: m[1].length, text: m[2].trim(), next: i + 1 };
  if (match(RULE, line)) return { kind: "rule", next: i + 1 };
  let j = i;
  if (QUOTE.test(line)) {
    while (j < lines.length && (QUOTE.test(lines[j]) || (!isBlank(lines[j]) && !startsBlock(lines[j])))) j++;
    return { kind: "quote", lines: lines.slice(i, j).map((l) => l.replace(QUOTE, "")), next: j };
  }
  if (ITEM.test(line)) return takeItems(lines, i);
  if (line.includes("|") && i + 1 < lines.length && match(TABLE_RULE, lines[i + 1]) && lines[i + 1].includes("|"))
    return takeTable(lines, i);
  for (j = i + 1; j < lines.length && !isBlank(lines[j]) && !startsBlock(lines[j]); j++)
    if (/^ {0,3}([-*+]|1[.)]) /.test(lines[j])) break;
  return { kind: "text", text: lines.slice(i, j).map((l) => l.replace(/^ +/, "")).join("\n"), next: j };
}

/* Top-level blocks, each with the line where it starts. */
function parse(lines) {
  const out = [];
  for (let i = 0; i < lines.length; ) {
    if (isBlank(lines[i])) {
      i++;
      continue;
    }
    const block = takeBlock(lines, i);
    block.line = i;
    out.push(block);
    i = block.next;
  }
  return out;
}

/* --- nodes --- */

function codeNode(block) {
  const language = block.language.slice(0, 32);
  const copy = el("button", "copy-code", "Copy");
  copy.type = "button";
  copy.dataset.action = "copy-code";
  const code = el("code", "", block.text);
  const pre = el("pre", "", code);
  pre.tabIndex = 0;
  pre.setAttribute("aria-label", language ? `${language} code` : "code");
  const box = el("div", "code", el("div", "code-head", el("span", "", language || "text"), copy), pre);
  box.dataset.language = block.language;
  return box;
}

function tableNode(block) {
  const row = (tag, texts) => {
    const tr = el("tr");
    for (let i = 0; i < block.head.length; i++) {
      const cell = el(tag, block.align[i] || "", ...inline(texts[i] || ""));
      tr.append(cell);
    }
    return tr;
  };
  const body = el("tbody", "", ...block.rows.map((r) => row("td", r)));
  const wrap = el("div", "table", el("table", "", el("thead", "", row("th", block.head)), body));
  wrap.tabIndex = 0;
  return wrap;
}

function listNode(block, depth) {
  const list = el(block.ordered ? "ol" : "ul");
  if (block.ordered && block.start !== 1) list.start = block.start;
  for (const body of block.items) {
    const inner = parse(body);
    const li = el("li");
    for (const b of inner) // a lone paragraph needs no paragraph's margins
      li.append(...(b.kind === "text" && b === inner[0] ? inline(b.text) : [blockNode(b, depth + 1)]));
    list.append(li);
  }
  return list;
}

function blockNode(block, depth) {
  if (depth > DEPTH_MAX) return el("p", "", block.text || (block.lines || block.items?.flat() || []).join("\n"));
  switch (block.kind) {
    case "code": return codeNode(block);
    case "heading": return el(`h${Math.min(block.level + 2, 6)}`, "", ...inline(block.text));
    case "rule": return el("hr");
    case "quote": return el("blockquote", "", ...parse(block.lines).map((b) => blockNode(b, depth + 1)));
    case "list": return listNode(block, depth);
    case "table": return tableNode(block);
    default: return el("p", "", ...inline(block.text));
  }
}

/* A growing text shown in `root`. set() takes the whole text so far. */
export class Stream {
  constructor(root) {
    this.root = root;
    this.done = 0; // characters in blocks that are final
    this.kept = 0; // their nodes
  }

  set(text) {
    const lines = text.slice(this.done).split("\n");
    const blocks = parse(lines);
    const shown = this.root.childNodes[this.kept];
    if (blocks.length === 1 && blocks[0].kind === "code" && shown?.dataset?.language === blocks[0].language) {
      shown.querySelector("code").textContent = blocks[0].text; // in place, so that a reader's scrolling stays
      return;
    }
    while (this.root.childNodes.length > this.kept) this.root.lastChild.remove();
    this.root.append(...blocks.map((b) => blockNode(b, 0)));
    if (blocks.length < 2) return;
    for (let i = 0; i < blocks.at(-1).line; i++) this.done += lines[i].length + 1;
    this.kept += blocks.length - 1;
  }
}

export function render(root, text) {
  root.replaceChildren();
  new Stream(root).set(text.replace(/\r\n?/g, "\n"));
}
