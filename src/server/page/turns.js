// The turns of a conversation as they are shown.
"use strict";

function showCall(call, turn) {
  const result = make("textarea", { rows: 2, value: call.result ?? "", placeholder: "Its result", ariaLabel: `Result of ${call.name}` });
  result.oninput = () => { call.result = result.value; };
  const node = make("div", { className: "call" }, make("span"), result);
  node.update = () => {
    node.firstChild.textContent = `${call.name}(${call.arguments})`;
    result.hidden = Boolean(turn.active);
  };
  return node;
}

const drawn = new WeakMap();  // Of a turn: what shows it. A redraw keeps it, with what was opened or selected in it.

function showTurn(turn) {
  if (!drawn.has(turn)) drawn.set(turn, drawTurn(turn));
  drawn.get(turn).update?.();
  return drawn.get(turn);
}
function drawTurn(turn) {
  if (turn.role === "user") return make("div", { className: "turn user", textContent: turn.content });
  const node = make("div", { className: "turn assistant" });
  const thinking = make("details", { open: false }, make("summary", { textContent: "Reasoning" }), make("div"));
  const text = make("div", { className: "text" });
  const calls = make("div");
  const foot = make("div", { className: "foot" });
  node.append(thinking, text, calls, foot);
  node.update = () => {
    thinking.hidden = !turn.reasoning;
    patch(thinking.lastChild, make("div", {}, turn.reasoning));
    thinking.firstChild.textContent = turn.content || !turn.active ? "Reasoning" : "Reasoning …";
    showText(text, turn.content);
    turn.calls.forEach((call, i) => {
      if (!calls.children[i]) calls.append(showCall(call, turn));
      calls.children[i].update();
    });
    foot.replaceChildren();
    if (turn.error) foot.append(make("span", { className: "error", textContent: turn.error }));
    if (turn.note) foot.append(make("span", { textContent: turn.note }));
    if (!turn.active && current && current.turns.at(-1) === turn) {
      foot.append(make("button", { type: "button", textContent: "Again", title: "Ctrl+Shift+R", onclick: regenerate }));
      if (turn.calls.length) foot.append(make("button", { type: "button", textContent: "Send results", onclick: sendResults }));
    }
    if (!turn.active && turn.content) {
      foot.append(make("button", { type: "button", textContent: "Copy", onclick: () => copy(turn.content) }));
    }
  };
  return node;
}

function show(toEnd = true) {
  $("title").textContent = current ? current.title : "dsv4";
  const turns = current ? current.turns.map(showTurn)
    : [make("p", { className: "empty", textContent: "Enter sends, Shift+Enter breaks the line, Escape stops." })];
  const log = $("log");
  if (turns.length !== log.children.length || turns.some((node, i) => node !== log.children[i])) {
    for (const node of [...log.children]) if (!turns.includes(node)) node.remove();
    turns.forEach((node, i) => { if (log.children[i] !== node) log.insertBefore(node, log.children[i] ?? null); });
  }
  if (toEnd) log.scrollTop = log.scrollHeight;
  $("list").replaceChildren(...conversations.filter(matches).map(conversation => {
    const entry = make("div", { className: "entry" },
      make("button", { type: "button", textContent: conversation.title, onclick: () => { select(conversation); } }),
      make("button", { type: "button", textContent: "×", ariaLabel: `Delete ${conversation.title}`, onclick: () => remove(conversation) }));
    entry.setAttribute("aria-current", conversation === current);
    return entry;
  }));
  $("rename").hidden = !current;
  const busy = running !== null;
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("think").setAttribute("aria-pressed", settings.thinking);
  $("think").textContent = settings.thinking ? "Thinking: on" : "Thinking: off";
  document.documentElement.dataset.theme = settings.theme || "";
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
