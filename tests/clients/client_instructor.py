# pip: instructor==1.17.0
"""instructor: typed answers by tools and by schemas."""

import sys

import instructor
import openai
from pydantic import BaseModel


class City(BaseModel):
    name: str
    inhabitants: int
    rivers: list[str]


for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none"), mode=mode)
    city = client.chat.completions.create(model="tiny", response_model=City, max_retries=0, temperature=1, seed=1, max_tokens=800,
                                          messages=[{"role": "user", "content": "Name a city."}], extra_body={"thinking": False})
    assert isinstance(city, City), city
print("tools and schemas")
