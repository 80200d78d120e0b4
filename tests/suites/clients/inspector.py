"""The command line of the official Inspector: one process for each request."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import visit
from visit import Json, Progress, Target


class Failed(Exception):
    """The Inspector has given an error instead of a result."""


class Inspector:
    # It says nowhere which revision it has agreed on; with `--era modern` it accepts no other.
    protocol = None

    # Each process costs most of a second of a core.
    at_once = 2

    def __init__(self, target: Target) -> None:
        modules = Path(os.environ["MCP_CLIENTS"], "node_modules")
        program = modules / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
        self.command = [str(modules / "node/bin/node"), str(program), "--cli", target.url]
        self.command += ["--transport", target.transport, "--protocol-era", target.era]
        self.command += ["--format", "json", "--quiet"]

    async def tools(self) -> Json:
        return await self.run("tools/list")

    async def resources(self) -> Json:
        return await self.run("resources/list")

    async def templates(self) -> Json:
        return await self.run("resources/templates/list")

    async def prompts(self) -> Json:
        return await self.run("prompts/list")

    async def call(self, tool: str, arguments: Json, _progress: Progress) -> Json:
        given = ["--tool-name", tool, "--tool-args-json", json.dumps(arguments)]
        return await self.run("tools/call", *given)

    async def read(self, uri: str) -> Json:
        return await self.run("resources/read", "--uri", uri)

    async def get(self, prompt: str, arguments: Json) -> Json:
        pairs = [f"{name}={value}" for name, value in arguments.items()]
        given = ["--prompt-args", *pairs] if pairs else []
        return await self.run("prompts/get", "--prompt-name", prompt, *given)

    async def run(self, method: str, *arguments: str) -> Json:
        process = await asyncio.create_subprocess_exec(
            *self.command,
            *("--method", method),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            stdout, stderr = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise Failed(f"exit code {process.returncode}: {stderr.decode().strip()[-500:]}")
        return json.loads(stdout)["result"]


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[Inspector]:
    yield Inspector(target)


if __name__ == "__main__":
    visit.run(connect)
