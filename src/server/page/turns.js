// The turns of a conversation as they are shown.
"use strict";

const button = (text, run, properties = {}) => make("button", { type: "button", textContent: text, onclick: run, ...properties });
const seconds = milliseconds => `${(milliseconds / 1000).toFixed(milliseconds < 10000 ? 1 : 0)} s`;

function showCall(call, turn) {
  const result = make("textarea", { rows: 2, value: call.result ?? "", placeholder: "Its result", ariaLabel: `Result of ${call.name}` });
  result.oninput = () => { call.result = result.value; };
  result.onchange = () => keep(current);
  const node = make("div", { className: "call" }, make("span"), result);
  node.update = () => {
    node.firstChild.textContent = `${call.name}(${call.arguments})`;
    result.hidden = Boolean(turn.active);
    result.readOnly = current?.turns.at(-1) !== turn;
    if (document.activeElement !== result) result.value = call.result ?? "";
  };
  return node;
}

const drawn = new WeakMap();  // Of a turn: what shows it. A redraw keeps it, with what was opened or selected in it.

function showTurn(turn) {
  if (!drawn.has(turn)) drawn.set(turn, drawTurn(turn));
  drawn.get(turn).update();
  return drawn.get(turn);
}

// The line below a turn. It is made anew only when something in it changes: a button keeps the focus.
function drawFoot(turn, startEdit) {
  const foot = make("div", { className: "foot" });
  let shown = "";
  foot.update = () => {
    const last = current?.turns.at(-1) === turn;
    const now = JSON.stringify([turn.error, turn.note, turn.active, last, turn.edited, Boolean(turn.content), turn.branches?.at, turn.branches?.tails.length, turn.calls?.length]);
    if (now === shown) return;
    shown = now;
    foot.replaceChildren();
    if (turn.error) foot.append(make("span", { className: "error", textContent: turn.error }));
    if (turn.note) foot.append(make("span", { textContent: turn.note }));
    if (turn.active) return;
    if (turn.branches) {
      const { at, tails } = turn.branches;
      foot.append(make("span", { className: "branches" },
        button("‹", () => showBranch(current, turn, at - 1), { disabled: at === 0, ariaLabel: "Previous branch" }),
        make("span", { textContent: ` ${at + 1} / ${tails.length} ` }),
        button("›", () => showBranch(current, turn, at + 1), { disabled: at === tails.length - 1, ariaLabel: "Next branch" })));
    }
    if (turn.role === "assistant") {
      if (canGoOn(turn) && last) {
        foot.append(button("Continue", () => goOn(), { title: "Go on where it was cut" }));
        if (!turn.content) foot.append(button("Answer now", () => goOn(true), { title: "Close the reasoning and answer" }));
      }
      foot.append(button("Again", () => regenerate(turn), { title: last ? "Another answer (Ctrl+Shift+R)" : "Another answer" }));
      if (turn.calls.length && last) foot.append(button("Send results", sendResults));
    }
    if (turn.content) foot.append(button("Copy", () => copy(turn.content)));
    if (!turn.calls?.length) foot.append(button("Edit", startEdit));
  };
  return foot;
}

// A text field in place of what the turn says, until it is sent or given up.
function startEdit(turn, node, body) {
  if (node.querySelector(".edit")) return;
  const conversation = current;
  const field = make("textarea", { value: turn.content, ariaLabel: turn.role === "user" ? "Your message, changed" : "The answer, changed" });
  const done = () => { form.remove(); body.hidden = false; foot.hidden = false; foot.querySelector("button")?.focus(); };
  const form = make("form", { className: "edit" }, field, make("div", { className: "foot" },
    make("button", { textContent: turn.role === "user" ? "Send" : "Save" }), button("Cancel", done)));
  const foot = node.querySelector(".foot");
  form.onsubmit = event => {
    event.preventDefault();
    const text = field.value.trim();
    done();
    if (text && text !== turn.content) edit(conversation, turn, text);
  };
  field.onkeydown = event => {
    if (event.key === "Escape") { event.stopPropagation(); done(); }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && turn.role === "user") { event.preventDefault(); form.requestSubmit(); }
  };
  body.hidden = true;
  foot.hidden = true;
  node.insertBefore(form, foot);
  field.style.height = `${Math.min(innerHeight * 0.6, Math.max(64, field.scrollHeight + 4))}px`;
  field.focus();
}

function drawTurn(turn) {
  return turn.role === "user" ? drawQuestion(turn) : drawAnswer(turn);
}

function drawQuestion(turn) {
  const said = make("div", { className: "said" });
  const node = make("article", { className: "turn user", ariaLabel: "You" });
  const foot = drawFoot(turn, () => startEdit(turn, node, said));
  node.append(make("div"), said, foot);
  node.update = () => {
    if (node.files !== turn.files) {
      node.files = turn.files;
      node.firstChild.replaceChildren(...(turn.files ?? []).map(({ name, text }) => make("details", { className: "attached" },
        make("summary", { textContent: `${name}, ${number(text.length)} characters` }), make("pre", { textContent: text, tabIndex: 0 }))));
    }
    if (said.textContent !== turn.content) said.textContent = turn.content;
    foot.update();
  };
  return node;
}

function drawAnswer(turn) {
  const node = make("article", { className: "turn assistant", ariaLabel: "Answer" });
  const thinking = make("details", { open: false }, make("summary"), make("div"));
  const text = make("div", { className: "text" });
  const calls = make("div");
  const foot = drawFoot(turn, () => startEdit(turn, node, text));
  node.append(thinking, text, calls, foot);
  node.update = () => {
    thinking.hidden = !turn.reasoning;
    if (thinking.said !== turn.reasoning) patch(thinking.lastChild, make("div", {}, turn.reasoning));
    thinking.said = turn.reasoning;
    const label = ["Reasoning", turn.thought !== undefined && seconds(turn.thought), turn.thoughtTokens && `${turn.thoughtTokens} tokens`, turn.effort && `effort ${turn.effort}`,
      turn.budget && `at most ${turn.budget} tokens`].filter(Boolean).join(", ") + (turn.active && !turn.content ? " …" : "");
    if (thinking.firstChild.textContent !== label) thinking.firstChild.textContent = label;
    showText(text, turn.content);
    turn.calls.forEach((call, i) => {
      if (!calls.children[i]) calls.append(showCall(call, turn));
      calls.children[i].update();
    });
    foot.update();
  };
  return node;
}

const entries = new WeakMap();  // Of a conversation: its line in the list.

function drawEntry(conversation) {
  const node = make("div", { className: "entry" }, button("", () => select(conversation)), button("×", () => remove(conversation)));
  entries.set(conversation, node);
  return node;
}

function showList() {
  const wanted = conversations.filter(matches).map(conversation => {
    const entry = entries.get(conversation) ?? drawEntry(conversation);
    if (entry.firstChild.textContent !== conversation.title) {
      entry.firstChild.textContent = conversation.title;
      entry.lastChild.ariaLabel = `Delete ${conversation.title}`;
    }
    entry.setAttribute("aria-current", conversation === current);
    return entry;
  });
  place($("list"), wanted);
}

// Makes `wanted` the children of a node and moves as few as it can.
function place(node, wanted) {
  const keeps = new Set(wanted);
  for (const child of [...node.children]) if (!keeps.has(child)) child.remove();
  wanted.forEach((child, i) => { if (node.children[i] !== child) node.insertBefore(child, node.children[i] ?? null); });
}

const kEmpty = make("p", { className: "empty", textContent: "Enter sends, Shift+Enter breaks the line, Escape stops." });

function show(toEnd = true) {
  $("title").textContent = current ? current.title : "dsv4";
  place($("log"), current ? current.turns.map(showTurn) : [kEmpty]);
  if (toEnd) $("log").scrollTop = $("log").scrollHeight;
  showList();
  $("rename").hidden = !current;
  const busy = running !== null;
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("think").setAttribute("aria-pressed", chosen().thinking);
  $("think").textContent = !chosen().thinking ? "Thinking: off" : `Thinking: ${chosen().effort || "on"}`;
  document.documentElement.dataset.theme = settings.theme || "";
  showMeter();
}

function openMenu(open) {
  $("nav").classList.toggle("open", open);
  $("menu").setAttribute("aria-expanded", open);
}
function select(conversation) {
  current = conversation;
  try { sessionStorage.setItem("dsv4.current", conversation?.id ?? ""); } catch { /* Forbidden: a reload opens none. */ }
  openMenu(false);
  show();
  $("ask").focus();
}
async function remove(conversation) {
  if (running?.conversation === conversation) running.controller.abort();
  conversations = conversations.filter(other => other !== conversation);
  if (current === conversation) current = null;
  conversation.deleted = Date.now();
  show();
  notice(`Deleted: ${conversation.title}`, "Undo", async () => {
    delete conversation.deleted;
    conversations.unshift(conversation);
    await keep(conversation);
    select(conversation);
  });
  await keep(conversation);
}
