// The list of conversations: search, rename, export and import.
"use strict";

const matches = conversation => {
  const wanted = $("search").value.trim().toLowerCase();
  return !wanted || conversation.title.toLowerCase().includes(wanted) ||
    [...everyTurn(conversation.turns)].some(turn => turn.content?.toLowerCase().includes(wanted));
};

async function rename() {
  const title = current && prompt("Name of this conversation", current.title)?.trim();
  if (!title) return;
  current.title = title;
  show(false);
  await keep(current);
}

function exportAll() {
  const text = JSON.stringify({ format: "dsv4 conversations", version: 1, conversations: conversations.map(({ title, turns, settings: set }) => ({ title, turns, settings: set })) });
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: "dsv4-conversations.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// What is read in is added; nothing is replaced. A file of another form is refused whole.
async function importText(text) {
  let read;
  try { read = JSON.parse(text); } catch (error) { notice(`Not imported: the file is not JSON (${error.message}).`); return; }
  const isList = (turns, size) => Array.isArray(turns) && turns.length >= size && turns.every(isTurn);
  const isTurn = turn => typeof turn?.content === "string" && isBranches(turn.branches) && (turn.role === "user"
    ? turn.files === undefined || (Array.isArray(turn.files) && turn.files.every(file => typeof file?.name === "string" && typeof file.text === "string"))
    : turn.role === "assistant" && typeof turn.reasoning === "string" && Array.isArray(turn.calls) &&
      turn.calls.every(call => typeof call?.name === "string" && typeof call.arguments === "string"));
  const isBranches = branches => branches === undefined || (Array.isArray(branches?.tails) && branches.tails[branches.at] === null &&
    branches.tails.every((tail, i) => i === branches.at || isList(tail, 1)));
  const isSettings = set => set === undefined || (typeof set === "object" && set !== null && Object.entries(set).every(([name, value]) =>
    kOfConversation.includes(name) && ["string", "number", "boolean"].includes(typeof value)));
  const good = read?.format === "dsv4 conversations" && read.version === 1 && Array.isArray(read.conversations) &&
    read.conversations.every(one => typeof one?.title === "string" && isList(one.turns, 0) && isSettings(one.settings));
  if (!good) { notice("Not imported: wanted a file that Export of this page wrote (format \"dsv4 conversations\", version 1)."); return; }
  for (const { title, turns, settings: set } of read.conversations) {
    for (const turn of everyTurn(turns)) delete turn.active;
    const conversation = { id: fresh(), version: 0, title, turns, ...(set && { settings: set }) };
    conversations.unshift(conversation);
    if (!await keep(conversation)) break;
  }
  show(false);
}

$("search").addEventListener("input", () => show(false));
$("rename").addEventListener("click", rename);
$("export").addEventListener("click", exportAll);
$("import").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", async () => {
  for (const file of $("file").files) await importText(await file.text());
  $("file").value = "";
});
