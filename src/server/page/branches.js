// Branches of a conversation. `turns` is the branch that is shown. A turn with siblings has `branches`, {at, tails}: tails[i] holds the
// turns of branch i from this place on, and tails[at] is null, because `turns` has them.
"use strict";

// Takes out the turns from place i on, as a branch of those that take their place. Returns what their first turn must have as `branches`.
function setAside(conversation, i) {
  const old = conversation.turns.splice(i);
  const branches = old[0].branches ?? { at: 0, tails: [null] };
  delete old[0].branches;
  branches.tails[branches.at] = old;
  return branches;
}

function addBranch(conversation, i, turn) {
  const branches = setAside(conversation, i);
  branches.at = branches.tails.push(null) - 1;
  turn.branches = branches;
  conversation.turns.push(turn);
}

async function showBranch(conversation, turn, at) {
  if (!await isFree(conversation)) return;
  const i = conversation.turns.indexOf(turn);
  if (i < 0 || !turn.branches?.tails[at]) return;
  const branches = setAside(conversation, i);
  const next = branches.tails[at];
  branches.tails[at] = null;
  branches.at = at;
  next[0].branches = branches;
  conversation.turns.push(...next);
  show(false);
  drawn.get(next[0]).querySelector(".branches button:not(:disabled)")?.focus();
  await keep(conversation);
}

// All turns of all branches, for search and for checks.
function* everyTurn(turns) {
  for (const turn of turns) {
    yield turn;
    for (const tail of turn.branches?.tails ?? []) if (tail) yield* everyTurn(tail);
  }
}

// A question said otherwise is a branch with a new answer; an answer said otherwise is a branch that waits for what comes next.
async function edit(conversation, turn, text) {
  if (!await isFree(conversation)) return;
  const i = conversation.turns.indexOf(turn);
  if (i < 0) return;
  if (turn.role === "user") {
    addBranch(conversation, i, { role: "user", content: text, ...(turn.files && { files: turn.files }) });
    await answer(conversation);
  } else {
    addBranch(conversation, i, { role: "assistant", content: text, reasoning: turn.reasoning, calls: [], edited: true });
    show(false);
    await keep(conversation);
  }
}

// Another answer to the same question; the answer that was stays as a branch.
async function regenerate(turn = current?.turns.at(-1), anyway = turn?.anyway) {
  const conversation = current;
  if (!conversation || turn?.role !== "assistant" || !await isFree(conversation)) return;
  const i = conversation.turns.indexOf(turn);
  if (i < 0) return;
  const next = { ...newAnswer(), ...(anyway && { anyway }) };
  if (hasFailed(turn) && turn === conversation.turns.at(-1)) {  // There is nothing that a branch would keep.
    if (turn.branches) next.branches = turn.branches;
    conversation.turns[i] = next;
  } else {
    addBranch(conversation, i, next);
  }
  await answer(conversation, next);
}

// An answer of which nothing came. Its question is no part of what the model reads next.
const hasFailed = turn => Boolean(turn?.role === "assistant" && !turn.active && turn.error && !turn.content && !turn.reasoning && !turn.calls.length);

// Goes on with an answer that was cut, in its reasoning or behind it. `closing`: the reasoning ends and the answer begins.
async function goOn(closing = false) {
  const conversation = current;
  const turn = conversation?.turns.at(-1);
  if (!canGoOn(turn) || !await isFree(conversation)) return;
  delete turn.edited;
  await answer(conversation, turn, closing);
}
const canGoOn = turn => Boolean(turn?.role === "assistant" && !turn.active && !turn.calls.length && (turn.error || turn.edited) && (turn.content || turn.reasoning));
