# pip: openai-agents==0.24.0
"""OpenAI's agents SDK over the responses dialect, with a tool and a second turn by previous_response_id."""

import sys

import openai
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="none")


@function_tool
def search_ticket(tags: list[str], color: str) -> str:
    """Search a ticket."""
    return "none"


agent = Agent(name="a", model=OpenAIResponsesModel("tiny", client), model_settings=ModelSettings(temperature=0, max_tokens=400))
first = Runner.run_sync(agent, "What is the capital of France?")
assert "Paris" in first.final_output, first.final_output
second = Runner.run_sync(agent, "And of Spain?", previous_response_id=first.last_response_id)
assert second.final_output
with_tool = agent.clone(tools=[search_ticket])
assert Runner.run_sync(with_tool, "Search a ticket with tags cook, color golden, please.", max_turns=4) is not None
print("two turns, a tool")
