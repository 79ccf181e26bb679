// Markdown of answers: headings, lists, quotes, tables, code, formulas, bold, italic, links. Nodes are made one by one: text never
// becomes markup.
"use strict";

const kInline = new RegExp([
  /(?<tick>`+)(?<code>[^\n]{1,4000}?)(?<!`)\k<tick>(?!`)/,
  /\\\((?<tex>[^\n]{1,4000}?)\\\)/,
  /\$\$(?<shown>[^\n$]{1,4000}?)\$\$/,
  /(?<![\\\w$])\$(?=[^\s$])(?<dollar>[^$\n]{0,1000}?[^\s$\\])\$(?![\w$])/,
  /\*\*\*(?<both>[^\s*][^\n]{0,2000}?)\*\*\*/,
  /\*\*(?<bold>[^\s][^\n]{0,2000}?)\*\*(?!\*)/,
  /\*(?<italic>[^\s*](?:[^*\n]{0,2000}[^\s*])?)\*/,
  /(?<![\w_])_(?<under>[^\s_](?:[^_\n]{0,2000}[^\s_])?)_(?![\w_])/,
  /~~(?<struck>[^\s~][^~\n]{0,2000})~~/,
  /!?\[(?<label>[^\]\n]{1,500})\]\((?<address>https?:\/\/[^\s()]{1,2000}(?:\([^\s()]{0,500}\)[^\s()]{0,500})?)(?:\s+"[^"\n]{0,500}")?\)/,
  /(?<bare>https?:\/\/[^\s<>"'`)\]]{1,2000}[^\s<>"'`)\].,;:!?])/,
  /\\(?<mark>[!-/:-@[-`{-~])/,
].map(part => part.source).join("|"), "g");

const link = (address, text) => make("a", { href: address, target: "_blank", rel: "noopener noreferrer", textContent: text });

function inline(node, text) {
  let at = 0;
  for (const match of text.matchAll(kInline)) {
    node.append(text.slice(at, match.index));
    at = match.index + match[0].length;
    const { code, tex, shown, dollar, both, bold, italic, under, struck, label, address, bare, mark } = match.groups;
    if (code !== undefined) node.append(make("code", { textContent: /^ .*[^ ].* $/.test(code) ? code.slice(1, -1) : code }));
    else if (tex !== undefined || dollar !== undefined) node.append(formula(tex ?? dollar, false));
    else if (shown !== undefined) node.append(shownFormula("span", shown));
    else if (both !== undefined) node.append(make("strong", {}, inline(make("em"), both)));
    else if (bold !== undefined) node.append(inline(make("strong"), bold));
    else if (italic !== undefined || under !== undefined) node.append(inline(make("em"), italic ?? under));
    else if (struck !== undefined) node.append(inline(make("del"), struck));
    else if (mark !== undefined) node.append(mark);
    else node.append(link(address ?? bare, label ?? bare));
  }
  node.append(text.slice(at));
  node.normalize();
  return node;
}

// A formula of its own line: what is too wide is scrolled.
const shownFormula = (tag, text) => make(tag, { className: "formula", tabIndex: 0 }, formula(text, true));

const cells = line => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map(cell => cell.trim().replaceAll("\\|", "|"));
const isTable = (lines, i) => lines[i].includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[i + 1] ?? "") &&
  cells(lines[i]).length === cells(lines[i + 1]).length;
const kItem = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const kFence = /^\s*(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const kRule = /^\s{0,3}([-*_])(?:\s*\1){2,}\s*$/;

// A code block says its language, and its button copies what it holds at the time.
function codeBlock(language, body) {
  const head = make("div", { className: "code-head" }, make("span", { textContent: language || "text" }),
    make("button", { type: "button", className: "copy-code", textContent: "Copy", ariaLabel: "Copy this code" }));
  const code = make("code");
  highlight(code, language, body);
  return make("div", { className: "code" }, head, make("pre", { tabIndex: 0 }, code));
}

// Of more rows, a table is drawn in groups that the browser leaves out while they are not seen. It can do so with blocks only, so the rows are grids
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
  return make("div", { className: "table tall", tabIndex: 0 }, node);
}

function table(lines) {
  const sides = cells(lines[1]).map(cell => (/^:.*:$/.test(cell) ? "centre" : /:$/.test(cell) ? "right" : ""));
  const line = (tag, text, properties) => {
    const words = cells(text);
    return make("tr", {}, ...sides.map((side, i) => inline(make(tag, { className: side, ...properties }), words[i] ?? "")));
  };
  const head = line("th", lines[0], { scope: "col" });
  const rows = lines.slice(2).map(text => line("td", text));
  if (rows.length > kTallTable) return tallTable(sides.length, head, rows);
  return make("div", { className: "table", tabIndex: 0 }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

// Items of deeper indentation go into a list of the item before them.
function list(items) {
  const ordered = /\d/.test(items[0].mark);
  const node = make(ordered ? "ol" : "ul", ordered ? { start: parseInt(items[0].mark, 10) } : {});
  for (let i = 0; i < items.length;) {
    let end = i + 1;
    while (end < items.length && items[end].indent > items[i].indent) end++;
    const task = items[i].text.match(/^\[([ xX])\] (.*)$/s);
    const item = inline(make("li"), task ? task[2] : items[i].text);
    if (task) item.prepend(task[1] === " " ? "☐ " : "☑ ");
    if (end > i + 1) item.append(list(items.slice(i + 1, end)));
    node.append(item);
    i = end;
  }
  return node;
}

// The lines of a formula on lines of its own, without what encloses it: {body, end}, or null. It has no empty line.
function formulaAt(lines, i) {
  const open = lines[i].match(/^\s*(\$\$|\\\[|\\begin\{(?:equation|align|gather)\*?\})/)?.[1];
  if (!open) return null;
  const close = open === "$$" ? "$$" : open === "\\[" ? "\\]" : open.replace("begin", "end");
  for (let end = i; end < lines.length && lines[end].trim(); end++) {
    const line = end === i ? lines[i].trim().slice(open.length) : lines[end];
    if (!line.includes(close)) continue;
    if (!line.trimEnd().endsWith(close)) return null;
    const whole = lines.slice(i, end + 1).join("\n").trim();
    return { body: close.startsWith("\\end") ? whole : whole.slice(open.length, -close.length), end: end + 1 };
  }
  return null;
}

// Appends one node for each block of the text. Returns at which line each begins.
function markdown(node, text) {
  const lines = text.split("\n");
  const begins = [];
  const starts = i => kFence.test(lines[i]) || /^#{1,6}\s|^>/.test(lines[i]) || kRule.test(lines[i]) || kItem.test(lines[i]) || isTable(lines, i) || formulaAt(lines, i);
  for (let i = 0; i < lines.length;) {
    const fence = lines[i].match(kFence);
    const heading = lines[i].match(/^(#{1,6})\s+(.*?)(?:\s+#+)?$/);
    const begin = i;
    const shown = lines[i].trim() && formulaAt(lines, i);
    if (!lines[i].trim()) { i++; continue; }
    begins.push(begin);
    if (fence) {
      const indent = lines[i].length - lines[i].trimStart().length;
      for (i++; i < lines.length && !lines[i].trim().startsWith(fence[1]);) i++;
      const body = lines.slice(begin + 1, i++).map(line => (line.slice(0, indent).trim() ? line : line.slice(indent)));
      node.append(codeBlock(fence[2], body.join("\n")));
    } else if (shown) {
      node.append(shownFormula("div", shown.body));
      i = shown.end;
    } else if (heading) {
      node.append(inline(make(`h${Math.min(6, heading[1].length + 2)}`), heading[2]));
      i++;
    } else if (kRule.test(lines[i])) {
      node.append(make("hr"));
      i++;
    } else if (isTable(lines, i)) {
      while (i < lines.length && lines[i].includes("|")) i++;
      node.append(table(lines.slice(begin, i)));
    } else if (lines[i].startsWith(">")) {
      while (i < lines.length && lines[i].startsWith(">")) i++;
      const quote = make("blockquote");
      markdown(quote, lines.slice(begin, i).map(line => line.replace(/^>\s?/, "")).join("\n"));
      node.append(quote);
    } else if (kItem.test(lines[i])) {
      const items = [];
      for (; i < lines.length && !kFence.test(lines[i]) && !kRule.test(lines[i]); i++) {
        if (!lines[i].trim()) {  // An empty line within: what follows is an item or stands below one.
          if (i + 1 < lines.length && !kFence.test(lines[i + 1]) && (kItem.test(lines[i + 1]) || /^\s{2,}\S/.test(lines[i + 1]))) continue;
          break;
        }
        const [, indent, mark, words] = lines[i].match(kItem) ?? [];
        if (mark && items.length && indent.length <= items[0].indent && /\d/.test(mark) !== /\d/.test(items[0].mark)) break;
        if (mark) items.push({ indent: indent.length, mark, text: words });
        else items.at(-1).text += `\n${lines[i].trim()}`;
      }
      node.append(list(items));
    } else {
      for (i++; i < lines.length && lines[i].trim() && !starts(i);) i++;
      node.append(inline(make("p"), lines.slice(begin, i).join("\n")));
    }
  }
  return begins;
}

// Shows a text in a node. Of a text that has grown, only the last two blocks are read again: a line that is not complete can still join
// the last one to the one before.
function showText(target, text) {
  if (target.source === text) return;
  let keeps = 0;
  let from = 0;
  if (target.source && text.startsWith(target.source)) {
    keeps = Math.max(0, target.offsets.length - 2);
    from = target.offsets[keeps] ?? 0;
  }
  target.source = text;
  const rest = text.slice(from);
  const node = make("div");
  const begins = markdown(node, rest);
  const offsets = [];
  let line = 0;
  let at = 0;
  for (const begin of begins) {
    for (; line < begin; line++) at = rest.indexOf("\n", at) + 1;
    offsets.push(from + at);
  }
  target.offsets = [...(target.offsets ?? []).slice(0, keeps), ...offsets];
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
  if (pressed) copy(pressed.closest(".code").querySelector("code").textContent);
});
