# pip: pydantic-ai-slim[openai,anthropic]==2.68.0
"""pydantic-ai: an agent with a tool and a typed result."""

import sys

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class City(BaseModel):
    name: str
    inhabitants: int


model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=sys.argv[1] + "/v1", api_key="none"))
settings = {"temperature": 0, "max_tokens": 500}
assert "Paris" in Agent(model, model_settings=settings).run_sync("What is the capital of France?").output
city = Agent(model, output_type=City, model_settings={"max_tokens": 500, "seed": 1}, retries=3).run_sync("Name a city.").output
assert isinstance(city, City)
print("chat, typed result")
