// The list of conversations: search, rename, export and import.
"use strict";

const matches = conversation => {
  const wanted = $("search").value.trim().toLowerCase();
  return !wanted || conversation.title.toLowerCase().includes(wanted) ||
    [...everyTurn(conversation.turns)].some(turn => turn.content?.toLowerCase().includes(wanted));
};

const entries = new WeakMap();  // By conversation: its line in the list.

function drawEntry(conversation) {
  const node = make("div", { className: "entry" }, make("button", { type: "button", className: "open", onclick: () => select(conversation) }, make("span"), make("i", { className: "state" })),
    iconButton("trash", "", () => remove(conversation)));
  entries.set(conversation, node);
  return node;
}

// When a conversation was last written to, in a word.
const kDay = 24 * 3600e3;
function age({ changed }) {
  const days = Math.floor((new Date().setHours(24, 0, 0, 0) - (changed ?? Date.now())) / kDay);
  return days < 1 ? "Today" : days < 2 ? "Yesterday" : days < 7 ? "This week" : days < 31 ? "This month" : "Earlier";
}
const ages = new Map();  // By word: its heading in the list.

function showList() {
  const wanted = [];
  let heading = "";
  for (const conversation of conversations.filter(matches)) {
    if (age(conversation) !== heading) {
      heading = age(conversation);
      if (!ages.has(heading)) ages.set(heading, make("h2", { textContent: heading }));
      if (!wanted.includes(ages.get(heading))) wanted.push(ages.get(heading));
    }
    const entry = entries.get(conversation) ?? drawEntry(conversation);
    const title = entry.firstChild.firstChild;
    if (title.textContent !== conversation.title) {
      title.textContent = conversation.title;
      entry.firstChild.title = conversation.title;
      entry.lastChild.ariaLabel = entry.lastChild.lastChild.textContent = `Delete ${conversation.title}`;
      entry.lastChild.title = "Delete";
    }
    const state = runs.has(conversation) ? "busy" : unseen.has(conversation) ? "unseen" : "";
    if (entry.dataset.state !== state) {
      entry.dataset.state = state;
      entry.firstChild.lastChild.textContent = { busy: "answering", unseen: "new answer" }[state] ?? "";
    }
    entry.setAttribute("aria-current", conversation === current);
    wanted.push(entry);
  }
  if (!wanted.length && $("search").value.trim()) wanted.push(kNothing);
  place($("list"), wanted);
}
const kNothing = make("p", { className: "nothing", textContent: "Nothing found." });

// The name is changed where it stands.
function startRename() {
  if (!current) return;
  $("name").value = current.title;
  $("heading").classList.add("renaming");
  $("name").focus();
  $("name").select();
}
function endRename() { $("heading").classList.remove("renaming"); }
async function takeName() {
  if (!$("heading").classList.contains("renaming")) return;
  endRename();
  const title = $("name").value.trim();
  if (!current || !title || title === current.title) return;
  current.title = title;
  show(false);
  await keep(current);
}

function exportAll() {
  const text = JSON.stringify({ format: "dsv4 conversations", version: 1,
    conversations: conversations.map(({ id, origin, title, turns, changed, settings: set }) => ({ id: origin ?? id, title, turns, changed, settings: set })) });
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: "dsv4-conversations.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  notice(`Exported: ${counted(conversations.length, "conversation")}. A file like this can be imported here or in another browser.`);
}

const isText = value => value === undefined || typeof value === "string";
const isNumber = value => value === undefined || Number.isFinite(value);
const isTurn = turn => typeof turn?.content === "string" && [turn.tokens, turn.thought, turn.thoughtTokens].every(isNumber) && isBranches(turn.branches) && isText(turn.error) && isText(turn.note) && isText(turn.notice) && isText(turn.speed) && (turn.role === "user"
  ? turn.files === undefined || (Array.isArray(turn.files) && turn.files.every(file => typeof file?.name === "string" && typeof file.text === "string"))
  : turn.role === "assistant" && typeof turn.reasoning === "string" && Array.isArray(turn.calls) &&
    turn.calls.every(call => typeof call?.name === "string" && typeof call.arguments === "string"));
const isList = (turns, size) => Array.isArray(turns) && turns.length >= size && turns.every(isTurn);
const isBranches = branches => branches === undefined || (Array.isArray(branches?.tails) && branches.tails[branches.at] === null &&
  branches.tails.every((tail, i) => i === branches.at || isList(tail, 1)));
const isSettings = set => set === undefined || (typeof set === "object" && set !== null && Object.entries(set).every(([name, value]) =>
  kOfConversation.includes(name) && ["string", "number", "boolean"].includes(typeof value)));

// Whether the second of two states of a conversation says all that the first does.
const goesOn = (turns, further) => turns.length <= further.length && turns.every((turn, i) => JSON.stringify(turn) === JSON.stringify(further[i]));

// Merges a file: a conversation that is here already stays once, one that went on elsewhere goes on here, and both of two that differ
// are kept. A file of another form is refused whole.
async function importText(text) {
  let data;
  try { data = JSON.parse(text); } catch (error) { notice(`Not imported: the file is not JSON (${error.message}).`); return; }
  const good = data?.format === "dsv4 conversations" && data.version === 1 && Array.isArray(data.conversations) &&
    data.conversations.every(one => typeof one?.title === "string" && isList(one.turns, 0) && isSettings(one.settings) && isText(one.id));
  if (!good) { notice("Not imported: wanted a file that Export of this page wrote (format \"dsv4 conversations\", version 1)."); return; }
  const count = { added: 0, continued: 0, known: 0 };
  for (const { id, title, turns, changed, settings: set } of data.conversations) {
    for (const turn of everyTurn(turns)) delete turn.active;
    const same = conversations.filter(other => (id !== undefined && (other.id === id || other.origin === id)) || (other.title === title && goesOn(turns, other.turns) && goesOn(other.turns, turns)));
    if (same.some(other => goesOn(turns, other.turns))) { count.known++; continue; }
    const shorter = same.find(other => !runs.has(other) && goesOn(other.turns, turns));
    const conversation = shorter ?? { id: fresh(), origin: id, version: 0, title, ...(set && { settings: set }) };
    conversation.turns = turns;
    if (Number.isFinite(changed)) conversation.changed = Math.max(changed, conversation.changed ?? 0);
    if (shorter) count.continued++;
    else { conversations.unshift(conversation); count.added++; }
    if (!await keep(conversation, conversation.changed)) break;
  }
  conversations.sort((a, b) => (b.changed ?? 0) - (a.changed ?? 0));
  show(false);
  notice(`Imported: ${[[count.added, "new"], [count.continued, "continued"], [count.known, "already here"]].filter(([many]) => many).map(([many, word]) => `${many} ${word}`).join(", ") || "an empty file"}.`);
}

$("search").addEventListener("input", () => showList());
$("rename").addEventListener("click", startRename);
$("title").addEventListener("dblclick", startRename);
$("name").addEventListener("keydown", event => {
  if (event.key === "Escape") { event.stopPropagation(); endRename(); $("rename").focus(); }
  if (event.key === "Enter" && !event.isComposing) { event.preventDefault(); takeName(); $("rename").focus(); }
});
$("name").addEventListener("blur", takeName);
$("export").addEventListener("click", exportAll);
$("import").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", async () => {
  for (const file of $("file").files) await importText(await file.text());
  $("file").value = "";
});
