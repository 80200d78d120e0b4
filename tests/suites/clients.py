#!/usr/bin/env python3
"""Lets real MCP clients use real MCP servers through Tollbridge, several servers at once.

    clients.py                        every client over every transport it has; the nightly job
    clients.py --sample               each client once; the CI job
    clients.py --only typescript      the clients whose name begins so
    clients.py --servers              the servers alone, and a config for a Tollbridge of yours
    clients.py --gateway-url URL      a Tollbridge that runs with that config, while they run

Every client lists what there is, calls tools of all servers at the same time, reads resources, gets
prompts, hears of progress and is asked back. What it gets has to equal what the servers say to a
bare connection, and what the same client gets from a server that it connects to itself.

The clients are the programs in `clients/`, see `clients/visit.py`, and `examples/client.rs`.
Everything is written to `target/suites/clients`: the pinned packages of npm and PyPI, the plans,
the reports and the logs. Build first: `cargo build --bin tollbridge --example client`.

Exit code 0: all is well, or there is no usable Node or Python here. 1: a client is not well served,
or something is missing (in CI also Node and Python).
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shlex
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

# Drivers and this program share modules; the directory has the name that this file has.
sys.path.insert(0, str(Path(__file__).resolve().parent / "clients"))

from drivers import Driver, all_drivers, end_drivers, run_driver
from packages import PROGRAMS, SUITE, Failure, NotInstallable, install
from servers import (
    EVERYTHING,
    JOBS,
    SERVERS,
    STARTUP_SECONDS,
    Alone,
    Json,
    Rounds,
    Server,
    own_tollbridge,
    rounds_for,
    running_servers,
    server_program,
    tollbridge,
)


@dataclass(frozen=True)
class World:
    """What runs while the clients do."""

    gateway: str
    # With which it runs.
    config: Path
    # The directory that the servers for files and history work with.
    home: Path
    # Where server-everything is for clients that connect to it themselves, by transport: a URL or a
    # command line.
    direct: dict[str, str]
    # What a bare connection to each kind of server reports.
    reference: dict[str, Json]

    def tollbridge(self, transport: str, server: str | None = None) -> str:
        """Where Tollbridge is for a client, with one server or all of them."""
        if transport == "stdio":
            return own_tollbridge(self.config, server)
        url = self.gateway + ("/sse" if transport == "sse" else "/mcp")
        return url if server is None else f"{url}/servers/{server}"


def main() -> int:
    options = parse_arguments()
    # Ending by SystemExit ends the programs that were started as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        install()
        return serve_only() if options.servers else judge_all(options)
    except NotInstallable as reason:
        in_ci = os.environ.get("CI") == "true"
        print(f"{'failed' if in_ci else 'skipped'}: {reason}")
        return 1 if in_ci else 0
    except Failure as reason:
        print(f"failed: {reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="NAME", help="clients whose name begins so")
    parser.add_argument("--sample", action="store_true", help="each client once")
    parser.add_argument("--servers", action="store_true", help="run the servers alone")
    parser.add_argument("--gateway-url", metavar="URL", help="a Tollbridge in front of --servers")
    return parser.parse_args()


def serve_only() -> NoReturn:
    note = SUITE / "servers.json"
    with running_servers() as state:
        note.write_text(json.dumps(state))
        print(f"now run: tollbridge serve --config {state['config']}")
        print("and then this program with --gateway-url; ^C ends the servers", flush=True)
        try:
            threading.Event().wait()
        finally:
            note.unlink()


def judge_all(options: argparse.Namespace) -> int:
    drivers = [driver for driver in all_drivers() if driver.name.startswith(options.only)]
    if options.sample:
        # The first entry of each name: written last, it replaces the others.
        drivers = list({driver.name: driver for driver in reversed(drivers)}.values())
    if not drivers:
        raise Failure(f"no client's name begins with {options.only!r}")
    started = time.monotonic()
    with ExitStack() as stack:
        if options.gateway_url is None:
            state = stack.enter_context(running_servers())
            gateway = stack.enter_context(tollbridge(Path(state["config"])))
        else:
            state, gateway = servers_of_another(), options.gateway_url.rstrip("/")
        home = Path(state["home"])
        await_servers(gateway)
        config = Path(state["config"])
        world = World(gateway, config, home, state["direct"], references(home))
        found = dict(zip(drivers, judge_in_parallel(drivers, world), strict=True))
    print_table(found)
    failed = sum(bool(problems) for problems in found.values())
    print(f"{time.monotonic() - started:.0f} s")
    print(f"clients: {len(found) - failed} passed, {failed} failed")
    return 1 if failed else 0


def judge_in_parallel(drivers: list[Driver], world: World) -> list[list[str]]:
    slots: queue.SimpleQueue[int] = queue.SimpleQueue()
    for slot in range(JOBS):
        slots.put(slot)

    def with_slot(driver: Driver) -> list[str]:
        slot = slots.get()
        try:
            return judge(driver, slot, world)
        except Failure as reason:
            return [str(reason)]
        finally:
            slots.put(slot)

    with ThreadPoolExecutor(max_workers=JOBS) as pool:
        try:
            return list(pool.map(with_slot, drivers))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_drivers()
            raise


def judge(driver: Driver, slot: int, world: World) -> list[str]:
    """Where the client gets something else through Tollbridge than it should."""
    url = world.tollbridge(driver.transport)
    token = uuid.uuid4().hex
    servers = [server for server in SERVERS if server.kind != "notes"]
    servers.append(Server(f"notes-{slot}", "notes"))
    plan = {"rounds": together(servers, driver.brief, token, world)}
    merged = run_driver(driver, url, plan, "merged")
    problems = list(merged["errors"])
    if is_refused(merged):
        return problems
    if driver.protocol is not None and merged["protocol"] != driver.protocol:
        problems.append(f"agreed on {merged['protocol']} instead of {driver.protocol}")
    problems += judge_lists(merged, world)
    problems += judge_calls(driver, merged, servers, token, world)

    same = Server(EVERYTHING[driver.transport], "everything")
    alone = Alone(same.name, same.kind)
    plan = {"rounds": together([alone], driver.brief, token, world)}
    direct = run_driver(driver, world.direct[driver.transport], plan, "direct")
    problems += [f"without Tollbridge: {error}" for error in direct["errors"]]
    problems += judge_against(direct, driver, merged, same, token, world)
    if not driver.brief:
        url_of_one = world.tollbridge(driver.transport, same.name)
        route = run_driver(driver, url_of_one, plan, "route")
        problems += [f"alone: {error}" for error in route["errors"]]
        problems += judge_calls(driver, route, [alone], token, world)
        problems += judge_against(direct, driver, route, alone, token, world)
    if driver.answers:
        problems += judge_answers(driver, url)
    return problems


def is_refused(report: Json) -> bool:
    """Whether the client did not even connect; everything else is missing then as well."""
    return not report["tools"] and any(
        error.startswith("connection:") for error in report["errors"]
    )


def together(servers: list[Server], brief: bool, token: str, world: World) -> Rounds:
    """The first steps with all servers at the same time, then the next ones."""
    merged: Rounds = []
    for server in servers:
        for number, steps in enumerate(rounds_for(server.kind, token, world.home, brief)):
            if number == len(merged):
                merged.append([])
            merged[number] += [server.exposed_step(step) for step in steps]
    return merged


# Tools that server-everything lists only for clients that it can ask something. They are found by a
# second listing once such a client has come, so that a client may or may not see them yet.
GATED = (
    "get-roots-list",
    "trigger-elicitation-request",
    "trigger-sampling-request",
    "trigger-url-elicitation",
)


def gated(world: World) -> set[str]:
    """Exposed names of the tools that a server shows to some clients only."""
    kinds = {
        kind
        for kind, lists in world.reference.items()
        if any(item["name"] == "echo" for item in lists["tools"])
    }
    return {
        server.exposed(tool) for server in SERVERS if server.kind in kinds for tool in GATED
    }


def judge_lists(through: Json, world: World) -> list[str]:
    """Compares the names of everything that is listed with what the servers list themselves."""
    problems = []
    for list_name, key in (
        ("tools", "name"),
        ("prompts", "name"),
        ("resources", "uri"),
        ("templates", "uriTemplate"),
    ):
        wanted = {
            server.exposed(item[key]) if key == "name" else server.exposed_uri(item[key])
            for server in SERVERS
            for item in world.reference[server.kind][list_name]
        }
        got = [item[key] for item in through[list_name]]
        if missing := sorted(wanted - set(got)):
            problems.append(f"{list_name}: not listed: {', '.join(missing)}")
        if strange := sorted(set(got) - wanted - gated(world)):
            problems.append(f"{list_name}: not expected: {', '.join(strange)}")
        if len(got) != len(set(got)):
            problems.append(f"{list_name}: something is listed twice")
    return problems


def judge_calls(
    driver: Driver, through: Json, servers: list[Server], token: str, world: World
) -> list[str]:
    """Compares every result and all progress with what the servers say to a bare connection."""
    problems = []
    for server in servers:
        reference = world.reference[server.kind]
        for steps in rounds_for(server.kind, token, world.home, driver.brief):
            for step in steps:
                label = f"{server.name} {step['label']}"
                # What has no result has an error, which is a problem already.
                if label in through["calls"]:
                    wanted = server.exposed_result(reference["calls"][step["label"]])
                    got = neutral(through["calls"][label], token)
                    problems += difference(label, wanted, got)
                wanted_progress = reference["progress"].get(step["label"], [])
                got_progress = through["progress"].get(label, [])
                if not heard(driver, wanted_progress, got_progress):
                    problems.append(f"{label}: progress {got_progress}, not {wanted_progress}")
    return problems


def heard(driver: Driver, wanted: list[Any], got: list[Any]) -> bool:
    match driver.progress:
        case "all":
            return got == wanted
        case "most":
            return got in (wanted, wanted[:-1])
        case _:
            return got == []


def judge_against(
    direct: Json, driver: Driver, through: Json, server: Server, token: str, world: World
) -> list[str]:
    """Compares with what the same client gets from server-everything without Tollbridge.

    Here the items of lists are compared as a whole: nothing that the client shows may be missing.
    """
    problems = []
    for label, result in direct["calls"].items():
        if label in through["calls"]:
            wanted = server.exposed_result(neutral(result, token))
            got = neutral(through["calls"][label], token)
            problems += difference(f"direct: {label}", wanted, got)
    for list_name, key in (("tools", "name"), ("prompts", "name"), ("resources", "uri")):
        rename = server.exposed if key == "name" else server.exposed_uri
        listed = {item[key]: item for item in through[list_name]}
        # Some tools depend on what a client declares, so only those that all see are compared.
        names = {item[key] for item in world.reference["everything"][list_name]}
        changed = []
        for item in direct[list_name]:
            got = listed.get(rename(item[key]))
            if item[key] in names and got is not None:
                wanted, got = neutral(item, token), neutral(got | {key: item[key]}, token)
                if driver.era != "legacy":
                    # Of the tasks that only 2025-11-25 has; the TypeScript SDK drops it elsewhere.
                    wanted.pop("execution", None)
                    got.pop("execution", None)
                changed += difference(f"{list_name}: {item[key]}", wanted, got)
        problems += changed[:1]
        if changed[1:]:
            problems.append(f"{list_name}: {len(changed) - 1} more differ, see the reports")
    return problems


def judge_answers(driver: Driver, url: str) -> list[str]:
    """Whether what a server asks comes to the client that called it, and the answer back."""
    server = Server("asking", "asking")
    steps = [
        {"label": "user", "tool": "ask_user", "arguments": {"question": "What is the word?"}},
        {"label": "model", "tool": "ask_model", "arguments": {"prompt": "Say the word."}},
    ]
    token = uuid.uuid4().hex
    plan = {"answer": token, "rounds": [[server.exposed_step(step) for step in steps]]}
    report = run_driver(driver, url, plan, "asked")
    problems = list(report["errors"])
    for label, result in report["calls"].items():
        said = result["content"][0].get("text", "")
        if not said.endswith(f"says {token}"):
            problems.append(f"{label}: {said!r} is not what this client has answered")
    return problems


def difference(label: str, wanted: Any, got: Any) -> list[str]:
    if wanted == got:
        return []
    texts = [json.dumps(value, ensure_ascii=False, sort_keys=True) for value in (wanted, got)]
    start = max(0, len(os.path.commonprefix(texts)) - 60)
    wanted_part, got_part = (text[start : start + 400] for text in texts)
    return [f"{label}: differs\n      wanted … {wanted_part}\n      got    … {got_part}"]


def neutral(value: Any, token: str) -> Any:
    """A result or a listed item without what may differ from one connection to another."""
    if not isinstance(value, dict):
        return value
    # What only some revisions have, and the protocol's own metadata.
    hop = {"_meta", "cacheScope", "resultType", "ttlMs"}
    kept = {key: item for key, item in value.items() if key not in hop}
    # False by default, and some servers and libraries say so.
    if kept.get("isError") is False:
        del kept["isError"]
    return masked(kept, token)


def masked(value: Any, token: str) -> Any:
    match value:
        case dict():
            return {key: masked(item, token) for key, item in value.items() if item is not None}
        case list():
            return [masked(item, token) for item in value]
        case str():
            return MOMENT.sub("MOMENT", value.replace(token, "TOKEN"))
        case _:
            return value


# A time, a time of day, a day of the week.
MOMENT = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)?"
    r"|\b\d{1,2}:\d\d:\d\d [AP]M\b"
    r"|\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b"
)


def references(home: Path) -> dict[str, Json]:
    """What each kind of server reports to a bare connection."""
    kinds = list(dict.fromkeys(server.kind for server in SERVERS))

    def ask(kind: str) -> Json:
        token = uuid.uuid4().hex
        command, environment = server_program(kind, home, "reference")
        # `env` sets the variables, so that the whole is one command line.
        words = ["env", *(f"{key}={value}" for key, value in environment.items()), *command]
        driver = Driver(f"bare-{kind}", (sys.executable, str(PROGRAMS / "stdio.py")))
        plan = {"rounds": rounds_for(kind, token, home, brief=False)}
        report = run_driver(driver, shlex.join(words), plan, "reference")
        if report["errors"]:
            raise Failure(f"the server of {kind} fails alone: {'; '.join(report['errors'])}")
        for label, result in report["calls"].items():
            # If all clients were refused alike, nothing would be compared.
            if result.get("isError", False) != (label == "no sum"):
                raise Failure(f"the server of {kind} refuses {label!r} alone: {result}")
            report["calls"][label] = neutral(result, token)
        return report

    with ThreadPoolExecutor(max_workers=JOBS) as pool:
        return dict(zip(kinds, pool.map(ask, kinds), strict=True))


def servers_of_another() -> Json:
    try:
        return json.loads((SUITE / "servers.json").read_text())
    except FileNotFoundError:
        raise Failure("--gateway-url needs `clients.py --servers` to run meanwhile") from None


def await_servers(gateway: str) -> None:
    """Returns once Tollbridge is connected to all servers."""
    deadline = time.monotonic() + STARTUP_SECONDS
    while True:
        states = server_states(gateway)
        waiting = [server.name for server in SERVERS if states.get(server.name) != "connected"]
        if not waiting:
            return
        if time.monotonic() > deadline:
            told = ", ".join(f"{name} is {states.get(name, 'unknown')}" for name in waiting)
            raise Failure(f"not connected after {STARTUP_SECONDS} s: {told}")
        # There is no event to wait for on this side of HTTP.
        time.sleep(0.2)


def server_states(gateway: str) -> dict[str, str]:
    request = urllib.request.Request(f"{gateway}/status", headers={"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            status = json.load(answer)
    except urllib.error.HTTPError as error:
        # 503 has the same body, and says that no server is there yet.
        status = json.load(error)
    except OSError as error:
        raise Failure(f"no Tollbridge at {gateway}: {error}") from None
    return {server["name"]: server["state"] for server in status["servers"]}


def print_table(found: dict[Driver, list[str]]) -> None:
    rows = list(dict.fromkeys(driver.row() for driver in found))
    width = max(map(len, rows)) + 2
    print(f"{'':{width}}{'/mcp':8}{'/sse':8}stdio")
    for row in rows:
        cells = []
        for transport in ("http", "sse", "stdio"):
            verdicts = [
                "failed" if problems else "ok"
                for driver, problems in found.items()
                if (driver.row(), driver.transport) == (row, transport)
            ]
            cells.append(f"{''.join(verdicts) or '-':8}")
        print(f"{row:{width}}{''.join(cells)}".rstrip())
    for driver, problems in found.items():
        if problems:
            print(f"\n{driver.title()}:")
            for problem in problems:
                print(f"    {problem}")


if __name__ == "__main__":
    sys.exit(main())
