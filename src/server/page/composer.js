// What is being asked: text, files, and how much of the context it takes.
"use strict";

const kLargestFile = 4 << 20;
let files = [];     // {name, text}, to go with the next question.
let context = 0;    // Tokens that a conversation may have; 0: not known.
let draft = 0;      // Tokens of what is being asked.

// Text of UTF-8, or of UTF-16 that says so; anything else is no text.
function decodeText(bytes) {
  const [a, b] = bytes;
  const encoding = a === 0xff && b === 0xfe ? "utf-16le" : a === 0xfe && b === 0xff ? "utf-16be" : "utf-8";
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
    return text.includes("\0") ? null : text.replaceAll("\r\n", "\n");
  } catch { return null; }
}

async function addFiles(list) {
  const refused = [];
  for (const file of list) {
    if (file.size > kLargestFile) { refused.push(`${file.name} has ${(file.size / (1 << 20)).toFixed(1)} MB, at most 4 MB are taken`); continue; }
    let text = null;
    try { text = decodeText(new Uint8Array(await file.arrayBuffer())); } catch (error) { refused.push(`${file.name} cannot be read (${error.message})`); continue; }
    if (text === null) refused.push(`${file.name} is no text in UTF-8 or UTF-16`);
    else files.push({ name: file.name, text });
  }
  if (refused.length) notice(`Not attached: ${refused.join("; ")}.`);
  showFiles();
  $("ask").focus();
}

function showFiles() {
  $("files").replaceChildren(...files.map(file => make("span", { className: "file" }, file.name,
    button("×", () => { files = files.filter(other => other !== file); showFiles(); $("ask").focus(); }, { ariaLabel: `Remove ${file.name}` }))));
  $("files").hidden = !files.length;
  countDraft();
}

// Tokens of the draft, counted by the server once typing pauses.
let counting = null;
function countDraft() {
  clearTimeout(counting);
  try { sessionStorage.setItem("dsv4.draft", $("ask").value); } catch { /* Full or forbidden: a reload forgets it. */ }
  const text = questionText({ files, content: $("ask").value });
  if (!text) { draft = 0; showMeter(); return; }
  counting = setTimeout(async () => {
    try {
      const reply = await fetch("tokenize", { method: "POST", headers: requestHeaders(), body: JSON.stringify({ prompt: text }) });
      if (reply.ok) draft = (await reply.json()).count;
    } catch { /* No server: the next request says so. */ }
    showMeter();
  }, 400);
}

const number = value => value.toLocaleString("en");

// How full the context is: what the last answer took, what is being written, what is being asked.
function showMeter() {
  const busy = running !== null && running.conversation === current;
  const said = current?.turns.findLast(turn => turn.tokens)?.tokens ?? 0;
  const used = said + (busy ? running.pieces : draft);
  const parts = [];
  if (busy && running.pieces) parts.push(`≈ ${running.pieces} tokens, ${(running.pieces / Math.max(running.seconds, 0.001)).toFixed(1)} tok/s`);
  if (!busy && draft) parts.push(`${number(draft)} to send`);
  if (context) parts.push(`${number(used)} of ${number(context)} tokens of context`);
  $("meter-text").textContent = parts.join(" · ");
  $("meter").hidden = !context;
  $("meter").max = context || 1;
  $("meter").high = 0.9 * (context || 1);
  $("meter").value = used;
}

function grow() {
  $("ask").style.height = "auto";
  $("ask").style.height = `${$("ask").scrollHeight + 2}px`;
}

async function send(event) {
  event?.preventDefault();
  const content = $("ask").value.trim();
  if (!content && !files.length) return;
  if (running) { notice(kBusy); return; }
  if (current && !await isFree(current)) return;
  if (running) return;
  if (!current) {
    const title = content || files.map(file => file.name).join(", ");
    conversations.unshift({ id: fresh(), version: 0, title: title.slice(0, 60), turns: [], settings: copyOfChosen() });
    select(conversations[0]);
  }
  current.turns.push({ role: "user", content, ...(files.length && { files }) });
  $("ask").value = "";
  files = [];
  draft = 0;
  showFiles();
  grow();
  answer(current);
}

async function sendResults() {
  const conversation = current;
  if (conversation?.turns.at(-1)?.calls?.length && await isFree(conversation)) answer(conversation);
}

$("form").addEventListener("submit", send);
$("ask").addEventListener("input", () => { grow(); countDraft(); });
$("ask").addEventListener("keydown", event => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event); });
$("ask").addEventListener("paste", event => {
  if (!event.clipboardData.files.length) return;
  event.preventDefault();
  addFiles([...event.clipboardData.files]);
});
$("attach").addEventListener("click", () => $("attached").click());
$("attached").addEventListener("change", async () => { await addFiles([...$("attached").files]); $("attached").value = ""; });
const bringsFiles = event => [...event.dataTransfer?.types ?? []].includes("Files");
addEventListener("dragover", event => { if (bringsFiles(event)) { event.preventDefault(); document.body.classList.add("dropping"); } });
addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
addEventListener("drop", event => {
  document.body.classList.remove("dropping");
  if (!bringsFiles(event)) return;
  event.preventDefault();
  addFiles([...event.dataTransfer.files]);
});
