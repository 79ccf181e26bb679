// Requests and their answers.
"use strict";

// A file in front of a question: its name, and its text in a fence longer than any in it.
function fileText({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/`{3,}/g)].map(match => match[0].length));
  const fence = "`".repeat(longest + 1);
  return `${name}\n${fence}\n${text.endsWith("\n") ? text : `${text}\n`}${fence}\n\n`;
}
const questionText = turn => (turn.files ?? []).map(fileText).join("") + turn.content;

// The last turn is the one that the answer goes into: empty, or begun and to be continued. `closing`: reasoning that was cut ends at once.
function requestBody(conversation, closing = false) {
  const last = conversation.turns.at(-1);
  const unfinished = Boolean(last.content || last.reasoning);
  const turns = conversation.turns.slice(0, unfinished ? undefined : -1);
  const messages = turns.flatMap((turn, i) => {
    if (hasFailed(turn) || hasFailed(turns[i + 1])) return [];  // With its question: nothing of either was ever answered.
    if (turn.role === "user") return [{ role: "user", content: questionText(turn) }];
    if (!turn.content && !turn.reasoning && !turn.calls.length) return [];
    const message = { role: "assistant", content: turn.content, reasoning_content: turn.reasoning };
    if (turn === last) message.prefix = true;
    if (!turn.calls.length) return [message];
    const id = (call, j) => call.id ?? `call-${i}-${j}`;
    message.tool_calls = turn.calls.map((call, j) => ({ id: id(call, j), type: "function", function: { name: call.name, arguments: call.arguments } }));
    return [message, ...turn.calls.map((call, j) => ({ role: "tool", tool_call_id: id(call, j), content: call.result ?? "" }))];
  });
  const set = chosen(conversation);
  if (set.system) messages.unshift({ role: "system", content: set.system });
  const thinking = unfinished ? Boolean(last.reasoning) : set.thinking;
  const body = { messages, stream: true, stream_options: { include_usage: true }, thinking };
  // A budget counts what this request adds, and 0 would be none.
  if (thinking && (closing || set.budget)) body.thinking = { type: "enabled", budget_tokens: closing ? 1 : Number(set.budget) };
  if (thinking && set.effort) body.reasoning_effort = set.effort;
  for (const name of ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"]) {
    if (set[name] !== undefined && set[name] !== "") body[name] = Number(set[name]);
  }
  if (set.tools) body.tools = JSON.parse(set.tools);
  return body;
}

const requestHeaders = () => ({ "Content-Type": "application/json", ...(settings.key && { Authorization: `Bearer ${settings.key}` }) });

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const cut = () => new Error("interrupted: the connection ended before the answer did");
  let rest = "";
  let whole = false;  // A proxy may close what it passes on as if all of it had come.
  for (;;) {
    const { value, done } = await reader.read().catch(error => { throw error.name === "AbortError" ? error : cut(); });
    if (done && !whole) throw cut();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") whole = true;
      else if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
    }
  }
}

// Words of a refusal that say what a person can do: {text, about}.
async function refusal(response) {
  const text = await response.text();
  if (response.status === 401) return { text: settings.key ? "The server does not know this API key. Enter the right one in Settings." : "This server wants an API key. Enter it in Settings.", about: "key" };
  try { return { text: JSON.parse(text).error.message, about: "refusal" }; } catch { /* Not the server's own words. */ }
  const what = `${response.status} ${response.statusText}`.trim();
  return { text: /^\s*</.test(text) ? `The answer was an error page: ${what}. Something between this browser and the server sent it.` : `${what}: ${text.slice(0, 200)}`, about: "refusal" };
}

// The model's own notice on words that it does not know. A header's bytes are UTF-8 here, and a browser reads them as Latin-1.
const noticeOf = response => new TextDecoder().decode(Uint8Array.from(response.headers.get("x-dsv4-notice") ?? "", letter => letter.charCodeAt(0)));

const kNoServer = "The server cannot be reached.";
const kClosed = "interrupted: the page was closed during this answer";
const kBusy = "This answer is still being written. Stop it first (Escape).";
const kMostRuns = 4;  // A browser has six connections to a server.

const newAnswer = () => ({ role: "assistant", content: "", reasoning: "", calls: [] });

// Says when no answer is being written in this conversation, here or in another tab.
async function isFree(conversation) {
  if (runs.has(conversation)) { notice(kBusy, { about: "busy" }); return false; }
  if (runs.size >= kMostRuns) { notice(`${kMostRuns} answers are being written. Wait for one of them, or stop one.`, { about: "busy" }); return false; }
  if (conversation && !await settle(conversation)) { notice("Another tab is answering in this conversation.", { about: "busy" }); return false; }
  return !runs.has(conversation);
}

const atEnd = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 80;

// Draws the growing answer once a frame, and no more than a fifth of the time.
function makeRefresh(conversation, turn) {
  let pending = false;
  let rest = 0;
  return () => {
    if (pending) return;
    pending = true;
    setTimeout(() => requestAnimationFrame(() => {
      pending = false;
      if (current !== conversation || !drawn.has(turn)) return;
      const begun = performance.now();
      const follow = atEnd();
      drawn.get(turn).update();
      showMeter();
      if (follow) $("log").scrollTop = $("log").scrollHeight;
      rest = 4 * (performance.now() - begun);
    }), rest > 16 ? rest : 0);
  };
}

const kCut = "cut at the length limit";

// Adds what one event of the stream says.
function addChunk(turn, chunk, times, run) {
  if (chunk.error) throw new Error(chunk.error.message);
  const now = performance.now();
  if (chunk.usage) {
    const { prompt_tokens: prompt, completion_tokens: output, prompt_tokens_details: details } = chunk.usage;
    const took = (now - (times.first || times.started)) / 1000;
    turn.tokens = prompt + output;
    delete turn.estimated;
    turn.speed = `${counted(output, "token")}, ${(output / Math.max(took, 0.001)).toFixed(1)} tok/s`;
    turn.thoughtTokens = (turn.thoughtTokens ?? 0) + (chunk.usage.completion_tokens_details?.reasoning_tokens ?? 0) || undefined;
    turn.note = `${counted(prompt, "token")} read (${details.cached_tokens} reused), ${output} written, ` +
      `first after ${((times.first || now) - times.started | 0)} ms, ${(output / Math.max(took, 0.001)).toFixed(1)} tok/s`;
  }
  for (const { delta, finish_reason: reason } of chunk.choices) {
    if (delta.content || delta.reasoning_content || delta.tool_calls) { times.first ||= now; run.pieces++; }
    if (delta.reasoning_content) times.thinking ||= now;
    if (times.thinking && !times.answering) turn.thought = now - times.thinking;  // Until the first word behind it.
    if (delta.content || delta.tool_calls) times.answering ||= now;
    turn.content += delta.content || "";
    turn.reasoning += delta.reasoning_content || "";
    for (const call of delta.tool_calls || []) {
      turn.calls[call.index] ??= { id: call.id, name: call.function.name, arguments: "" };
      turn.calls[call.index].arguments += call.function.arguments;
    }
    if (reason === "length") turn.error = kCut;
  }
  run.seconds = (now - (times.first || now)) / 1000;
}

// For a screen reader: that an answer comes, and the whole of it when it is there. The log itself would be read letter by letter.
function hear(text) { $("said").textContent = text; }
function hearAnswer(turn) {
  const calls = turn.calls.map(call => `Calls ${call.name}`);
  const shown = drawn.get(turn)?.querySelector(".text");
  const text = shown && !shown.querySelector(".katex") ? shown.textContent : turn.content;
  hear([text.length > 2000 ? `${text.slice(0, 2000)} … the answer is longer` : text, ...calls, turn.error].filter(Boolean).join(". "));
}

// Asks, and writes the answer into `turn`, the last of the conversation: a new one, or one to be continued.
async function answer(conversation, turn = null, closing = false) {
  if (runs.has(conversation)) return;
  if (!turn) {
    turn = newAnswer();
    conversation.turns.push(turn);
  }
  const before = contextOf(conversation) + (conversation === current ? draft : 0);
  const run = { controller: new AbortController(), pieces: 0, seconds: 0, before };
  runs.set(conversation, run);
  conversations = [conversation, ...conversations.filter(other => other !== conversation)];
  unsaved.add(conversation);
  const times = { started: performance.now(), first: 0, thinking: 0, answering: 0 };
  const refresh = makeRefresh(conversation, turn);
  let saving = null;
  const saveSoon = () => { saving ??= setTimeout(() => keep(conversation).then(() => { saving = null; }), 300); };
  try {
    const body = requestBody(conversation, closing);
    delete turn.error;
    delete turn.about;
    turn.active = true;
    turn.effort ||= body.reasoning_effort;
    if (!closing) turn.budget ||= body.thinking.budget_tokens;
    show();
    if (document.activeElement === document.body) $("log").focus({ preventScroll: true });  // The button that asked for it has gone.
    hear("Answering");
    keep(conversation);
    const response = await fetch("v1/chat/completions",
      { method: "POST", headers: requestHeaders(), body: JSON.stringify(body), signal: run.controller.signal })
      .catch(error => { throw error.name === "AbortError" ? error : Object.assign(new Error(kNoServer), { about: "server" }); });
    if (!response.ok) {
      const { text, about } = await refusal(response);
      throw Object.assign(new Error(text), { about });
    }
    setState("ready");
    turn.notice = noticeOf(response) || undefined;
    if (turn.notice && !turn.anyway) {
      run.controller.abort();
      throw Object.assign(new Error(turn.notice), { about: "model" });
    }
    for await (const chunk of events(response)) {
      addChunk(turn, chunk, times, run);
      refresh();
      saveSoon();
    }
  } catch (error) {
    turn.error = leaving ? kClosed : error.name === "AbortError" ? "stopped" : error.message;
    if (error.about && !leaving) turn.about = error.about;
    if (conversation === current) settled(error.about);  // It is said below the question.
    if (run.pieces) Object.assign(turn, { tokens: before + run.pieces, estimated: true });
    if (error.about === "server" || error.about === "key") setState(error.about === "key" ? "key" : "away");
    else if (error.name !== "AbortError" && error.about !== "model" && !leaving) askModels();  // Whether there is a server at all.
  }
  clearTimeout(saving);
  delete turn.active;
  runs.delete(conversation);
  if (conversation !== current) unseen.add(conversation);
  settled("busy");
  show(current === conversation && atEnd());
  if (conversation === current) hearAnswer(turn);
  await keep(conversation);
  if (!runs.has(conversation)) unsaved.delete(conversation);
}
