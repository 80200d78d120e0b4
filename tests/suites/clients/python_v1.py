"""The official Python SDK 1.x, which knows the revisions up to 2025-11-25."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import visit
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl
from python_sdk import handlers, plain, program
from visit import UNLIMITED, Json, Progress, Target


class PythonV1:
    at_once = UNLIMITED

    def __init__(self, session: ClientSession, protocol: str) -> None:
        self.session = session
        self.protocol = protocol

    async def tools(self) -> Json:
        return plain(await self.session.list_tools())

    async def resources(self) -> Json:
        return plain(await self.session.list_resources())

    async def templates(self) -> Json:
        return plain(await self.session.list_resource_templates())

    async def prompts(self) -> Json:
        return plain(await self.session.list_prompts())

    async def call(self, tool: str, arguments: Json, progress: Progress) -> Json:
        async def report(done: float, total: float | None, _message: str | None) -> None:
            progress(done, total)

        return plain(await self.session.call_tool(tool, arguments, progress_callback=report))

    async def read(self, uri: str) -> Json:
        return plain(await self.session.read_resource(AnyUrl(uri)))

    async def get(self, prompt: str, arguments: Json) -> Json:
        return plain(await self.session.get_prompt(prompt, arguments))


def streams(target: Target) -> AbstractAsyncContextManager[tuple[Any, ...]]:
    match target.transport:
        case "sse":
            return sse_client(target.url)
        case "stdio":
            return stdio_client(program(target))
        case _:
            return streamable_http_client(target.url)


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[PythonV1]:
    async with (
        streams(target) as (read, write, *_),
        ClientSession(read, write, **handlers(target.answer)) as session,
    ):
        initialized = await session.initialize()
        yield PythonV1(session, str(initialized.protocolVersion))


if __name__ == "__main__":
    visit.run(connect)
