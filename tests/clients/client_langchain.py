# pip: langchain-openai==1.7.4
"""LangChain: chat, streams, tools, structured output."""

import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class City(BaseModel):
    name: str
    inhabitants: int


@tool
def search_ticket(tags: list[str], color: str) -> str:
    """Search a ticket."""
    return "none"


llm = ChatOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", model="tiny", temperature=0, max_tokens=400)
assert "Paris" in llm.invoke("What is the capital of France?").content
assert "Paris" in "".join(chunk.content for chunk in llm.stream("What is the capital of France?"))
calls = llm.bind_tools([search_ticket], tool_choice="any").invoke("Search a ticket with tags cook, color golden, please.").tool_calls
assert calls[0]["name"] == "search_ticket" and set(calls[0]["args"]) == {"tags", "color"}, calls
city = llm.with_structured_output(City, method="json_schema").invoke("Name a city.")
assert isinstance(city, City), city
print("chat, stream, tools, structured output")
