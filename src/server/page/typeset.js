// Formulas by KaTeX, and the colours of code by highlight.js, as nodes: neither makes markup of text here.
"use strict";

// Commands that TeX on paper has and a page does without.
const kGobble = { tokens: [], numArgs: 1 };
const kMacros = { "\\label": kGobble, "\\require": kGobble, "\\eqref": "(\\text{#1})", "\\ref": "\\text{#1}", "\\bm": "\\boldsymbol{#1}" };

// KaTeX sets some widths by an attribute, which the page's policy does not take; from a script they are allowed.
function* virtualNodes(node) {
  yield node;
  for (const child of node.children ?? []) yield* virtualNodes(child);
}

// Draws what a node of class `tex` has as its source. What KaTeX does not know stays as it was written, with the reason.
function drawFormula(shell) {
  const display = shell.classList.contains("shown");
  try {
    // No size of a formula covers the page, no macro runs for ever, no link or picture comes of it.
    const tree = katex.__renderToDomTree(shell.source, { displayMode: display, throwOnError: true, strict: false, trust: false, maxSize: 20, maxExpand: 500, macros: { ...kMacros } });
    for (const node of virtualNodes(tree)) {
      if (!node.attributes?.style) continue;
      node.attributes["data-style"] = node.attributes.style;
      delete node.attributes.style;
    }
    const drawing = tree.toNode();
    for (const node of drawing.querySelectorAll("[data-style]")) {
      node.style.cssText = node.dataset.style;
      node.removeAttribute("data-style");
    }
    shell.append(drawing);
  } catch (error) {
    shell.append(make("code", { textContent: shell.source, title: error.message.slice(0, 300) }));
  }
}

const kAlso = { cuda: "cpp", cu: "cpp", hip: "cpp", jsonl: "json", jsonc: "json", json5: "json", vue: "xml", svelte: "xml", mojo: "python", docker: "dockerfile", latex: "tex", zig: "rust" };
const kMostHighlighted = 60000;  // Characters; a longer block stays plain.
// Its text is no more trusted than the answer; see highlight().
hljs.configure({ hideUpgradeWarningAcceptNoSupportOrSecurityUpdates: true });

// Appends the text, in pieces with classes. The text of all is that of the code.
function highlight(node, language, text) {
  const name = language.toLowerCase();
  const known = Object.hasOwn(kAlso, name) ? kAlso[name] : name;
  if (!hljs.getLanguage(known) || text.length > kMostHighlighted) { node.append(text); return; }
  const open = [node];
  for (const [all, kind, closes, entity] of hljs.highlight(known, text, true).value.matchAll(/<span class="([\w -]*)">|(<\/span>)|&(amp|lt|gt|quot|#x27|#39);|[^<&]+|[<&]/g)) {
    if (kind !== undefined) { open.push(make("span", { className: kind })); open.at(-2).append(open.at(-1)); }
    else if (closes) open.length > 1 && open.pop();
    else open.at(-1).append(entity ? { amp: "&", lt: "<", gt: ">", quot: "\"" }[entity] ?? "'" : all);
  }
  node.normalize();
  if (node.textContent !== text) node.replaceChildren(text);
}

// A selection with formulas is copied as what was written.
document.addEventListener("copy", event => {
  const selection = getSelection();
  if (selection.isCollapsed || !event.clipboardData) return;
  const words = selection.getRangeAt(0).cloneContents();
  if (!words.querySelector(".katex")) return;
  for (const drawing of words.querySelectorAll(".katex")) {
    const mark = drawing.closest(".shown") ? "$$" : "$";
    drawing.replaceWith(`${mark}${drawing.querySelector("annotation")?.textContent.trim() ?? drawing.textContent}${mark}`);
  }
  for (const part of words.querySelectorAll("p, li, h3, h4, h5, h6, tr, pre, .shown")) part.append("\n");
  event.clipboardData.setData("text/plain", words.textContent.replace(/\n+$/, ""));
  event.preventDefault();
});
