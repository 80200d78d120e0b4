"""What every driver in Python does once its client library is connected.

A driver is a small program around one client library. `clients.py` starts it with a URL and a plan,
the driver does what the plan says and prints a report; judging it is left to `clients.py`. Drivers
differ only in how they connect and in how their library spells a request: see `Client` below.

    DRIVER URL --plan FILE [--transport http|sse|stdio] [--era legacy|auto|modern]

With `--transport stdio` a command line stands in the place of the URL, quoted as for a shell.

In the `legacy` era a client says initialize, in the `modern` one it insists on the revision without
sessions, and with `auto` it asks for the modern one and falls back.

The plan is a JSON file:

    {"answer": "yes",
     "rounds": [[{"label": "sum", "tool": "get-sum", "arguments": {"a": 1, "b": 2}},
                 {"label": "document", "resource": "demo://resource/static/document/x"},
                 {"label": "city", "prompt": "args-prompt", "arguments": {"city": "Oslo"}}]]}

The steps of a round run at the same time, the rounds one after the other. With `answer` the client
declares that it can be asked, and answers every elicitation and every sampling request with it.

The report is one JSON object on standard output:

    {"protocol": "2025-11-25", "tools": [...], "resources": [...], "templates": [...],
     "prompts": [...], "calls": {"sum": {...}}, "progress": {"sum": [[1, 3]]}, "errors": ["..."]}

`visit.mjs` is the same for the drivers in JavaScript.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

# Generous: the longest step of any plan takes a second, but the machine may have other work.
CONNECT_SECONDS = 30
STEP_SECONDS = 20
# A gateway that a client starts itself has all servers to start before its first list.
LIST_SECONDS = 60

MODERN = "2026-07-28"

# More than a round has steps.
UNLIMITED = 1000

Json = dict[str, Any]

# Takes progress and total as a client library reports them.
Progress = Callable[[float, float | None], None]


@dataclass(frozen=True)
class Target:
    """What a driver connects to, and how."""

    url: str
    transport: str
    era: str
    answer: str | None


class Client(Protocol):
    """A connected client. Lists and results are what the library gives its user, as plain JSON."""

    protocol: str | None
    # How many requests it has in flight at most.
    at_once: int

    async def tools(self) -> Json: ...

    async def resources(self) -> Json: ...

    async def templates(self) -> Json: ...

    async def prompts(self) -> Json: ...

    async def call(self, tool: str, arguments: Json, progress: Progress) -> Json: ...

    async def read(self, uri: str) -> Json: ...

    async def get(self, prompt: str, arguments: Json) -> Json: ...


# Connects to a target; leaving the context disconnects.
Connect = Callable[[Target], AbstractAsyncContextManager[Client]]


@dataclass
class Report:
    protocol: str | None = None
    tools: list[Json] = field(default_factory=list)
    resources: list[Json] = field(default_factory=list)
    templates: list[Json] = field(default_factory=list)
    prompts: list[Json] = field(default_factory=list)
    calls: dict[str, Json] = field(default_factory=dict)
    progress: dict[str, list[list[float | None]]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def run(connect: Connect) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--transport", choices=("http", "sse", "stdio"), default="http")
    parser.add_argument("--era", choices=("legacy", "auto", "modern"), default="legacy")
    options = parser.parse_args()
    plan = json.loads(options.plan.read_text())
    target = Target(options.url, options.transport, options.era, plan.get("answer"))
    report = asyncio.run(visit(target, plan["rounds"], connect))
    print(json.dumps(vars(report)))


async def visit(target: Target, rounds: list[list[Json]], connect: Connect) -> Report:
    report = Report()
    try:
        async with asyncio.timeout(CONNECT_SECONDS) as patience, connect(target) as client:
            patience.reschedule(None)
            report.protocol = client.protocol
            await look_around(client, report)
            free = asyncio.Semaphore(client.at_once)
            for steps in rounds:
                await asyncio.gather(*(take(step, client, free, report) for step in steps))
            patience.reschedule(asyncio.get_running_loop().time() + CONNECT_SECONDS)
    except Exception as error:
        report.errors.append(f"connection: {describe(error)}")
    return report


async def look_around(client: Client, report: Report) -> None:
    lists = {
        "tools": (client.tools, "tools"),
        "resources": (client.resources, "resources"),
        "templates": (client.templates, "resourceTemplates"),
        "prompts": (client.prompts, "prompts"),
    }
    for name, (request, member) in lists.items():
        try:
            page = await asyncio.wait_for(request(), LIST_SECONDS)
        except Exception as error:
            report.errors.append(f"list of {name}: {describe(error)}")
            continue
        setattr(report, name, page[member])
        if page.get("nextCursor"):
            report.errors.append(f"list of {name}: it has a second page")


async def take(step: Json, client: Client, free: asyncio.Semaphore, report: Report) -> None:
    label = step["label"]
    arguments = step.get("arguments", {})

    def progress(done: float, total: float | None) -> None:
        report.progress.setdefault(label, []).append([done, total])

    def request() -> Coroutine[Any, Any, Json]:
        if "tool" in step:
            return client.call(step["tool"], arguments, progress)
        if "resource" in step:
            return client.read(step["resource"])
        return client.get(step["prompt"], arguments)

    async with free:
        try:
            report.calls[label] = await asyncio.wait_for(request(), STEP_SECONDS)
        except Exception as error:
            report.errors.append(f"{label}: {describe(error)}")


def describe(error: BaseException) -> str:
    """What happened, also where a task group or a library has wrapped it."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(describe(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"
