// Keyboard and buttons, the model's state, and the start.
"use strict";

$("new").addEventListener("click", () => select(null));
$("stop").addEventListener("click", () => stop());
$("menu").addEventListener("click", () => openMenu(!$("nav").classList.contains("open")));
for (const id of ["close-menu", "shade"]) $(id).addEventListener("click", () => { openMenu(false); $("menu").focus(); });
$("notice-close").addEventListener("click", hideNotice);
$("log").addEventListener("scroll", showEnd);
$("end").addEventListener("click", () => { $("log").scrollTop = $("log").scrollHeight; $("ask").focus(); });
addEventListener("pagehide", () => {
  leaving = true;
  for (const conversation of unsaved) write(`dsv4.rest.${conversation.id}`, conversation);
});
addEventListener("pageshow", () => { leaving = false; });

function stop() { runs.get(current)?.controller.abort(); }

// Escape leaves what is in front: a dialog, a word that is being composed, a search, the list of a phone. Else it stops the answer.
function leaveOrStop(event) {
  if (event.isComposing || $("settings").open || (event.target === $("search") && event.target.value)) return;
  if ($("nav").classList.contains("open")) openMenu(false);
  else stop();
}

document.addEventListener("keydown", event => {
  if (event.key === "Escape") leaveOrStop(event);
  if (!event.ctrlKey || !event.shiftKey) return;
  // Not T: browsers keep that combination for the tab that was closed last.
  const action = { O: () => select(null), E: toggleThinking, R: () => regenerate() }[event.key.toUpperCase()];
  if (action) { event.preventDefault(); action(); }
});

// The model's name, and whether it can be asked: "ready", "key" (it wants one), "away".
const kStates = { asking: "connecting", ready: "ready", key: "locked", away: "not reachable" };
let modelName = "";
function setState(state) {
  $("model").dataset.state = state;
  showModel();
  clearTimeout(asking);
  if (state === "ready") settled("server", "key");
  if (state === "away") asking = setTimeout(askModels, 3000);
}
let asking = null;
function showModel() {
  const busy = runs.size ? (runs.size === 1 ? "answering" : counted(runs.size, "answer")) : "";
  const state = kStates[$("model").dataset.state];
  $("model-name").textContent = modelName || "Server";
  $("model-state").textContent = $("model").dataset.state === "ready" ? busy || state : state;
  $("model").classList.toggle("busy", Boolean(busy));
  $("model").title = [`Model ${modelName || "unknown"}, ${$("model-state").textContent}`, context && `context of ${counted(context, "token")}`].filter(Boolean).join(", ");
  kFirst.querySelector("#first-model").textContent = modelName || "The model";
}

// Asks the server for its model: the name, how much context it has, and what to ask it first.
async function askModels() {
  const [reply, properties] = await Promise.all(["v1/models", "props"].map(path => fetch(path, { headers: requestHeaders() }).catch(() => null)));
  showExamples(properties?.ok ? (await properties.json()).examples : []);
  if (!reply) {
    if ($("model").dataset.state !== "away") notice(`${kNoServer} The page tries again by itself.`, { action: "Try now", run: askModels, about: "server", stays: true });
    setState("away");
    return;
  }
  if (!reply.ok) {
    const { text, about } = await refusal(reply);
    settled("server");
    notice(text, { ...(about === "key" && { action: "Settings", run: openSettings }), about, stays: about === "key" });
    setState(about === "key" ? "key" : "away");
    return;
  }
  const model = (await reply.json()).data[0];
  document.title = `dsv4: ${model.id}`;
  modelName = model.id;
  context = model.max_model_len;
  setState("ready");
  showMeter();
}

takeDraft();
begin().then(askModels);
