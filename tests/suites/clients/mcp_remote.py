"""mcp-remote, the bridge that gives desktop clients, which start a command, a server at a URL."""

from __future__ import annotations

import os
import shlex
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import stdio
import visit
from stdio import Stdio
from visit import Target


def connect(target: Target) -> AbstractAsyncContextManager[Stdio]:
    modules = Path(os.environ["MCP_CLIENTS"], "node_modules")
    command = [str(modules / "node/bin/node"), str(modules / "mcp-remote/dist/proxy.js")]
    command += [target.url, "--allow-http", "--transport", f"{target.transport}-only"]
    if target.era != "legacy":
        command += ["--protocol", "auto"]
    return stdio.connect(replace(target, url=shlex.join(command)))


if __name__ == "__main__":
    visit.run(connect)
