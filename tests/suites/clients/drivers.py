"""The clients of the suite, and how one of them is run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from packages import PROGRAMS, SUITE, Failure, built, package, venv_program
from servers import Json, sheltered
from visit import MODERN

LEGACY = "2025-11-25"

# How long one client may take with one plan.
DRIVER_SECONDS = 90


@dataclass(frozen=True)
class Driver:
    """A client and the way it connects."""

    name: str
    command: tuple[str, ...]
    transport: str = "http"
    era: str = "legacy"
    # The revision it has to agree on with Tollbridge; None where it keeps that to itself.
    protocol: str | None = LEGACY
    # Whether it has something to say when a server asks it.
    answers: bool = True
    # Whether it hears of progress: all of it, or all but what comes right before the result.
    progress: str = "all"
    # A driver that starts a process for each request gets less to do.
    brief: bool = False

    def row(self) -> str:
        return self.name if self.era == "legacy" else f"{self.name} ({self.era})"

    def title(self) -> str:
        return f"{self.row()} over {self.transport}"


def all_drivers() -> list[Driver]:
    """Every client with every transport and era that it speaks; the slowest first."""

    def own(program: str) -> tuple[str, ...]:
        return (sys.executable, str(PROGRAMS / program))

    def python(environment: str, program: str) -> tuple[str, ...]:
        return (venv_program(environment, "python"), str(PROGRAMS / program))

    def node(program: str) -> tuple[str, ...]:
        return (str(package("node", "bin/node")), str(PROGRAMS / program))

    def both_eras(name: str, command: tuple[str, ...], **options: Any) -> list[Driver]:
        return [
            Driver(name, command, "http", **options),
            Driver(name, command, "http", "auto", MODERN, **options),
            Driver(name, command, "sse", **options),
            # That transport belongs to the legacy era, so this falls back; the rest is as above.
            Driver(name, command, "sse", "auto", **options | {"answers": False, "brief": True}),
            Driver(name, command, "stdio", **options),
            Driver(name, command, "stdio", "auto", MODERN, **options),
        ]

    # It never shows a revision, but in the modern era it takes no other. Each request is a process.
    inspector = {"protocol": None, "answers": False, "progress": "none", "brief": True}
    # The TypeScript SDKs forget progress that comes in one piece with the result.
    hasty = {"progress": "most"}
    return [
        Driver("inspector", own("inspector.py"), "http", **inspector),
        Driver("inspector", own("inspector.py"), "http", "modern", **inspector),
        Driver("inspector", own("inspector.py"), "sse", **inspector),
        *both_eras("fastmcp", python("python-v2", "fastmcp_client.py")),
        Driver("mcp-remote", own("mcp_remote.py"), "http", **hasty),
        # To its own client it speaks the legacy era all the same.
        Driver("mcp-remote", own("mcp_remote.py"), "http", "auto", **hasty),
        Driver("mcp-remote", own("mcp_remote.py"), "sse", **hasty),
        Driver("python-v1", python("python-v1", "python_v1.py"), "http"),
        Driver("python-v1", python("python-v1", "python_v1.py"), "sse"),
        Driver("python-v1", python("python-v1", "python_v1.py"), "stdio"),
        *both_eras("python-v2", python("python-v2", "python_v2.py")),
        Driver("rmcp", (str(built("examples/client")),), "http", answers=False),
        Driver("rmcp", (str(built("examples/client")),), "http", "auto", MODERN, answers=False),
        Driver("typescript-v1", node("typescript_v1.mjs"), "http", **hasty),
        Driver("typescript-v1", node("typescript_v1.mjs"), "sse", protocol=None, **hasty),
        Driver("typescript-v1", node("typescript_v1.mjs"), "stdio", protocol=None, **hasty),
        *both_eras("typescript-v2", node("typescript_v2.mjs"), **hasty),
    ]


def run_driver(driver: Driver, url: str, plan: Json, purpose: str) -> Json:
    """Runs one driver with one plan; gives its report. `url` is a command line over stdio."""
    out = SUITE / "out" / f"{driver.name}-{driver.era}-{driver.transport}"
    out.mkdir(parents=True, exist_ok=True)
    plan_file, report_file = (out / f"{purpose}-{part}.json" for part in ("plan", "report"))
    plan_file.write_text(json.dumps(plan, indent=1))
    report_file.unlink(missing_ok=True)
    # A server without the modern era would not do for a client that insists on it.
    era = "auto" if purpose == "direct" and driver.era == "modern" else driver.era
    command = [*driver.command, url, "--plan", str(plan_file), "--era", era]
    if driver.transport != "http":
        command += ["--transport", driver.transport]
    with tempfile.TemporaryDirectory(prefix="tollbridge-client-") as home:
        environment = sheltered(home) | {"MCP_CLIENTS": str(SUITE)}
        log = out / f"{purpose}.log"
        with log.open("w") as stderr, report_file.open("w") as stdout:
            how = run_group(command, environment, stdout, stderr)
    try:
        return json.loads(report_file.read_text())
    except json.JSONDecodeError:
        raise Failure(f"{purpose}: {how} without a report, see {log}") from None


# The drivers that run, each the leader of a process group that holds what it has started.
running: set[subprocess.Popen[bytes]] = set()


def run_group(command: list[str], environment: dict[str, str], stdout: Any, stderr: Any) -> str:
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    running.add(process)
    try:
        return f"ended with {process.wait(DRIVER_SECONDS)}"
    except subprocess.TimeoutExpired:
        return f"did not end within {DRIVER_SECONDS} s"
    finally:
        end_group(process)
        running.discard(process)


def end_drivers() -> None:
    for process in list(running):
        end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a driver, and what is left of its children once it has ended."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
