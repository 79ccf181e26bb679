"""Why a request body is read otherwise here than by deepseek-recipe. recipe_test.py asks for a reason of every difference. It is the first
pattern that fits the body's name, among those for its kind of difference."""

import re

REASONS = {
    "only the recipe refuses": [
        (r"temperature|penalty|max_(output_)?tokens=|^n=|^stop|seed=|logprobs|stream_options", "ranges and pairs of OpenAI's service; here what has a meaning is taken"),
        (r"^model ", "any name may be an alias, and none is the one model"),
        (r"json_object|no name", "OpenAI wants the word 'json' and a name; decoding is constrained, so it needs neither"),
        (r"tool_choice", "a call can be demanded while thinking too: the grammar sees to it"),
        (r"^tools? ", "names and schemas are the client's; two of one name are one"),
        (r"developer", "the role is taken in every dialect"),
        (r"thinking=|reasoning summary|metadata", "more spellings are taken"),
        (r"prefix|tool_use last", "an unfinished answer is continued, with tools too"),
        (r"^file part", "a file that is not there is named to the model"),
        (r"null|no content|refusal|empty|^calls \[\]|assistant \[\]|text part|redacted|arguments object|missing", "what an SDK leaves out or spells its own way is no fault"),
        (r"call|result|tool_use|text \+ result", "a history is taken as it is: a session does not end for a result that is missing or late"),
    ],
    "only dsv4 refuses": [
        (r"=1\.5|='5'|=-1|\[\]|seed=", "wrong types and numbers past 64 bits; the recipe ignores the field or rounds"),
        (r"background|item_reference|^n=", "what is not done is said; the recipe ignores it, and the context is lost"),
        (r"only", "nothing to answer"),
        (r"tool_choice", "a call without a tool; the recipe ignores the choice"),
        (r"regex", "see constrained-decoding.md for how a pattern is asked for"),
        (r"on message|on user", "members that belong to the request"),
    ],
    "other prompt": [
        (r"thinking|effort none", "all spellings of the switch; effort none turns thinking off"),
        (r"strict|\$ref", "a strict schema stands in the prompt as the client wrote it; the recipe rewrites it and loses $defs"),
        (r"description|parameters|name only|extra member|defer_loading|floats", "the tool as the client wrote it: nothing filled in, nothing left out"),
        (r"tool_choice", "a call is demanded by the grammar, not by an opened block; a named choice shows all tools, which keeps the cache"),
        (r"json|format", "the schema stands in the prompt as the model was trained to see it"),
        (r"system|developer|reminder", "later instructions keep their place, so that what stands before stays in the cache"),
        (r"empty|users with", "empty texts are joined too, as the encoder beside the weights does"),
        (r"reversed|in order|two rounds|two calls", "calls stay in the order in which the model made them"),
        (r"prefill|continue_final|prefix|wo_eos|assistant last", "an unfinished answer is continued"),
        (r"reasoning", "reasoning is read from summaries and other fields as well"),
        (r"arguments|tool_use (input|numbers)", "values as Python's encoder writes them; an empty object has its empty line"),
        (r"custom|apply_patch", "the client's own description and grammar are shown"),
        (r"file|document", "a document is named, or its text read"),
        (r"task", "quick tasks of the encoder"),
    ],
}


def reason_of(kind, case):
    return next((reason for pattern, reason in REASONS[kind] if re.search(pattern, case["name"])), "")
