// Markdown of answers: headings, lists, quotes, tables, code, bold, italic, links. Nodes are made one by one: text never becomes markup.
"use strict";

const kInline = /`([^`\n]+)`|\*\*([^\n]+?)\*\*|\*([^\s*](?:[^*\n]*[^\s*])?)\*|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/g;

function inline(node, text) {
  let at = 0;
  for (const match of text.matchAll(kInline)) {
    node.append(text.slice(at, match.index));
    at = match.index + match[0].length;
    const [, code, bold, italic, label, address] = match;
    if (code !== undefined) node.append(make("code", { textContent: code }));
    else if (bold !== undefined) node.append(inline(make("strong"), bold));
    else if (italic !== undefined) node.append(inline(make("em"), italic));
    else node.append(make("a", { href: address, target: "_blank", rel: "noopener noreferrer", textContent: label }));
  }
  node.append(text.slice(at));
  return node;
}

const cells = line => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map(cell => cell.trim().replaceAll("\\|", "|"));
const isTable = (lines, i) => lines[i].includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[i + 1] ?? "") &&
  cells(lines[i]).length === cells(lines[i + 1]).length;
const kItem = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

// A code block says its language, and its button copies what it holds at the time.
function codeBlock(language, body) {
  const head = make("div", { className: "code-head" }, make("span", { textContent: language || "text" }),
    make("button", { type: "button", className: "copy-code", textContent: "Copy" }));
  return make("div", { className: "code" }, head, make("pre", { tabIndex: 0 }, make("code", { textContent: body })));
}

function table(lines) {
  const row = (tag, line, count) => make("tr", {}, ...Array.from({ length: count }, (_, i) => inline(make(tag), cells(line)[i] ?? "")));
  const count = cells(lines[0]).length;
  return make("div", { className: "table", tabIndex: 0 }, make("table", {}, make("thead", {}, row("th", lines[0], count)),
    make("tbody", {}, ...lines.slice(2).map(line => row("td", line, count)))));
}

// Items of deeper indentation go into a list of the item before them.
function list(items) {
  const ordered = /\d/.test(items[0].mark);
  const node = make(ordered ? "ol" : "ul", ordered ? { start: parseInt(items[0].mark, 10) } : {});
  for (let i = 0; i < items.length;) {
    let end = i + 1;
    while (end < items.length && items[end].indent > items[i].indent) end++;
    const item = inline(make("li"), items[i].text);
    if (end > i + 1) item.append(list(items.slice(i + 1, end)));
    node.append(item);
    i = end;
  }
  return node;
}

function markdown(node, text) {
  const lines = text.split("\n");
  const starts = i => /^\s*(```|~~~)|^#{1,6}\s|^>/.test(lines[i]) || kItem.test(lines[i]) || isTable(lines, i);
  for (let i = 0; i < lines.length;) {
    const fence = lines[i].match(/^\s*(`{3,}|~{3,})\s*([^\s`]*)/);
    const heading = lines[i].match(/^(#{1,6})\s+(.*)$/);
    const begin = i;
    if (!lines[i].trim()) {
      i++;
    } else if (fence) {
      for (i++; i < lines.length && !lines[i].trim().startsWith(fence[1]);) i++;
      node.append(codeBlock(fence[2], lines.slice(begin + 1, i++).join("\n")));
    } else if (heading) {
      node.append(inline(make(`h${Math.min(6, heading[1].length + 1)}`), heading[2]));
      i++;
    } else if (isTable(lines, i)) {
      while (i < lines.length && lines[i].includes("|")) i++;
      node.append(table(lines.slice(begin, i)));
    } else if (lines[i].startsWith(">")) {
      while (i < lines.length && lines[i].startsWith(">")) i++;
      node.append(inline(make("blockquote"), lines.slice(begin, i).map(line => line.replace(/^>\s?/, "")).join("\n")));
    } else if (kItem.test(lines[i])) {
      const items = [];
      for (; i < lines.length && lines[i].trim() && !/^\s*(```|~~~)/.test(lines[i]); i++) {
        const [, indent, mark, words] = lines[i].match(kItem) ?? [];
        if (mark) items.push({ indent: indent.length, mark, text: words });
        else items.at(-1).text += `\n${lines[i].trim()}`;
      }
      node.append(list(items));
    } else {
      for (i++; i < lines.length && lines[i].trim() && !starts(i);) i++;
      node.append(inline(make("p"), lines.slice(begin, i).join("\n")));
    }
  }
}

document.addEventListener("click", event => {
  const button = event.target.closest?.(".copy-code");
  if (button) copy(button.closest(".code").querySelector("code").textContent);
});

function showText(target, text) {
  if (target.source === text) return;
  target.source = text;
  const node = make("div");
  markdown(node, text);
  patch(target, node);
}

// Makes the children of one node those of another. What is equal stays, and text grows in place: a selection survives.
function patch(node, wanted) {
  const old = [...node.childNodes];
  const next = [...wanted.childNodes];
  next.forEach((child, i) => {
    const before = old[i];
    if (!before) node.append(child);
    else if (before.nodeName !== child.nodeName || before.className !== child.className || before.href !== child.href || before.start !== child.start) before.replaceWith(child);
    else if (before.nodeType !== Node.TEXT_NODE) patch(before, child);
    else if (child.data.startsWith(before.data)) before.appendData(child.data.slice(before.length));
    else before.data = child.data;
  });
  for (const child of old.slice(next.length)) child.remove();
}
