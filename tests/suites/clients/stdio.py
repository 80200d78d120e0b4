"""A client of a server on standard input and output, with no library: every message as it came.

It takes a command line where the other drivers take a URL. `clients.py` learns from it what the
servers say when nobody is in between; `mcp_remote.py` talks to the bridge of that name through it.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import visit
from visit import UNLIMITED, Json, Progress, Target

PROTOCOL = "2025-11-25"

# Longer than any message of the servers here.
LINE_BYTES_MAX = 16 * 1024 * 1024

STOP_SECONDS = 10


class Refused(Exception):
    """The server has answered with an error."""


class Stdio:
    at_once = UNLIMITED

    def __init__(self, process: asyncio.subprocess.Process, answer: str | None) -> None:
        self.process = process
        self.answer = answer
        self.protocol: str | None = None
        self.last_id = 0
        self.waiting: dict[int, asyncio.Future[Json]] = {}
        self.progress: dict[int, Progress] = {}

    async def tools(self) -> Json:
        return await self.request("tools/list", {})

    async def resources(self) -> Json:
        return await self.unless_missing("resources", "resources/list")

    async def templates(self) -> Json:
        return await self.unless_missing("resources", "resources/templates/list")

    async def prompts(self) -> Json:
        return await self.unless_missing("prompts", "prompts/list")

    async def call(self, tool: str, arguments: Json, progress: Progress) -> Json:
        params = {"name": tool, "arguments": arguments}
        return await self.request("tools/call", params, progress)

    async def read(self, uri: str) -> Json:
        return await self.request("resources/read", {"uri": uri})

    async def get(self, prompt: str, arguments: Json) -> Json:
        return await self.request("prompts/get", {"name": prompt, "arguments": arguments})

    async def initialize(self) -> None:
        capabilities = {} if self.answer is None else {"elicitation": {}, "sampling": {}}
        params = {
            "protocolVersion": PROTOCOL,
            "capabilities": capabilities,
            "clientInfo": {"name": "stdio", "version": "1.0.0"},
        }
        result = await self.request("initialize", params)
        self.protocol = result["protocolVersion"]
        self.capabilities = result["capabilities"]
        await self.send({"method": "notifications/initialized"})

    async def unless_missing(self, capability: str, method: str) -> Json:
        """An empty list of what the server says it does not have."""
        if capability in self.capabilities:
            return await self.request(method, {})
        return {"resources": [], "resourceTemplates": [], "prompts": []}

    async def request(self, method: str, params: Json, progress: Progress | None = None) -> Json:
        self.last_id += 1
        request_id = self.last_id
        if progress is not None:
            self.progress[request_id] = progress
            params = params | {"_meta": {"progressToken": request_id}}
        answer = asyncio.get_running_loop().create_future()
        self.waiting[request_id] = answer
        await self.send({"id": request_id, "method": method, "params": params})
        try:
            return await answer
        finally:
            del self.waiting[request_id]
            self.progress.pop(request_id, None)

    async def send(self, message: Json) -> None:
        assert self.process.stdin is not None
        line = json.dumps({"jsonrpc": "2.0"} | message) + "\n"
        self.process.stdin.write(line.encode())
        await self.process.stdin.drain()

    async def listen(self) -> None:
        """Hears the server until it ends; then nobody waits for it any longer."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            if "method" not in message:
                self.settle(message)
            elif "id" in message:
                await self.send({"id": message["id"]} | self.reply(message["method"]))
            elif message["method"] == "notifications/progress":
                told = message["params"]
                if progress := self.progress.get(told["progressToken"]):
                    progress(told["progress"], told.get("total"))
        for answer in self.waiting.values():
            if not answer.done():
                answer.set_exception(Refused("the server has ended"))

    def settle(self, message: Json) -> None:
        answer = self.waiting.get(message["id"])
        if answer is None or answer.done():
            return
        if "error" in message:
            answer.set_exception(Refused(json.dumps(message["error"])))
        else:
            answer.set_result(message["result"])

    def reply(self, method: str) -> Json:
        """What this client says to a request of the server."""
        if method == "ping":
            return {"result": {}}
        if method == "elicitation/create" and self.answer is not None:
            return {"result": {"action": "accept", "content": {"answer": self.answer}}}
        if method == "sampling/createMessage" and self.answer is not None:
            content = {"type": "text", "text": self.answer}
            return {"result": {"role": "assistant", "model": "none", "content": content}}
        return {"error": {"code": -32601, "message": f"this client has no {method}"}}


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[Stdio]:
    process = await asyncio.create_subprocess_exec(
        *shlex.split(target.url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
    )
    client = Stdio(process, target.answer)
    listening = asyncio.create_task(client.listen())
    try:
        await client.initialize()
        yield client
    finally:
        await stop(process)
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening


async def stop(process: asyncio.subprocess.Process) -> None:
    """Ends a server as the protocol has it: no more input, then a signal, then a stronger one."""
    assert process.stdin is not None
    process.stdin.close()
    for end in (None, process.terminate, process.kill):
        with suppress(ProcessLookupError, TimeoutError):
            if end is not None:
                end()
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
            return


if __name__ == "__main__":
    visit.run(connect)
