// Conversations in IndexedDB, safe in several tabs.
"use strict";

// Writes one conversation. Each record has a version: where another tab wrote since, both are kept, this one under a new name.
function keep(conversation, changed = Date.now()) {
  if (!database) return Promise.resolve(false);
  return new Promise(resolve => {
    let said = false;
    const failed = error => {
      if (said) return;
      said = true;
      notice(`Not saved: ${error?.name === "QuotaExceededError" ? "the browser's storage for this page is full. Export and delete conversations" : error?.message || "the browser gave no reason"}.`, { about: "store", stays: true });
      resolve(false);
    };
    let stored;
    let copied = null;
    try {
      const transaction = database.transaction("conversations", "readwrite");
      const store = transaction.objectStore("conversations");
      conversation.changed = changed;
      store.get(conversation.id).onsuccess = event => {
        stored = event.target.result;
        if (stored && stored.version !== conversation.version) {
          copied = conversation.id;
          Object.assign(conversation, { id: fresh(), title: `${conversation.title} (copy)`, version: 0 });
        }
        try { store.put({ ...conversation, version: conversation.version + 1 }); } catch (error) { failed(error); transaction.abort(); return; }
        conversation.version++;
      };
      transaction.oncomplete = () => {
        channel.postMessage({ changed: conversation.id });
        settled("store");
        if (copied) {
          notice("Another tab changed this conversation. Both are kept; this one is now a copy.");
          load(copied);
        }
        resolve(true);
      };
      transaction.onabort = () => {
        conversation.version = stored && !copied ? stored.version : 0;
        failed(transaction.error);
      };
    } catch (error) { failed(error); }
  });
}

// Takes a stored record in place of the one here. The turns stay the same objects, and with them what is drawn of them.
function take(record) {
  const here = conversations.find(other => other.id === record.id);
  if (here && (runs.has(here) ? !record.deleted : here.version >= record.version)) return;
  if (record.deleted) {
    runs.get(here)?.controller.abort();
    conversations = conversations.filter(other => other !== here);
    if (here && current === here) select(null);
  } else if (here) {
    const turns = record.turns.map((turn, i) => {
      const old = here.turns[i];
      if (old?.role !== turn.role) return turn;
      for (const name of Object.keys(old)) if (!(name in turn)) delete old[name];
      return Object.assign(old, turn);
    });
    Object.assign(here, record, { turns });
  } else {
    conversations.unshift(record);
  }
}

function load(id) {
  if (!database) return;
  database.transaction("conversations").objectStore("conversations").get(id).onsuccess = event => {
    if (!event.target.result) return;
    take(event.target.result);
    show(false);
  };
}

// In which another tab says that it is answering. One that draws a long answer on a busy machine takes a while to hear the question.
const kAliveMilliseconds = 1500;

// An answer that is not finished and that no tab is writing was cut off when its tab closed.
async function settle(conversation) {
  const turn = conversation.turns.at(-1);
  if (!turn?.active || runs.has(conversation)) return true;
  alive.delete(conversation.id);
  channel.postMessage({ ask: conversation.id });
  await new Promise(resolve => setTimeout(resolve, kAliveMilliseconds));
  if (alive.has(conversation.id) || !turn.active) return !turn.active;
  delete turn.active;
  turn.error = kClosed;
  await keep(conversation);
  return true;
}

channel.onmessage = ({ data }) => {
  if (data.changed) load(data.changed);
  if (data.ask && [...runs.keys()].some(conversation => conversation.id === data.ask)) channel.postMessage({ alive: data.ask });
  if (data.alive) alive.add(data.alive);
};

async function begin() {
  const records = await new Promise(resolve => {
    const forbidden = error => { notice(`Conversations are not kept: ${error?.message || "this browser forbids storage"}.`, { stays: true }); resolve([]); };
    try {
      const request = indexedDB.open("dsv4", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
      request.onerror = () => forbidden(request.error);
      request.onsuccess = () => {
        database = request.result;
        database.onversionchange = () => { database.close(); database = null; };
        const all = database.transaction("conversations").objectStore("conversations").getAll();
        all.onsuccess = () => resolve(all.result);
        all.onerror = () => forbidden(all.error);
      };
    } catch (error) { forbidden(error); }
  });
  const hour = 3600e3;
  for (const record of records.filter(other => other.deleted < Date.now() - hour)) {
    database.transaction("conversations", "readwrite").objectStore("conversations").delete(record.id);
    forgetDraft(record.id);
  }
  conversations = records.filter(record => !record.deleted).concat(conversations).sort((a, b) => b.changed - a.changed);
  // The last words of an answer whose tab was closed, and what an earlier version of this page had kept.
  for (const key of Object.keys(localStorage).filter(name => name.startsWith("dsv4.rest."))) {
    const rest = read(key, null);
    const here = rest && conversations.find(other => other.id === rest.id);
    if (here && here.version <= rest.version + 1) here.turns = rest.turns;
    if (rest && !here && !records.some(other => other.id === rest.id)) conversations.unshift({ ...rest, version: 0 });
    if (rest && await keep(conversations.find(other => other.id === rest.id) ?? rest)) localStorage.removeItem(key);
  }
  let moved = true;
  for (const old of read("dsv4.conversations", [])) {
    conversations.push({ ...old, id: fresh(), version: 0 });
    moved = await keep(conversations.at(-1)) && moved;
  }
  if (moved) localStorage.removeItem("dsv4.conversations");
  current ??= conversations.find(conversation => conversation.id === sessionStorage.getItem("dsv4.current")) ?? null;
  show();
  for (const conversation of conversations) settle(conversation).then(() => show(false));
}
