"""The official Python SDK 2.x, which speaks both eras."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import visit
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from python_sdk import handlers, plain, program
from visit import MODERN, UNLIMITED, Json, Progress, Target


class PythonV2:
    at_once = UNLIMITED

    def __init__(self, client: Client) -> None:
        self.client = client
        self.protocol = client.protocol_version

    async def tools(self) -> Json:
        return plain(await self.client.list_tools())

    async def resources(self) -> Json:
        return plain(await self.client.list_resources())

    async def templates(self) -> Json:
        return plain(await self.client.list_resource_templates())

    async def prompts(self) -> Json:
        return plain(await self.client.list_prompts())

    async def call(self, tool: str, arguments: Json, progress: Progress) -> Json:
        async def report(done: float, total: float | None, _message: str | None) -> None:
            progress(done, total)

        return plain(await self.client.call_tool(tool, arguments, progress_callback=report))

    async def read(self, uri: str) -> Json:
        return plain(await self.client.read_resource(uri))

    async def get(self, prompt: str, arguments: Json) -> Json:
        return plain(await self.client.get_prompt(prompt, arguments))


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[PythonV2]:
    match target.transport:
        case "sse":
            server = sse_client(target.url)
        case "stdio":
            server = stdio_client(program(target))
        case _:
            server = target.url
    mode = MODERN if target.era == "modern" else target.era
    async with Client(server, mode=mode, **handlers(target.answer)) as client:
        yield PythonV2(client)


if __name__ == "__main__":
    visit.run(connect)
