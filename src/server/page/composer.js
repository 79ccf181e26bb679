// The question in the making: text, files, and how much of the context it takes. Each conversation has a draft of its own.
"use strict";

let files = [];     // {name, text}, to go with the next question.
let context = 0;    // Tokens that a conversation may have; 0: not known.
let draft = 0;      // Tokens of what is being asked.
const draftFiles = new Map();  // By a conversation's id ("": the next one): files, until the page is closed.

const draftKey = () => `dsv4.draft.${current?.id ?? ""}`;
function keepDraft() {
  const text = $("ask").value;
  draftFiles.set(current?.id ?? "", files);
  try {
    if (text) localStorage.setItem(draftKey(), text);
    else localStorage.removeItem(draftKey());
  } catch { /* Full or forbidden: a reload forgets it. */ }
}
function takeDraft() {
  let text = "";
  try { text = localStorage.getItem(draftKey()) ?? ""; } catch { /* Forbidden. */ }
  $("ask").value = text;
  files = draftFiles.get(current?.id ?? "") ?? [];
  draft = 0;
  showFiles();
  grow();
}
function forgetDraft(id) {
  draftFiles.delete(id);
  try { localStorage.removeItem(`dsv4.draft.${id}`); } catch { /* Forbidden. */ }
}

async function addFiles(list) {
  const refused = [];
  for (const file of list) {
    const { text, fault } = await readAttachment(file);
    if (fault) refused.push(fault);
    else files = [...files, { name: file.name, text }];
  }
  settled("files");
  if (refused.length) notice(`Not attached: ${refused.join("; ")}. ${kAttachable}`, { about: "files", stays: true });
  showFiles();
  keepDraft();
  $("ask").focus();
}

function showFiles() {
  $("files").replaceChildren(...files.map(file => make("span", { className: "file" }, icon("file"), make("span", {}, file.name),
    iconButton("close", `Remove ${file.name}`, () => { files = files.filter(other => other !== file); showFiles(); keepDraft(); $("ask").focus(); }))));
  $("files").hidden = !files.length;
  countDraft();
}

// Tokens of the draft, counted by the server once typing pauses.
let counting = null;
function countDraft() {
  clearTimeout(counting);
  $("send").disabled = !$("ask").value.trim() && !files.length;
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

// Tokens that a conversation has so far. An answer that was cut off never said how many: its pieces were counted.
const contextOf = conversation => conversation?.turns.findLast(turn => turn.tokens)?.tokens ?? 0;

// How full the context is: what the last answer took, what is being written, what is being asked.
function showMeter() {
  const run = runs.get(current);
  const estimated = current?.turns.findLast(turn => turn.tokens)?.estimated || run;
  const used = run ? run.before + run.pieces : contextOf(current) + draft;
  const far = text => make("span", { className: "far" }, text);  // Left out where there is no room.
  const parts = [];
  if (run?.pieces > 4 && run.seconds > 0.1) parts.push(far(`${counted(run.pieces, "token")}, ${(run.pieces / run.seconds).toFixed(1)} tok/s · `));
  if (!run && draft) parts.push(far(`${counted(draft, "token")} to send · `));
  if (context && used) parts.push(100 * used < context ? "< 1 %" : `${Math.round(100 * used / context)} %`);
  $("meter-text").replaceChildren(...parts);
  $("meter").parentNode.title = context && used ? `${estimated ? "≈ " : ""}${number(used)} of ${counted(context, "token")} of context` : "";
  $("meter").hidden = !context || !used;
  $("meter").max = context || 1;
  $("meter").high = 0.9 * (context || 1);
  $("meter").value = used;
}

function grow() {
  $("ask").style.height = "auto";
  $("ask").style.height = `${$("ask").scrollHeight}px`;
}

async function send(event) {
  event?.preventDefault();
  const content = $("ask").value.trim();
  if (!content && !files.length) return;
  const conversation = current;
  if (!await isFree(conversation) || current !== conversation) return;
  const question = { role: "user", content, ...(files.length && { files }) };
  forgetDraft(conversation?.id ?? "");
  if (!current) {
    const title = (content || files.map(file => file.name).join(", ")).replace(/\s+/g, " ");
    conversations.unshift({ id: fresh(), version: 0, title: title.length > 60 ? `${title.slice(0, 59)}…` : title, turns: [], settings: copyOfChosen() });
    current = conversations[0];
    rememberCurrent();
  }
  current.turns.push(question);
  const tokens = draft;
  $("ask").value = "";
  files = [];
  showFiles();
  grow();
  settled("files", "busy");
  draft = tokens;
  const done = answer(current);
  draft = 0;
  await done;
}

async function sendResults() {
  const conversation = current;
  if (conversation?.turns.at(-1)?.calls?.length && await isFree(conversation)) answer(conversation);
}

$("form").addEventListener("submit", send);
$("ask").addEventListener("input", () => { grow(); keepDraft(); countDraft(); });
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
const kExampleList = $("examples");  // Out of the document while a conversation is shown.
kExampleList.addEventListener("click", event => {
  const example = event.target.closest("button");
  if (example) { $("ask").value = example.dataset.ask; send(); }
});

// Questions that the model's folder offers, else those of the page.
const kExamples = [...kExampleList.children];
function showExamples(offered = []) {
  const made = offered.map(({ title, ask }) => {
    const example = button("", null);
    example.dataset.ask = ask;
    example.append(make("b", {}, title), make("span", {}, ask));
    return example;
  });
  kExampleList.replaceChildren(...(made.length ? made : kExamples));
  kExampleList.classList.remove("unknown");
}
