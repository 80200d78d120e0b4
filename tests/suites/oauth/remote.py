"""A sign-in by mcp-remote, which a client without OAuth starts: `signin.py` says what is printed.

    remote.py URL TOOL

It is started twice. The second one finds the tokens of the first, of which the access token has been
spoilt in between, and must do without a browser.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients"))

import stdio
from visit import Target


async def visit(url: str, tool: str, text: str) -> tuple[list[str], str]:
    modules = Path(os.environ["MCP_CLIENTS"], "node_modules")
    command = [str(modules / "node/bin/node"), str(modules / "mcp-remote/dist/proxy.js")]
    command += [url, "--allow-http", "--transport", "http-only"]
    target = Target(shlex.join(command), "stdio", "legacy", None)
    async with stdio.connect(target) as client:
        tools = await client.tools()
        result = await client.call(tool, {"text": text}, lambda *_: None)
    return [tool["name"] for tool in tools["tools"]], result["content"][0]["text"]


def tokens_file() -> Path:
    (found,) = Path(os.environ["HOME"], ".mcp-auth").rglob("*_tokens.json")
    return found


async def main(url: str, tool: str) -> None:
    tools, first = await visit(url, tool, "first")
    before = json.loads(tokens_file().read_text())
    tokens_file().write_text(json.dumps(before | {"access_token": "expired"}))
    _, second = await visit(url, tool, "second")
    after = json.loads(tokens_file().read_text())
    report = {
        "tools": tools,
        "said": [first, second],
        "refreshed": after["access_token"] not in ("expired", before["access_token"]),
        "rotated": after.get("refresh_token") != before.get("refresh_token"),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
