# pip: inspect-ai==0.3.285 openai==3.57.0
"""inspect-ai: a task with a scorer, and one whose model has a tool, over its client of OpenAI's dialect."""

import os
import sys
import tempfile

os.environ["DSV4_BASE_URL"] = sys.argv[1] + "/v1"
os.environ["DSV4_API_KEY"] = "none"

from inspect_ai import Task
from inspect_ai import eval as run
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool


@tool
def search_ticket():
    async def execute(tags: list[str], color: str) -> str:
        """Search a ticket.

        Args:
            tags: What it is about.
            color: Its color.
        """
        return "none"

    return execute


config = GenerateConfig(temperature=0, max_tokens=400)
tasks = [Task(name="capital", dataset=[Sample(input="What is the capital of France?", target="Paris")], solver=generate(), scorer=includes(), config=config),
         Task(name="ticket", dataset=[Sample(input="Search a ticket with tags cook, color golden, please.", target="ticket")],
              solver=[use_tools(search_ticket()), generate(tool_calls="single")], scorer=includes(), config=config)]
with tempfile.TemporaryDirectory() as folder:
    capital, ticket = run(tasks, model="openai-api/dsv4/tiny", log_dir=folder, display="none")
    assert capital.status == ticket.status == "success", (capital.error, ticket.error)
    assert capital.results.scores[0].metrics["accuracy"].value == 1, capital.results
    calls = [call for message in ticket.samples[0].messages for call in getattr(message, "tool_calls", None) or []]
    assert calls and calls[0].function == "search_ticket" and not calls[0].parse_error, ticket.samples[0].messages
print("a task, a tool")
