// What the keyboard and the buttons do, and the start.
"use strict";

$("new").addEventListener("click", () => select(null));
$("stop").addEventListener("click", () => running?.controller.abort());
$("menu").addEventListener("click", () => openMenu(!$("nav").classList.contains("open")));
for (const id of ["close-menu", "shade"]) $(id).addEventListener("click", () => { openMenu(false); $("menu").focus(); });
$("notice-close").addEventListener("click", () => { $("notice").hidden = true; });
addEventListener("pagehide", () => {
  leaving = true;
  if (unsaved) write(`dsv4.rest.${unsaved.id}`, unsaved);
});
addEventListener("pageshow", () => { leaving = false; });

// Escape leaves what is in front: a dialog, a word that is being composed, a search, the list of a phone. Else it stops the answer.
function leaveOrStop(event) {
  if (event.isComposing || $("settings").open || (event.target === $("search") && event.target.value)) return;
  if ($("nav").classList.contains("open")) openMenu(false);
  else running?.controller.abort();
}

document.addEventListener("keydown", event => {
  if (event.key === "Escape") leaveOrStop(event);
  if (!event.ctrlKey || !event.shiftKey) return;
  // Not T: browsers keep that combination for the tab that was closed last.
  const action = { O: () => select(null), E: toggleThinking, R: regenerate }[event.key.toUpperCase()];
  if (action) { event.preventDefault(); action(); }
});

// What the server says of its model: its name, and how much context it has.
async function askModels() {
  const reply = await fetch("v1/models", { headers: requestHeaders() }).catch(() => null);
  if (!reply) { notice(kNoServer, "Try again", askModels); return; }
  if (reply.status === 401) { notice(settings.key ? "The server does not know this API key." : "The server wants an API key.", "Settings", openSettings); return; }
  if (!reply.ok) { notice(await refusal(reply)); return; }
  const model = (await reply.json()).data[0];
  document.title = `dsv4: ${model.id}`;
  context = model.max_model_len;
  showMeter();
}

try { $("ask").value = sessionStorage.getItem("dsv4.draft") ?? ""; } catch { /* Forbidden. */ }
grow();
countDraft();
begin().then(askModels);
