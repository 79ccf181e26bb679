# pip: outlines==1.3.3 openai==2.14.0
"""outlines over OpenAI's, vLLM's and SGLang's fields: schemas, choices, regular expressions, grammars."""

import json
import re
import sys
from typing import Literal

import openai
import outlines
import pydantic
from outlines.types import CFG, Regex


class City(pydantic.BaseModel):
    name: str
    inhabitants: int


client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none")
settings = {"max_tokens": 200, "temperature": 0}
question = "What is the capital of France?"
assert "Paris" in outlines.from_openai(client, "tiny")(question, **settings)
for make in (outlines.from_vllm, outlines.from_sglang):
    model = make(client, "tiny")
    assert set(json.loads(model("Name a city.", City, **settings))) == {"name", "inhabitants"}
    assert re.fullmatch("[0-9]{3}", model("A number please", Regex("[0-9]{3}"), **settings))
vllm = outlines.from_vllm(client, "tiny")
assert vllm(question, Literal["London", "Paris"], **settings) in ("London", "Paris")
assert vllm("Say it", CFG('start: "yes" | "no"'), **settings) in ("yes", "no")
assert "Paris" in "".join(vllm.stream(question, **settings))
print("text, schema, regex, choice, grammar, stream")
