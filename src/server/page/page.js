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
document.addEventListener("keydown", event => {
  if (event.key === "Escape") { running?.controller.abort(); openMenu(false); }
  if (!event.ctrlKey || !event.shiftKey) return;
  const action = { O: () => select(null), T: toggleThinking, R: regenerate }[event.key.toUpperCase()];
  if (action) { event.preventDefault(); action(); }
});

begin().then(() => fetch("v1/models", { headers: requestHeaders() })).then(reply => reply.json()).then(reply => {
  document.title = `dsv4: ${reply.data[0].id}`;
  context = reply.data[0].max_model_len;
  showMeter();
}).catch(() => {});
