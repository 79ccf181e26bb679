// The common parts of the page's files: nodes, what is remembered, the state, notices, the clipboard.
"use strict";
const $ = id => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
};
const read = (key, otherwise) => { try { return JSON.parse(localStorage.getItem(key)) ?? otherwise; } catch { return otherwise; } };
const number = value => value.toLocaleString("en");
const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const write = (key, value) => { try { localStorage.setItem(key, JSON.stringify(value)); } catch { /* Full or forbidden: the page still works. */ } };

// A picture of page.html's sheet. Whoever does not see it hears the name of the button.
function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const node = document.createElementNS(space, "svg");
  node.setAttribute("class", "icon");
  node.setAttribute("aria-hidden", "true");
  node.append(document.createElementNS(space, "use"));
  node.firstChild.setAttribute("href", `#i-${name}`);
  return node;
}
const button = (text, run, properties = {}) => make("button", { type: "button", textContent: text, onclick: run, ...properties });
const iconButton = (name, label, run, properties = {}) =>
  make("button", { type: "button", className: "plain", ariaLabel: label, title: label, onclick: run, ...properties }, icon(name), make("span", { className: "heard" }, label));

let conversations = [];   // {id, title, turns, settings, changed, version, deleted}, the newest first.
let settings = { temperature: 1, top_p: 1, top_k: 0, min_p: 0, thinking: true, ...read("dsv4.settings", {}) };
let current = null;   // One of the conversations.
const runs = new Map();  // By conversation, while its answer comes: {controller, pieces, seconds, before}.
const unsaved = new Set();  // Conversations whose last words may not be stored yet.
const unseen = new WeakSet();  // Conversations that were answered while another was shown.
let leaving = false;  // The page is being closed or loaded again.
let database = null;
const channel = new BroadcastChannel("dsv4");  // Other tabs: {changed: id}, {ask: id}, {alive: id}.
const alive = new Set();  // Conversations that another tab said it is answering.

function save() { write("dsv4.settings", settings); }

// A line above the conversation. `about` says of what it speaks: settled(about) takes it away. One that waits for an action stays (`stays`);
// the others go by themselves, unless somebody points at them.
const kNoticeMilliseconds = 10000;
let fading = null;
function notice(text, { action, run, about = "", stays = false } = {}) {
  $("notice-text").textContent = text;
  $("notice-action").hidden = !action;
  $("notice-action").textContent = action || "";
  $("notice-action").onclick = () => { hideNotice(); run?.(); };
  $("notice").dataset.about = about;
  $("notice").hidden = false;
  clearTimeout(fading);
  if (!stays) fade();
}
function fade() {
  fading = setTimeout(() => ($("notice").matches(":hover, :focus-within") ? fade() : hideNotice()), kNoticeMilliseconds);
}
function hideNotice() {
  clearTimeout(fading);
  $("notice").hidden = true;
}
function settled(...about) {
  if (about.includes($("notice").dataset.about)) hideNotice();
}

const fresh = () => [...crypto.getRandomValues(new Uint32Array(4))].map(word => word.toString(36)).join("-");

// navigator.clipboard exists only where the page came over https or from this machine.
async function copy(text) {
  try {
    if (navigator.clipboard) { await navigator.clipboard.writeText(text); return true; }
  } catch { /* Not allowed: the older way. */ }
  const area = make("textarea", { value: text, readOnly: true });
  area.style.position = "fixed";
  const focus = document.activeElement;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focus?.focus();
  if (!done) notice("The browser did not let the page copy. Mark the text and press Ctrl+C.");
  return done;
}

// Copies, and says so in the button.
async function copyBy(pressed, text) {
  if (!await copy(text)) return;
  $("said").textContent = "Copied";
  const was = pressed.said ??= { nodes: [...pressed.childNodes], label: pressed.ariaLabel };
  clearTimeout(was.timer);
  pressed.replaceChildren(icon("check"), "Copied");
  pressed.ariaLabel = "Copied";
  was.timer = setTimeout(() => {
    pressed.replaceChildren(...was.nodes);
    pressed.ariaLabel = was.label;
  }, 1600);
}
