"""LangChain's client of an OpenAI-compatible server, run by an environment of its own (tools/peers clients): prints what it got as JSON."""

from __future__ import annotations

import json
import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


class Place(BaseModel):
    """A place."""

    city: str = Field(max_length=12)
    people: int | None
    near: list[str] = Field(max_length=2)


@tool
def get_weather(city: str) -> str:
    """Current weather in a city."""
    return f"21 degrees in {city}"


def main() -> None:
    model = ChatOpenAI(base_url=sys.argv[1], api_key="none", model="tiny", temperature=0, max_retries=0, timeout=300, stream_usage=True)
    turkey = "What is the capital of Turkey?"
    whole = model.invoke(turkey)
    pieces = list(model.stream(turkey))
    batch = model.batch([turkey, "What is the capital of France?"])
    bound = model.bind_tools([get_weather])
    question = HumanMessage("What is the weather in Bern?")
    call = bound.invoke([question])
    result = get_weather.invoke(call.tool_calls[0])
    streamed = None
    for piece in bound.stream([question]):
        streamed = piece if streamed is None else streamed + piece
    after = bound.invoke([question, call, ToolMessage(result.content, tool_call_id=call.tool_calls[0]["id"])])
    forced = model.bind_tools([get_weather], tool_choice="get_weather").invoke(turkey)
    hot = ChatOpenAI(base_url=sys.argv[1], api_key="none", model="tiny", temperature=1.5, seed=3, max_retries=0, timeout=300, max_tokens=200)
    places = [hot.with_structured_output(Place, method=method).invoke(turkey) for method in ("json_schema", "function_calling")]
    print(json.dumps({
        "whole": whole.content, "usage": whole.usage_metadata, "finish": whole.response_metadata["finish_reason"],
        "stream": "".join(piece.content for piece in pieces), "stream_usage": [p.usage_metadata for p in pieces if p.usage_metadata][-1],
        "batch": [answer.content for answer in batch],
        "call": call.tool_calls, "streamed_call": streamed.tool_calls, "after": after.content,
        "forced": forced.tool_calls, "places": [place.model_dump() for place in places],
    }))


main()
