"""A sign-in by the command line of the official Inspector: `signin.py` says what is printed.

    inspect_tools.py URL TOOL

Each request is a process of its own. The first one signs in, the others find its tokens; the access
token is spoilt before the last.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 80


def main(url: str, tool: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    modules = Path(os.environ["MCP_CLIENTS"], "node_modules")
    program = modules / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
    command = [str(modules / "node/bin/node"), str(program), "--cli", url]
    command += ["--transport", "http", "--format", "json"]
    command += ["--callback-url", f"http://127.0.0.1:{port}/oauth/callback"]
    # Without a terminal it signs in only where it may open a browser, which is one that does nothing here.
    environment = dict(os.environ) | {
        "MCP_AUTO_OPEN_ENABLED": "true",
        "MCP_INSPECTOR_SECRET_STORE": "file",
    }

    def run(method: str, *arguments: str) -> Any:
        done = subprocess.run(
            [*command, "--method", method, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        return json.loads(done.stdout)["result"]

    def call(text: str) -> str:
        given = ["--tool-name", tool, "--tool-args-json", json.dumps({"text": text})]
        return run("tools/call", *given)["content"][0]["text"]

    tools = run("tools/list")["tools"]
    first = call("first")
    before = spoil_tokens()
    second = call("second")
    after = tokens()
    report = {
        "tools": [tool["name"] for tool in tools],
        "said": [first, second],
        "refreshed": after["access_token"] not in ("expired", before["access_token"]),
        "rotated": after.get("refresh_token") != before.get("refresh_token"),
    }
    print(json.dumps(report))


def secrets_file() -> Path:
    return Path(os.environ["HOME"], ".mcp-inspector/secrets.json")


def tokens() -> dict[str, str]:
    secrets = json.loads(secrets_file().read_text())["secrets"]
    return json.loads(secrets[name_of_tokens(secrets)])


def spoil_tokens() -> dict[str, str]:
    """The tokens as they were."""
    state = json.loads(secrets_file().read_text())
    before = tokens()
    name = name_of_tokens(state["secrets"])
    state["secrets"][name] = json.dumps(before | {"access_token": "expired"})
    secrets_file().write_text(json.dumps(state))
    return before


def name_of_tokens(secrets: dict[str, str]) -> str:
    (name,) = [name for name in secrets if ":tokens:" in name]
    return name


if __name__ == "__main__":
    main(*sys.argv[1:])
