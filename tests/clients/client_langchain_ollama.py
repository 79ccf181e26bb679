# pip: langchain-ollama==1.1.0
"""LangChain's ollama classes: chat, reasoning, streams, tools, schemas, the check of a model, and texts by /api/generate."""

import sys

from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaLLM
from pydantic import BaseModel


class City(BaseModel):
    name: str
    inhabitants: int


@tool
def search_ticket(tags: list[str], color: str) -> str:
    """Search a ticket."""
    return "none"


QUESTION = "What is the capital of France?"
settings = {"model": "tiny", "base_url": sys.argv[1], "temperature": 0, "num_predict": 300}
chat = ChatOllama(validate_model_on_init=True, **settings)
answer = chat.invoke(QUESTION)
assert "Paris" in answer.content and answer.usage_metadata["output_tokens"] > 0, answer
assert ChatOllama(reasoning=True, **settings).invoke(QUESTION).additional_kwargs["reasoning_content"]
assert "Paris" in "".join(piece.content for piece in chat.stream(QUESTION))
(call, *_) = chat.bind_tools([search_ticket]).invoke("Search a ticket with tags cook, color golden, please.").tool_calls
assert call["name"] == "search_ticket" and set(call["args"]) == {"tags", "color"}, call
assert isinstance(chat.with_structured_output(City).invoke("Name a city."), City)
text = OllamaLLM(**settings)
assert "Paris" in text.invoke(QUESTION) and "Paris" in "".join(text.stream(QUESTION))
print("chat, reasoning, stream, tools, schema, texts")
