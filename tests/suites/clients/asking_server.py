"""A server on standard output that asks its caller back, in either era, on the official Python SDK.

server-everything has such tools as well, but lists them only to clients that can be asked, and a
catalog is filled by a connection that cannot.
"""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Elicit, MCPServer, Resolve, Sample
from mcp.types import CreateMessageResult, SamplingMessage, TextContent
from pydantic import BaseModel

server = MCPServer("asking")


class Answer(BaseModel):
    answer: str


def user(question: str) -> Elicit[Answer]:
    return Elicit(question, Answer)


def model(prompt: str) -> Sample:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    return Sample([message], max_tokens=100)


@server.tool()
def ask_user(question: str, given: Annotated[Answer, Resolve(user)]) -> str:
    """Asks the user of the client that calls."""
    return f"the user says {given.answer}"


@server.tool()
def ask_model(prompt: str, given: Annotated[CreateMessageResult, Resolve(model)]) -> str:
    """Asks the model of the client that calls."""
    return f"the model says {given.content.text}"


if __name__ == "__main__":
    server.run()
