// Settings. Those of kOfConversation belong to each conversation: a new one starts with `settings`, which has the browser's own besides.
"use strict";

const kOfConversation = ["system", "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "thinking", "effort", "budget", "tools"];

// Settings of a conversation, or of the next one.
const chosen = (conversation = current) => conversation?.settings ?? settings;
const copyOfChosen = () => Object.fromEntries(kOfConversation.filter(name => name in settings).map(name => [name, settings[name]]));

function change(values) {
  if (current) {
    current.settings = { ...(current.settings ?? copyOfChosen()), ...values };
    keep(current);
  } else {
    Object.assign(settings, values);
    save();
  }
  show(false);
}

const toggleThinking = () => change({ thinking: !chosen().thinking });

// A fault of a list of tools, or nothing.
function faultOfTools(text) {
  if (!text.trim()) return "";
  let tools;
  try { tools = JSON.parse(text); } catch (error) { return `Not JSON: ${error.message}`; }
  if (!Array.isArray(tools)) return "Wanted a list: [{\"type\": \"function\", \"function\": {\"name\": ...}}]";
  const bad = tools.findIndex(tool => typeof tool?.function?.name !== "string");
  return bad < 0 ? "" : `Tool ${bad + 1} has no function with a name`;
}

const fields = () => [...$("settings").querySelectorAll("[name]")];
const isOfConversation = field => kOfConversation.includes(field.name);

function openSettings() {
  for (const field of fields()) field.value = (isOfConversation(field) ? chosen() : settings)[field.name] ?? "";
  $("settings-of").textContent = current ? "This conversation" : "New conversations";
  $("as-default").hidden = !current;
  $("settings-more").open = Boolean(chosen().tools);
  fields().find(field => field.name === "tools").setCustomValidity("");
  $("settings").showModal();
}

function takeSettings() {
  const values = which => Object.fromEntries(fields().filter(which).map(field => [field.name, field.value]));
  const key = settings.key;
  Object.assign(settings, values(field => !isOfConversation(field)));
  save();
  if (settings.key !== key) askModels();
  change(values(isOfConversation));
}

$("think").addEventListener("click", toggleThinking);
$("open-settings").addEventListener("click", openSettings);
$("settings-cancel").addEventListener("click", () => $("settings").close());
$("settings").querySelector("form").addEventListener("submit", event => {
  takeSettings();
  if (event.submitter !== $("as-default")) return;
  for (const name of kOfConversation) settings[name] = current.settings[name];
  save();
  notice("New conversations start with these settings.");
});
$("settings").querySelector("[name=tools]").addEventListener("input", event => event.target.setCustomValidity(faultOfTools(event.target.value)));
