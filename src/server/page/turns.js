// The turns of a conversation as they are shown.
"use strict";

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

const drawn = new WeakMap();  // By turn: its node. A redraw keeps it, with what was opened or selected in it.

function showTurn(turn) {
  if (!drawn.has(turn)) drawn.set(turn, drawTurn(turn));
  drawn.get(turn).update();
  return drawn.get(turn);
}

// A fault of an answer, and what can be done about it.
function drawFault(turn, last) {
  const node = make("div", { className: turn.error === kCut || turn.error === "stopped" || turn.about === "model" ? "fault mild" : "fault" });
  const said = { [kCut]: "Cut at the length limit", stopped: hasFailed(turn) ? "Stopped before the answer began" : "Stopped" }[turn.error] ?? turn.error;
  node.append(make("span", { className: "error", textContent: said }));
  if (turn.about === "key") node.append(button("Settings", openSettings));
  if (hasFailed(turn) && turn.about === "model" && last) {
    node.append(button("Answer all the same", () => regenerate(turn, true)));
  } else if (hasFailed(turn)) {
    if (last) node.append(button("Send again", () => regenerate(turn), { className: "strong" }));
    else node.append(make("span", { textContent: "The model has not read this question." }));
  } else if (canGoOn(turn) && last) {
    node.append(button("Continue", () => goOn(), { className: "strong", title: "Go on where it was cut" }));
    if (!turn.content) node.append(button("Answer now", () => goOn(true), { title: "Close the reasoning and answer" }));
  }
  return node;
}

// The lines below a turn. They are made anew only when something in them changes: a button keeps the focus.
function drawFoot(turn, startEdit) {
  const foot = make("div", { className: "foot" });
  let shown = "";
  foot.update = () => {
    const last = current?.turns.at(-1) === turn;
    const now = JSON.stringify([turn.error, turn.note, turn.active, last, turn.edited, Boolean(turn.content), turn.branches?.at, turn.branches?.tails.length, turn.calls?.length]);
    if (now === shown) return;
    shown = now;
    foot.replaceChildren();
    if (turn.active) return;
    if (turn.error) foot.append(drawFault(turn, last));
    else if (turn.notice) foot.append(make("div", { className: "fault mild" }, turn.notice));
    const tools = make("div", { className: "tools" });
    if (turn.branches) {
      const { at, tails } = turn.branches;
      tools.append(make("span", { className: "branches" },
        iconButton("left", "Previous branch", () => showBranch(current, turn, at - 1), { disabled: at === 0 }),
        make("span", { textContent: `${at + 1} / ${tails.length}` }),
        iconButton("right", "Next branch", () => showBranch(current, turn, at + 1), { disabled: at === tails.length - 1 })));
    }
    if (turn.content) tools.append(iconButton("copy", "Copy", event => copyBy(event.currentTarget, turn.content)));
    if (turn.role === "assistant" && !hasFailed(turn)) {
      tools.append(iconButton("again", "Again", () => regenerate(turn), { title: last ? "Another answer (Ctrl+Shift+R)" : "Another answer" }));
    }
    if (!turn.calls?.length && !hasFailed(turn)) tools.append(iconButton("edit", "Edit", startEdit));
    if (turn.edited && !turn.error && last && canGoOn(turn)) tools.append(button("Continue", () => goOn(), { title: "Go on from what it now says" }));
    if (turn.calls?.length && last) tools.append(button("Send results", sendResults, { className: "strong" }));
    if (turn.note) tools.append(make("details", { className: "numbers" }, make("summary", { title: turn.note }, turn.speed ?? "Statistics"), make("span", {}, turn.note)));
    if (tools.hasChildNodes()) foot.append(tools);
  };
  return foot;
}

// A text field in place of what the turn says, until it is sent or given up.
function startEdit(turn, node, body) {
  if (node.querySelector(".edit")) return;
  const conversation = current;
  const field = make("textarea", { value: turn.content, dir: "auto", ariaLabel: turn.role === "user" ? "Your message, changed" : "The answer, changed" });
  const done = () => { form.remove(); body.hidden = false; foot.hidden = false; foot.querySelector("button")?.focus(); };
  const form = make("form", { className: "edit" }, field, make("div", { className: "foot" },
    button("Cancel", done), make("button", { className: "primary", textContent: turn.role === "user" ? "Send" : "Save" })));
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
  const said = make("div", { className: "said", dir: "auto" });
  const node = make("article", { className: "turn user", ariaLabel: "You" });
  const foot = drawFoot(turn, () => startEdit(turn, node, said));
  node.append(make("div", { className: "with" }), said, foot);
  node.update = () => {
    if (node.files !== turn.files) {
      node.files = turn.files;
      node.firstChild.replaceChildren(...(turn.files ?? []).map(({ name, text }) => make("details", { className: "attached" },
        make("summary", { textContent: `${name}, ${counted(text.length, "character")}` }), make("pre", { textContent: text, tabIndex: 0 }))));
    }
    if (said.textContent !== turn.content) said.textContent = turn.content;
    said.classList.toggle("none", !turn.content);
    const next = current?.turns[current.turns.indexOf(turn) + 1];
    node.classList.toggle("unread", hasFailed(next));
    foot.update();
  };
  return node;
}

// The model's reasoning. It is open while it comes, and closes when the answer begins, unless somebody opened or closed it.
function drawReasoning(turn) {
  const summary = make("summary");
  const words = make("div", { className: "thoughts", dir: "auto" });
  const node = make("details", { className: "reasoning" }, summary, words);
  let chosenByHand = false;
  summary.onclick = () => { chosenByHand = true; };
  node.update = () => {
    const live = Boolean(turn.active && !turn.content && !turn.calls.length);
    node.hidden = !turn.reasoning;
    if (!chosenByHand && node.classList.contains("live") !== live) node.open = live;
    node.classList.toggle("live", live);
    if (node.said !== turn.reasoning) patch(words, make("div", {}, turn.reasoning));
    node.said = turn.reasoning;
    if (live) words.scrollTop = words.scrollHeight;
    const time = turn.thought === undefined || turn.thought < 50 ? "" : ` for ${seconds(turn.thought)}`;
    const label = [`${live ? "Thinking" : "Thought"}${time}`, turn.thoughtTokens && counted(turn.thoughtTokens, "token"), turn.effort && `effort ${turn.effort}`,
      turn.budget && `at most ${counted(turn.budget, "token")}`].filter(Boolean).join(" · ");
    if (summary.textContent !== label) summary.textContent = label;
  };
  return node;
}

function drawAnswer(turn) {
  const node = make("article", { className: "turn assistant", ariaLabel: "Answer" });
  const reasoning = drawReasoning(turn);
  const text = make("div", { className: "text" });
  const waiting = make("div", { className: "waiting", ariaHidden: "true" }, make("span"), make("span"), make("span"));
  const calls = make("div");
  const foot = drawFoot(turn, () => startEdit(turn, node, text));
  node.append(reasoning, text, waiting, calls, foot);
  node.update = () => {
    reasoning.update();
    showText(text, turn.content);
    text.classList.toggle("grows", Boolean(turn.active && turn.content));
    waiting.hidden = !turn.active || Boolean(turn.content || turn.reasoning || turn.calls.length);
    turn.calls.forEach((call, i) => {
      if (!calls.children[i]) calls.append(showCall(call, turn));
      calls.children[i].update();
    });
    foot.update();
  };
  return node;
}

// Makes `wanted` the children of a node and moves as few as it can.
function place(node, wanted) {
  const keeps = new Set(wanted);
  for (const child of [...node.children]) if (!keeps.has(child)) child.remove();
  wanted.forEach((child, i) => { if (node.children[i] !== child) node.insertBefore(child, node.children[i] ?? null); });
}

const kFirst = $("first");

// The way back to the end, while something else is read.
const showEnd = () => { $("end").hidden = atEnd(); };

function show(toEnd = true) {
  $("title").textContent = current ? current.title : "New conversation";
  place($("log"), current ? current.turns.map(showTurn) : [kFirst]);
  if (toEnd) $("log").scrollTop = current ? $("log").scrollHeight : 0;
  showEnd();
  showList();
  showModel();
  $("rename").hidden = !current;
  const busy = runs.has(current);
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  const thinks = chosen().thinking;
  $("think").setAttribute("aria-pressed", thinks);
  $("think-text").textContent = thinks && chosen().effort ? `Thinking: ${chosen().effort}` : "Thinking";
  $("think").title = `${thinks ? "The model reasons before it answers" : "The model answers at once"} (Ctrl+Shift+E)`;
  document.documentElement.dataset.theme = settings.theme || "";
  showMeter();
}

function openMenu(open) {
  $("nav").classList.toggle("open", open);
  $("menu").setAttribute("aria-expanded", open);
}
function rememberCurrent() {
  try { sessionStorage.setItem("dsv4.current", current?.id ?? ""); } catch { /* Forbidden: a reload opens none. */ }
}
function select(conversation) {
  current = conversation;
  unseen.delete(conversation);
  rememberCurrent();
  openMenu(false);
  endRename();
  takeDraft();
  show();
  $("ask").focus();
}
async function remove(conversation) {
  runs.get(conversation)?.controller.abort();
  conversations = conversations.filter(other => other !== conversation);
  conversation.deleted = Date.now();
  if (current === conversation) select(null);
  else show(false);
  notice(`Deleted: ${conversation.title}`, {
    action: "Undo", about: "deleted",
    run: async () => {
      delete conversation.deleted;
      conversations.unshift(conversation);
      await keep(conversation);
      select(conversation);
    },
  });
  await keep(conversation);
}
