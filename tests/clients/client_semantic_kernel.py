# pip: semantic-kernel[ollama]==1.45.0
"""semantic-kernel's ollama and OpenAI services: chats and texts, whole and as streams."""

import asyncio
import sys

import openai
from semantic_kernel.connectors.ai.ollama import (
    OllamaChatCompletion,
    OllamaChatPromptExecutionSettings,
    OllamaTextCompletion,
    OllamaTextPromptExecutionSettings,
)
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory

QUESTION = "What is the capital of France?"


async def main():
    history = ChatHistory()
    history.add_user_message(QUESTION)
    openai_client = openai.AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="none")
    services = ((OllamaChatCompletion(ai_model_id="tiny", host=sys.argv[1]), OllamaChatPromptExecutionSettings(options={"temperature": 0, "num_predict": 300})),
                (OpenAIChatCompletion(ai_model_id="tiny", async_client=openai_client), OpenAIChatPromptExecutionSettings(temperature=0, max_tokens=300)))
    for service, settings in services:
        assert "Paris" in str(await service.get_chat_message_content(history, settings)), service
        assert "Paris" in "".join([str(pieces[0]) async for pieces in service.get_streaming_chat_message_contents(history, settings)]), service
    text = OllamaTextCompletion(ai_model_id="tiny", host=sys.argv[1])
    settings = OllamaTextPromptExecutionSettings(options={"temperature": 0, "num_predict": 300})
    assert "Paris" in str((await text.get_text_contents(QUESTION, settings))[0])
    assert "Paris" in "".join([str(pieces[0]) async for pieces in text.get_streaming_text_contents(QUESTION, settings)])


asyncio.run(main())
print("chats and texts")
