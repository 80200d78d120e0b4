"""The client of FastMCP, which speaks both eras."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import visit
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import (
    ClientTransport,
    SSETransport,
    StdioTransport,
    StreamableHttpTransport,
)
from python_sdk import plain
from visit import MODERN, UNLIMITED, Json, Progress, Target


class FastMcp:
    at_once = UNLIMITED

    def __init__(self, client: Client) -> None:
        self.client = client
        self.protocol = client.session.protocol_version

    async def tools(self) -> Json:
        return plain(await self.client.list_tools_mcp())

    async def resources(self) -> Json:
        return plain(await self.client.list_resources_mcp())

    async def templates(self) -> Json:
        return plain(await self.client.list_resource_templates_mcp())

    async def prompts(self) -> Json:
        return plain(await self.client.list_prompts_mcp())

    async def call(self, tool: str, arguments: Json, progress: Progress) -> Json:
        async def report(done: float, total: float | None, _message: str | None) -> None:
            progress(done, total)

        return plain(await self.client.call_tool_mcp(tool, arguments, progress_handler=report))

    async def read(self, uri: str) -> Json:
        return plain(await self.client.read_resource_mcp(uri))

    async def get(self, prompt: str, arguments: Json) -> Json:
        return plain(await self.client.get_prompt_mcp(prompt, arguments))


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[FastMcp]:
    mode = MODERN if target.era == "modern" else target.era
    async with Client(transport(target), mode=mode, **handlers(target.answer)) as client:
        yield FastMcp(client)


def transport(target: Target) -> ClientTransport:
    match target.transport:
        case "sse":
            return SSETransport(target.url)
        case "stdio":
            command, *args = shlex.split(target.url)
            return StdioTransport(command, args, keep_alive=False)
        case _:
            return StreamableHttpTransport(target.url)


def handlers(answer: str | None) -> Json:
    if answer is None:
        return {}

    async def elicit(*_request: object) -> ElicitResult:
        return ElicitResult(action="accept", content={"answer": answer})

    async def sample(*_request: object) -> str:
        return answer

    return {"elicitation_handler": elicit, "sampling_handler": sample}


if __name__ == "__main__":
    visit.run(connect)
