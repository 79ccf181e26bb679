// Requests, their answers, and what the keyboard and the buttons do.
"use strict";

function requestBody(conversation) {
  const messages = conversation.turns.slice(0, -1).flatMap((turn, i) => {
    if (turn.role === "user") return [{ role: "user", content: turn.content }];
    const message = { role: "assistant", content: turn.content, reasoning_content: turn.reasoning };
    if (!turn.calls.length) return [message];
    const id = (call, j) => call.id ?? `call-${i}-${j}`;
    message.tool_calls = turn.calls.map((call, j) => ({ id: id(call, j), type: "function", function: { name: call.name, arguments: call.arguments } }));
    return [message, ...turn.calls.map((call, j) => ({ role: "tool", tool_call_id: id(call, j), content: call.result ?? "" }))];
  });
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  const body = { messages, stream: true, stream_options: { include_usage: true }, thinking: settings.thinking };
  for (const name of ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"]) {
    if (settings[name] !== undefined && settings[name] !== "") body[name] = Number(settings[name]);
  }
  if (settings.tools) body.tools = JSON.parse(settings.tools);
  return body;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
  }
}

async function answer(conversation) {
  if (running) return;
  const turn = { role: "assistant", content: "", reasoning: "", calls: [], active: true };
  conversation.turns.push(turn);
  running = { controller: new AbortController(), conversation };
  show();
  keep(conversation);
  let saving = null;
  const saveSoon = () => { saving ??= setTimeout(() => keep(conversation).then(() => { saving = null; }), 300); };
  const started = performance.now();
  let first = 0;
  let pending = false;
  const refresh = () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      if (current !== conversation) return;
      const log = $("log");
      const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
      log.lastChild.update?.();
      if (atEnd) log.scrollTop = log.scrollHeight;
    });
  };
  try {
    const headers = { "Content-Type": "application/json" };
    if (settings.key) headers.Authorization = `Bearer ${settings.key}`;
    const response = await fetch("v1/chat/completions",
      { method: "POST", headers, body: JSON.stringify(requestBody(conversation)), signal: running.controller.signal });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) {
        const { prompt_tokens: prompt, completion_tokens: output, prompt_tokens_details: details } = chunk.usage;
        const seconds = (performance.now() - (first || started)) / 1000;
        turn.note = `${prompt} tokens read (${details.cached_tokens} reused), ${output} written, ` +
          `first after ${((first || performance.now()) - started | 0)} ms, ${(output / Math.max(seconds, 0.001)).toFixed(1)} tok/s`;
      }
      for (const { delta, finish_reason: reason } of chunk.choices) {
        if (delta.content || delta.reasoning_content || delta.tool_calls) first ||= performance.now();
        turn.content += delta.content || "";
        turn.reasoning += delta.reasoning_content || "";
        for (const call of delta.tool_calls || []) {
          turn.calls[call.index] ??= { id: call.id, name: call.function.name, arguments: "" };
          turn.calls[call.index].arguments += call.function.arguments;
        }
        if (reason === "length") turn.error = "cut at the length limit";
      }
      refresh();
      saveSoon();
    }
  } catch (error) {
    turn.error = leaving ? "interrupted: the page was closed during this answer" : error.name === "AbortError" ? "stopped" : error.message;
  }
  clearTimeout(saving);
  delete turn.active;
  running = null;
  show(false);
  await keep(conversation);
}

async function send(event) {
  event?.preventDefault();
  const text = $("ask").value.trim();
  if (!text || running) return;
  if (current && !await settle(current)) { notice("Another tab is answering in this conversation."); return; }
  if (running) return;
  if (!current) {
    conversations.unshift({ id: fresh(), version: 0, title: text.slice(0, 60), turns: [] });
    select(conversations[0]);
  }
  current.turns.push({ role: "user", content: text });
  $("ask").value = "";
  grow();
  answer(current);
}
function sendResults() {
  if (!running && current?.turns.at(-1)?.calls?.length) answer(current);
}
function regenerate() {
  if (running || current?.turns.at(-1)?.role !== "assistant" || current.turns.at(-1).active) return;
  current.turns.pop();
  answer(current);
}
function grow() {
  $("ask").style.height = "auto";
  $("ask").style.height = `${$("ask").scrollHeight + 2}px`;
}
function toggleThinking() {
  settings.thinking = !settings.thinking;
  save();
  show();
}

$("form").addEventListener("submit", send);
$("ask").addEventListener("input", grow);
$("ask").addEventListener("keydown", event => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event); });
$("new").addEventListener("click", () => select(null));
$("stop").addEventListener("click", () => running?.controller.abort());
$("think").addEventListener("click", toggleThinking);
$("menu").addEventListener("click", () => openMenu(!$("nav").classList.contains("open")));
for (const id of ["close-menu", "shade"]) $(id).addEventListener("click", () => { openMenu(false); $("menu").focus(); });
$("notice-close").addEventListener("click", () => { $("notice").hidden = true; });
addEventListener("pagehide", () => {
  leaving = true;
  if (running) write(`dsv4.rest.${running.conversation.id}`, running.conversation);
});
addEventListener("pageshow", () => { leaving = false; });
$("open-settings").addEventListener("click", () => {
  for (const field of $("settings").querySelectorAll("[name]")) field.value = settings[field.name] ?? "";
  $("settings").showModal();
});
$("settings").addEventListener("close", () => {
  for (const field of $("settings").querySelectorAll("[name]")) settings[field.name] = field.value;
  save();
  show();
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape") { running?.controller.abort(); openMenu(false); }
  if (!event.ctrlKey || !event.shiftKey) return;
  const action = { O: () => select(null), T: toggleThinking, R: regenerate }[event.key.toUpperCase()];
  if (action) { event.preventDefault(); action(); }
});

begin().then(() => fetch("v1/models", settings.key ? { headers: { Authorization: `Bearer ${settings.key}` } } : {}).then(reply => reply.json()))
  .then(reply => { document.title = `dsv4: ${reply.data[0].id}`; }).catch(() => {});
