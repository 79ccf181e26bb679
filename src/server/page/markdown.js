// Markdown of answers. marked reads it; from its tokens nodes are made one by one: text never becomes markup.
"use strict";

// Formulas on lines of their own: what opens one, what closes it. An empty line ends the search.
const kShown = /^ {0,3}(\$\$|\\\[|\\begin\{((?:equation|align|aligned|alignat|gather|gathered|multline|split|cases|array|CD|[bpvBV]?matrix)\*?)\})/;
function shownAt(src) {
  const [whole, open, environment] = src.match(kShown) ?? [];
  if (!open) return undefined;
  const close = environment ? `\\end{${environment}}` : open === "$$" ? "$$" : "\\]";
  const paragraph = src.slice(0, src.match(/\n[ \t]*\n|$/).index);
  const end = paragraph.indexOf(close, whole.length);
  const rest = end < 0 ? null : paragraph.slice(end + close.length).match(/^[ \t]*(?:\n|$)/);
  if (end >= 0 && !rest) return undefined;  // Words follow: it stands within a line.
  if (end < 0 && (paragraph.length < src.length || !/^[ \t]*\n/.test(paragraph.slice(whole.length)))) return undefined;
  if (end < 0) return { type: "shown", raw: src, tex: null, text: src };  // It still comes.
  const inner = paragraph.slice(whole.length, end);
  return inner.trim() ? { type: "shown", raw: paragraph.slice(0, end + close.length) + rest[0], tex: environment ? `${open}${inner}${close}` : inner } : undefined;
}

// Formulas within a line. A sum of money is none: behind the first sign comes no blank, in front of the last neither, and no digit follows.
const kWithin = /^(?:\\\((?<round>[^]{1,4000}?)\\\)|\\\[(?<square>[^]{1,4000}?)\\\]|\$\$(?<twice>[^$]{1,4000}?)\$\$|\$(?=[^\s$])(?<once>(?:[^$\n\\]|\\[^\n]){0,1000}?)(?<!\s)\$(?![\w$]))/;
// Bold words that end with a mark and go on without a blank, as Chinese and Japanese are written: CommonMark would leave the stars.
const kBold = /^\*\*(?=[^\s*])((?:[^*\n\\`$]|\\[^\n]){0,1000}?[\p{P}\p{S}])(?<!\*)\*\*(?=[\p{L}\p{N}])/u;
// Tags that mean nothing but how the words look; all others are words themselves.
const kTag = /^<(\/?)(b|br|del|em|i|ins|kbd|mark|s|small|strong|sub|sup|u)\s*(?:(?<!\/)\/)?>/i;

// A row with more bars than its table has columns would lose words. Bars in code and formulas are no borders then, nor those behind the last column.
const kBar = /(?<!\\)\|/g;
const kHeld = /(`+)(?!`)[^\n]*?[^`\n]\1(?!`)|\\\([^\n]*?\\\)|\$(?=[^\s$])(?:[^$\n\\]|\\[^\n])*?(?<!\s)\$(?![\w$])/g;
const bars = line => line.trim().replace(/^\||(?<!\\)\|$/g, "").match(kBar)?.length ?? 0;
function heldRow(line, most) {
  if (bars(line) <= most) return line;
  const end = line.match(/(?<!\\)\|\s*$/)?.[0] ?? "";
  let left = most + (line.trimStart().startsWith("|") ? 1 : 0);
  return line.slice(0, line.length - end.length).replace(kHeld, text => text.replace(kBar, "\\|")).replace(kBar, bar => (left-- > 0 ? bar : "\\|")) + end;
}

marked.use({
  gfm: true, breaks: true, mangle: false, headerIds: false,
  extensions: [
    {
      name: "shown", level: "block", tokenizer: shownAt,
      start: src => {
        const paragraph = src.slice(0, src.match(/\n[ \t]*\n|$/).index);
        for (const { index } of paragraph.matchAll(/\n(?= {0,3}(?:\$\$|\\\[|\\begin\{))/g)) if (shownAt(src.slice(index + 1))) return index + 1;
        return undefined;
      },
    },
    {
      name: "within", level: "inline", start: src => { const at = src.search(/\$|\\[([]/); return at < 0 ? undefined : at; },
      tokenizer: (src, tokens) => {
        const match = src.match(kWithin);
        if (!match || (src[0] === "$" && /[\w$\\]$/.test(tokens.at(-1)?.raw ?? ""))) return undefined;
        const { round, square, twice, once } = match.groups;
        return { type: "within", raw: match[0], tex: round ?? square ?? twice ?? once, display: (square ?? twice) !== undefined };
      },
    },
    {
      name: "strong", level: "inline",
      tokenizer(src) {
        const match = src.startsWith("**") ? src.match(kBold) : null;
        return match ? { type: "strong", raw: match[0], text: match[1], tokens: this.lexer.inlineTokens(match[1]) } : undefined;
      },
    },
  ],
  tokenizer: {
    html: () => undefined,
    table(src) {
      const [head, rule] = src.split("\n", 2);
      if (!rule || !head.includes("|") || !/^[\s|:-]+$/.test(rule)) return false;
      const lines = src.slice(0, src.match(/\n[ \t]*\n|$/).index).split("\n");
      const held = lines.map(line => heldRow(line, bars(rule)));
      if (held.every((line, i) => line === lines[i])) return false;
      const token = marked.Tokenizer.prototype.table.call(this, held.join("\n"));
      if (token) token.raw = src.split("\n", token.raw.replace(/\n$/, "").split("\n").length).join("\n") + (token.raw.endsWith("\n") ? "\n" : "");
      return token ?? false;
    },
    // Code that an answer has not ended, of which marked wants whole lines: as it comes, and where it was cut.
    fences(src) {
      if (src.endsWith("\n")) return false;
      const token = marked.Tokenizer.prototype.fences.call(this, `${src}\n`);
      if (token) token.raw = token.raw.slice(0, src.length);
      return token ?? false;
    },
    tag: src => {
      const match = src.match(kTag);
      return match ? { type: "html", raw: match[0], name: match[2].toLowerCase(), closes: match[1] === "/" } : undefined;
    },
    // A note at the foot of a page is no address.
    def: src => (/^ {0,3}\[[^\]^][^\]]{0,200}\]:\s*<?(?:https?:|mailto:)/.test(src) ? false : undefined),
  },
});

// A paragraph with more marks than these is no prose, and marked looks for the end of each of them: it stays as it is.
const kMostMarks = 2000;
const plainInlineTokens = marked.Lexer.prototype.inlineTokens;
marked.Lexer.prototype.inlineTokens = function (src, tokens = []) {
  const marks = src.length < kMostMarks ? 0 : src.match(/[*_`[~$\\<]/g)?.length ?? 0;
  if (marks <= kMostMarks) return plainInlineTokens.call(this, src, tokens);
  tokens.push({ type: "text", raw: src, text: src.replaceAll("&", "&amp;") });
  return tokens;
};

// marked makes blanks of tabs in front of lines; those of code stay.
const kTab = "\uE009";
function shield(text) {
  const lines = (text.includes("\r") ? text.replace(/\r\n?/g, "\n") : text);
  if (!lines.includes("\t")) return lines;
  let fence = "";
  return lines.split("\n").map(line => {
    const mark = line.match(/^\s*(?:(?:[-*+>]|\d+[.)])\s+)*(`{3,}|~{3,})/)?.[1] ?? "";
    if (mark && (!fence || mark.startsWith(fence))) fence = fence ? "" : mark;
    return fence && !mark ? line.replaceAll("\t", kTab) : line.replace(/^[ \t]+/, blank => blank.replaceAll("\t", "    "));
  }).join("\n");
}

const kNamed = { amp: "&", lt: "<", gt: ">", quot: "\"", apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", hellip: "…", mdash: "—", ndash: "–", times: "×",
  divide: "÷", plusmn: "±", deg: "°", middot: "·", bull: "•", larr: "←", rarr: "→", uarr: "↑", darr: "↓", harr: "↔", le: "≤", ge: "≥", ne: "≠", asymp: "≈", infin: "∞",
  laquo: "«", raquo: "»", lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", euro: "€", pound: "£", yen: "¥", sect: "§", para: "¶", micro: "µ", alpha: "α", beta: "β",
  gamma: "γ", delta: "δ", lambda: "λ", mu: "μ", pi: "π", sigma: "σ", omega: "ω", thinsp: "\u2009", ensp: "\u2002", emsp: "\u2003", zwj: "\u200d", zwnj: "\u200c", shy: "\u00ad" };
// The characters of a text in which marked has written some as entities.
const unescaped = text => text.replace(/&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|(\w{1,20}));/g, (all, decimal, hex, name) => {
  if (name) return Object.hasOwn(kNamed, name) ? kNamed[name] : all;
  const code = decimal ? parseInt(decimal, 10) : parseInt(hex, 16);
  return code === 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? "\ufffd" : String.fromCodePoint(code);
});

// The address of a link that may be followed, or null.
function address(href) {
  try { return /^(?:https?|mailto):$/.test(new URL(href).protocol) ? href : null; } catch { return null; }
}
const link = href => make("a", { href, target: "_blank", rel: "noopener noreferrer" });

// A formula is drawn once it stands in the page: of one that is already there, nothing is made.
const formula = (tag, tex, display) => make(tag, { className: display ? "tex shown" : "tex", dir: "ltr", source: tex, ...(display && { tabIndex: 0 }) });

const kSpans = { strong: "strong", em: "em", del: "del" };
function inline(node, tokens) {
  const open = [node];
  for (const token of tokens ?? []) {
    const here = open.at(-1);
    const href = token.href === undefined ? null : address(unescaped(token.href));
    if (kSpans[token.type]) here.append(inline(make(kSpans[token.type]), token.tokens));
    else if (token.type === "within") here.append(formula("span", token.tex, token.display));
    else if (token.type === "codespan") here.append(make("code", { dir: "ltr" }, unescaped(token.text).replaceAll(kTab, "\t")));
    else if (token.type === "br" || (token.type === "html" && token.name === "br")) here.append(make("br"));
    else if (token.type === "html") {
      if (!token.closes) { open.push(make(token.name)); here.append(open.at(-1)); }
      else if (open.length > 1 && here.localName === token.name) open.pop();
      else here.append(token.raw);
    }
    else if (token.type === "link") here.append(href ? inline(link(href), token.tokens) : token.raw);
    else if (token.type === "image") here.append(href ? inline(link(href), [{ type: "text", text: token.text || token.href }]) : token.raw);  // Nothing is fetched from elsewhere.
    else if (token.tokens) inline(here, token.tokens);
    else here.append(unescaped(token.text));
  }
  node.normalize();
  return node;
}

// A table of more rows is drawn in groups that the browser leaves out while they are not seen. It can do so with blocks only, so the rows are grids
// with columns of one width, and the roles are said.
const kTallTable = 256;
const kRowGroup = 64;
function tallTable(columns, head, rows) {
  const groups = [];
  for (let i = 0; i < rows.length; i += kRowGroup) groups.push(make("tbody", { role: "rowgroup" }, ...rows.slice(i, i + kRowGroup)));
  for (const row of [head, ...rows]) {
    row.role = "row";
    for (const cell of row.children) cell.role = row === head ? "columnheader" : "cell";
  }
  const node = make("table", { role: "table" }, make("thead", { role: "rowgroup" }, head), ...groups);
  node.style.setProperty("--columns", columns);
  return make("div", { className: "table tall", dir: "auto", tabIndex: 0 }, node);
}

function table(token) {
  const line = (cells, tag, properties) => make("tr", {}, ...token.header.map((_, i) =>
    inline(make(tag, { className: token.align[i] ?? "", ...properties }), cells[i]?.tokens)));
  const head = line(token.header, "th", { scope: "col" });
  const rows = token.rows.map(cells => line(cells, "td"));
  if (rows.length > kTallTable) return tallTable(token.header.length, head, rows);
  return make("div", { className: "table", dir: "auto", tabIndex: 0 }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

function list(token) {
  const node = make(token.ordered ? "ol" : "ul", { dir: "auto", ...(token.ordered && { start: Number(token.start) }) });
  for (const item of token.items) {
    const line = blocks(make("li", { className: item.task ? "task" : "" }), item.tokens);
    if (item.task) line.prepend(item.checked ? "☑ " : "☐ ");
    node.append(line);
  }
  return node;
}

// A code block says its language, and its button copies what it holds at the time.
function codeBlock(language, body) {
  const head = make("div", { className: "code-head" }, make("span", { textContent: language || "text" }),
    make("button", { type: "button", className: "copy-code", ariaLabel: "Copy this code" }, icon("copy"), "Copy"));
  const code = make("code");
  highlight(code, language, body);
  return make("div", { className: "code", dir: "ltr" }, head, make("pre", { tabIndex: 0 }, code));
}

// One node for a token, or none.
function block(token) {
  switch (token.type) {
    case "space": case "def": return null;
    case "heading": return inline(make(`h${Math.min(6, token.depth + 2)}`, { dir: "auto" }), token.tokens);
    case "code": return codeBlock(token.lang?.match(/^[^\s{]*/)[0] ?? "", token.text.replaceAll(kTab, "\t"));
    case "shown": return token.tex === null ? make("pre", { className: "coming", tabIndex: 0 }, token.text) : formula("div", token.tex, true);
    case "hr": return make("hr");
    case "blockquote": return blocks(make("blockquote", { dir: "auto" }), token.tokens);
    case "list": return list(token);
    case "table": return table(token);
    default: return inline(make("p", { dir: "auto" }), token.tokens ?? [token]);
  }
}
// The blocks of a quotation or an item have its direction: a node with one of its own would have no say in it.
function blocks(node, tokens) {
  const tight = tokens.filter(token => token.type === "text").length < 2;
  for (const token of tokens) {
    const flows = token.type === "text" && tight;  // In an item of one paragraph.
    const inner = flows ? null : block(token);
    if (inner?.dir === "auto") inner.removeAttribute("dir");
    if (flows) inline(node, token.tokens ?? [token]);
    else if (inner) node.append(inner);
  }
  return node;
}

// Reads a text, or as much of it as `links`, the addresses that were named before it, do not know. What marked cannot read stays text.
function lex(text, links) {
  const lexer = new marked.Lexer(marked.defaults);
  Object.assign(lexer.tokens.links, links);
  try {
    // As lex() does, but for the end of its queue, which it moves as a whole for each entry.
    lexer.blockTokens(text, lexer.tokens);
    for (const { src, tokens } of lexer.inlineQueue) lexer.inlineTokens(src, tokens);
    return { tokens: [...lexer.tokens], links: { ...lexer.tokens.links } };
  } catch {  // Too deep.
    return { tokens: [{ type: "paragraph", raw: text, tokens: [{ type: "text", raw: text, text: text.replaceAll("&", "&amp;") }] }], links };
  }
}

// Shows a text in a node. Of a text that has grown, only the last two blocks are read again: a line that is not complete can still join
// the last one to the one before.
function showText(target, source) {
  if (target.source === source) return;
  const text = shield(source);
  const grown = target.text !== undefined && text.startsWith(target.text);
  let keeps = grown ? Math.max(0, target.offsets.length - 2) : 0;
  let from = keeps ? target.offsets[keeps] : 0;
  let found = lex(text.slice(from), keeps ? target.links : {});
  if (keeps && Object.keys(found.links).length !== Object.keys(target.links).length) {  // A new address changes what stands before it.
    [keeps, from] = [0, 0];
    found = lex(text, {});
  }
  const node = make("div");
  const offsets = [];
  let at = from;
  let exact = true;  // Whether the tokens are the text, so that the next look may begin at one.
  for (const token of found.tokens) {
    exact &&= text.startsWith(token.raw, at);
    const drawn = block(token);
    if (drawn) { node.append(drawn); offsets.push(at); }
    at += token.raw.length;
  }
  Object.assign(target, { source, text, links: found.links, offsets: exact ? [...(target.offsets ?? []).slice(0, keeps), ...offsets] : [] });
  patchParts(target, [...node.childNodes], keeps);
  target.classList.toggle("long", target.childNodes.length > 3);
}

// The blocks of a text stand in parts of so many. The browser leaves out whole parts that are not seen; asked of every block, that takes longer than it saves.
const kPart = 32;
function patchParts(target, blocks, from) {
  let at = from;
  do {
    const index = Math.floor(at / kPart);
    const part = target.childNodes[index] ?? target.appendChild(make("div", { className: "part" }));
    const wanted = make("div");
    wanted.append(...blocks.splice(0, kPart - at % kPart));
    patch(part, wanted, at % kPart);
    for (const shell of part.querySelectorAll(".tex:empty")) drawFormula(shell);
    at = (index + 1) * kPart;
  } while (blocks.length);
  while (target.childNodes.length > at / kPart) target.lastChild.remove();
}

// Makes the children of one node, from a place on, those of another. What is equal stays, and text grows in place: a selection survives.
function patch(node, wanted, from = 0) {
  const next = [...wanted.childNodes];
  let before = from ? node.childNodes[from] : node.firstChild;
  for (const child of next) {
    const after = before?.nextSibling;
    if (!before) node.append(child);
    else if (!isLike(before, child)) before.replaceWith(child);
    else if (before.nodeType !== Node.TEXT_NODE) { if (before.source === undefined) patch(before, child); }
    else if (child.data.startsWith(before.data)) { if (child.data.length > before.data.length) before.appendData(child.data.slice(before.data.length)); }
    else before.data = child.data;
    before = after;
  }
  while (before) {
    const after = before.nextSibling;
    before.remove();
    before = after;
  }
}
const isLike = (one, other) => one.nodeName === other.nodeName && one.className === other.className && one.getAttribute?.("href") === other.getAttribute?.("href") &&
  one.start === other.start && one.source === other.source;

document.addEventListener("click", event => {
  const pressed = event.target.closest?.(".copy-code");
  if (pressed) copyBy(pressed, pressed.closest(".code").querySelector("code").textContent);
});
