// What every file of the page uses: nodes, what is remembered, the state, notices, the clipboard.
"use strict";
const $ = id => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
};
const read = (key, otherwise) => { try { return JSON.parse(localStorage.getItem(key)) ?? otherwise; } catch { return otherwise; } };
const write = (key, value) => { try { localStorage.setItem(key, JSON.stringify(value)); } catch { /* Full or forbidden: the page still works. */ } };

let conversations = [];   // {id, title, turns, settings, changed, version, deleted}, the newest first.
let settings = { temperature: 1, top_p: 1, top_k: 0, min_p: 0, thinking: true, ...read("dsv4.settings", {}) };
let current = null;   // One of the conversations.
let running = null;   // {controller, conversation} while an answer comes.
let unsaved = null;   // The conversation whose last words may not be stored yet.
let leaving = false;  // The page is being closed or loaded again.
let database = null;
const channel = new BroadcastChannel("dsv4");  // Other tabs: {changed: id}, {ask: id}, {alive: id}.
const alive = new Set();  // Conversations that another tab said it is answering.

function save() { write("dsv4.settings", settings); }

function notice(text, action, run) {
  $("notice").firstChild.textContent = text;
  $("notice-action").hidden = !action;
  $("notice-action").textContent = action || "";
  $("notice-action").onclick = () => { $("notice").hidden = true; run?.(); };
  $("notice").hidden = false;
}

const fresh = () => [...crypto.getRandomValues(new Uint32Array(4))].map(word => word.toString(36)).join("-");

// navigator.clipboard exists only where the page came over https or from this machine.
async function copy(text) {
  try {
    if (navigator.clipboard) { await navigator.clipboard.writeText(text); return; }
  } catch { /* Not allowed: the older way. */ }
  const area = make("textarea", { value: text, readOnly: true });
  area.style.position = "fixed";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) notice("The browser did not let the page copy.");
}
