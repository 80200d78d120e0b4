#!/usr/bin/env python3
"""Lets real MCP clients use real MCP servers through Tollbridge, several servers at once.

    clients.py                        every client; the CI job
    clients.py --only typescript      the clients whose name begins so
    clients.py --servers              the servers alone, and a config for a Tollbridge of yours
    clients.py --gateway-url URL      a Tollbridge that runs with that config, while they run

Every client lists what there is, calls tools of all servers at the same time, reads resources, gets
prompts, hears of progress and is asked back. What it gets has to equal what the servers say to a
bare connection, and what the same client gets from a server that it connects to itself.

The clients are the programs in `clients/`, see `clients/visit.py`, and `examples/client.rs`.
Everything is written to `target/suites/clients`: the pinned packages of npm and PyPI, the plans, the
reports and the logs. Build first: `cargo build --bin tollbridge --example client`.

Exit code 0: all is well, or there is no usable Node or Python here. 1: a client is not well served,
or something is missing (in CI also Node and Python).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
SUITE = TARGET / "suites/clients"
PROGRAMS = Path(__file__).resolve().parent / "clients"

NPM = {
    "@modelcontextprotocol/client": "2.4.0",
    "@modelcontextprotocol/inspector": "2.12.0",
    "@modelcontextprotocol/sdk": "1.32.2",
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
    "@modelcontextprotocol/server-memory": "2026.8.31",
    "mcp-remote": "0.15.1",
    # The Inspector needs a newer Node than many machines have; npm has that as a package.
    "node": "22.23.3",
}

# By virtual environment: the two major versions of the SDK do not fit into one.
PYPI = {
    "python-v1": ["mcp==1.30.0"],
    "python-v2": [
        "fastmcp==4.1.2",
        "mcp==2.3.0",
        "mcp-server-git==2026.10.19",
        "mcp-server-time==2026.10.19",
    ],
}

LEGACY = "2025-11-25"
MODERN = "2026-07-28"

INSTALL_SECONDS = 900
STARTUP_SECONDS = 60
STOP_SECONDS = 15

# How long one client may take with one plan.
DRIVER_SECONDS = 90

# Clients at the same time. Each of them takes notes with a server of its own, since that server
# loses one of two notes that come at once.
JOBS = 2

# Exposed names that are longer end in this many digits of a hash instead.
NAME_CHARACTERS_MAX = 48
HASH_DIGITS = 8

Json = dict[str, Any]
Rounds = list[list[Json]]


class Failure(Exception):
    """Something that whoever runs this has to know; its text is the whole message."""


class NotInstallable(Failure):
    """This machine lacks Node, npm or a Python that makes virtual environments."""


@dataclass(frozen=True)
class Server:
    """A server behind Tollbridge."""

    name: str
    # Servers of one kind are the same program; what it is good for says `rounds_for`.
    kind: str

    def exposed(self, original: str) -> str:
        """What clients call its tool or prompt."""
        name = re.sub("[^A-Za-z0-9_]", "_", f"mcp_{self.name}_{original}")
        if len(name) <= NAME_CHARACTERS_MAX:
            return name
        digest = hashlib.sha256(f"{self.name}\0{original}".encode()).hexdigest()
        return f"{name[: NAME_CHARACTERS_MAX - HASH_DIGITS - 1]}_{digest[:HASH_DIGITS]}"

    def exposed_uri(self, original: str) -> str:
        return f"{self.name}+{original}"

    def exposed_step(self, step: Json) -> Json:
        names = {"tool": self.exposed, "prompt": self.exposed, "resource": self.exposed_uri}
        changed = {key: rename(step[key]) for key, rename in names.items() if key in step}
        return step | changed | {"label": f"{self.name} {step['label']}"}


# Three times server-everything, by transport; the names are so long that some of the tools' get too
# long. `notes-N` belongs to the Nth client of those that run at the same time.
EVERYTHING = {
    "stdio": "everything",
    "http": "everything-over-http",
    "sse": "everything-over-sse",
}
SERVERS = [
    *(Server(name, "everything") for name in EVERYTHING.values()),
    Server("files", "files"),
    *(Server(f"notes-{slot}", "notes") for slot in range(JOBS)),
    Server("clock", "clock"),
    Server("history", "history"),
    Server("asking", "asking"),
]


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


@dataclass(frozen=True)
class World:
    """What runs while the clients do."""

    gateway: str
    # The directory that the servers for files and history work with.
    home: Path
    # URLs of server-everything for clients that connect to it themselves, by transport.
    direct: dict[str, str]
    # What a bare connection to each kind of server reports.
    reference: dict[str, Json]


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
    parser.add_argument("--servers", action="store_true", help="run the servers alone")
    parser.add_argument("--gateway-url", metavar="URL", help="a Tollbridge in front of --servers")
    return parser.parse_args()


def serve_only() -> int:
    with running_servers() as state:
        (SUITE / "servers.json").write_text(json.dumps(state))
        print(f"now run: tollbridge serve --config {state['config']}")
        print("and then this program with --gateway-url; ^C ends the servers")
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
    (SUITE / "servers.json").unlink()
    return 0


def judge_all(options: argparse.Namespace) -> int:
    drivers = [driver for driver in all_drivers() if driver.name.startswith(options.only)]
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
        world = World(gateway, home, state["direct"], references(home))
        found = dict(zip(drivers, judge_in_parallel(drivers, world)))
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
    path = "/sse" if driver.transport == "sse" else "/mcp"
    token = uuid.uuid4().hex
    servers = [server for server in SERVERS if server.kind != "notes"]
    servers.append(Server(f"notes-{slot}", "notes"))
    planned = [
        [[server.exposed_step(step) for step in steps] for steps in rounds]
        for server in servers
        for rounds in [rounds_for(server.kind, token, world.home, driver.brief)]
    ]
    together = [sum(steps, []) for steps in zip_longest(*planned, fillvalue=[])]
    through = run_driver(driver, f"{world.gateway}{path}", {"rounds": together}, "through")

    problems = list(through["errors"])
    if driver.protocol is not None and through["protocol"] != driver.protocol:
        problems.append(f"agreed on {through['protocol']} instead of {driver.protocol}")
    problems += judge_lists(through, world)
    problems += judge_calls(driver, through, servers, token, world)
    problems += judge_against_direct(driver, through, token, world)
    if driver.answers:
        problems += judge_answers(driver, f"{world.gateway}{path}")
    return problems


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
        if strange := sorted(set(got) - wanted):
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
                    wanted = reference["calls"][step["label"]]
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


def judge_against_direct(driver: Driver, through: Json, token: str, world: World) -> list[str]:
    """Compares with what the same client gets from server-everything without Tollbridge.

    Here the items of lists are compared as a whole: nothing that the client shows may be missing.
    """
    rounds = rounds_for("everything", token, world.home, driver.brief)
    direct = run_driver(driver, world.direct[driver.transport], {"rounds": rounds}, "direct")
    problems = [f"without Tollbridge: {error}" for error in direct["errors"]]
    server = Server(EVERYTHING[driver.transport], "everything")
    for label, result in direct["calls"].items():
        got = through["calls"].get(f"{server.name} {label}")
        if got is not None:
            problems += difference(f"direct {label}", neutral(result, token), neutral(got, token))
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
            text = value.replace(token, "TOKEN")
            text = PREFIXED_URI.sub("", text)
            return MOMENT.sub("MOMENT", text)
        case _:
            return value


# The prefix of an exposed URI, wherever it stands.
PREFIXED_URI = re.compile(
    r"(?<![\w.+-])(?:"
    + "|".join(re.escape(server.name) for server in SERVERS)
    + r")\+(?=[a-z][a-z0-9.+-]*:)"
)

# A time, a time of day, a day of the week.
MOMENT = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)?"
    r"|\b\d{1,2}:\d\d:\d\d [AP]M\b"
    r"|\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b"
)


def rounds_for(kind: str, token: str, home: Path, brief: bool) -> Rounds:
    """What a client does with a server of a kind. Nobody else has the token."""

    def tool(label: str, name: str, **arguments: Any) -> Json:
        return {"label": label, "tool": name, "arguments": arguments}

    match kind:
        case "everything":
            long = "trigger-long-running-operation"
            document = "demo://resource/static/document/features.md"
            steps = [
                tool("echo", "echo", message=token),
                {"label": "document", "resource": document},
                {"label": "city", "prompt": "args-prompt", "arguments": {"city": "Oslo"}},
            ]
            if not brief:
                steps += [
                    tool("sum", "get-sum", a=2, b=3),
                    tool("no sum", "get-sum", a="two", b=3),
                    tool("long", long, duration=0.6, steps=3),
                    tool("longer", long, duration=0.8, steps=5),
                    tool("weather", "get-structured-content", location="Chicago"),
                    tool("image", "get-tiny-image"),
                    tool("note", "get-annotated-message", messageType="error"),
                    tool("links", "get-resource-links", count=2),
                    tool("embedded", "get-resource-reference", resourceType="Text", resourceId=1),
                    {"label": "template", "resource": "demo://resource/dynamic/text/7"},
                    {"label": "simple", "prompt": "simple-prompt"},
                    {
                        "label": "resource",
                        "prompt": "resource-prompt",
                        "arguments": {"resourceType": "Text", "resourceId": "1"},
                    },
                ]
            return [steps]
        case "files":
            text = tool("text", "read_text_file", path=str(home / "files/hello.txt"))
            listing = tool("listing", "list_directory", path=str(home / "files"))
            return [[text] if brief else [text, listing]]
        case "notes":
            entity = {"name": token, "entityType": "word", "observations": ["is secret"]}
            return [
                [tool("create", "create_entities", entities=[entity])],
                # The whole graph would hold what others have written.
                [tool("open", "open_nodes", names=[token])],
            ]
        case "clock":
            return [[tool("now", "get_current_time", timezone="UTC")]]
        case "history":
            repository = str(home / "repository")
            status = tool("status", "git_status", repo_path=repository)
            log = tool("log", "git_log", repo_path=repository, max_count=1)
            return [[status] if brief else [status, log]]
        case _:
            return []


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
        *both_eras("python-v2", python("python-v2", "python_v2.py")),
        Driver("rmcp", (str(built("examples/client")),), "http", answers=False),
        Driver("rmcp", (str(built("examples/client")),), "http", "auto", MODERN, answers=False),
        Driver("typescript-v1", node("typescript_v1.mjs"), "http", **hasty),
        Driver("typescript-v1", node("typescript_v1.mjs"), "sse", protocol=None, **hasty),
        *both_eras("typescript-v2", node("typescript_v2.mjs"), **hasty),
    ]


def run_driver(driver: Driver, url: str, plan: Json, purpose: str) -> Json:
    """Runs one driver with one plan; gives its report."""
    out = SUITE / "out" / driver.title().replace(" ", "-")
    out.mkdir(parents=True, exist_ok=True)
    plan_file, report_file = (out / f"{purpose}-{part}.json" for part in ("plan", "report"))
    plan_file.write_text(json.dumps(plan, indent=1))
    report_file.unlink(missing_ok=True)
    # A server without the modern era would not do for a client that insists on it.
    era = "auto" if purpose == "direct" and driver.era == "modern" else driver.era
    command = [*driver.command, url, "--plan", str(plan_file), "--era", era]
    if driver.transport == "sse":
        command += ["--transport", "sse"]
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


def references(home: Path) -> dict[str, Json]:
    """What each kind of server reports to a bare connection."""
    kinds = list(dict.fromkeys(server.kind for server in SERVERS))

    def ask(kind: str) -> Json:
        token = uuid.uuid4().hex
        command, environment = server_program(kind, home, "reference")
        # `env` sets the variables, so that the whole is one command line.
        words = ["env", *(f"{key}={value}" for key, value in environment.items()), *command]
        driver = Driver(f"reference {kind}", (sys.executable, str(PROGRAMS / "stdio.py")))
        plan = {"rounds": rounds_for(kind, token, home, brief=False)}
        report = run_driver(driver, shlex.join(words), plan, "bare")
        if report["errors"]:
            raise Failure(f"the server of {kind} fails alone: {'; '.join(report['errors'])}")
        for label, result in report["calls"].items():
            # If all clients were refused alike, nothing would be compared.
            if result.get("isError", False) != (label == "no sum"):
                raise Failure(f"the server of {kind} refuses {label!r} alone: {result}")
            report["calls"][label] = neutral(result, token)
        return report

    with ThreadPoolExecutor(max_workers=JOBS) as pool:
        return dict(zip(kinds, pool.map(ask, kinds)))


def server_program(kind: str, home: Path, name: str) -> tuple[list[str], dict[str, str]]:
    """The command line of a server on standard output, and variables that it needs."""
    node = str(package("node", "bin/node"))
    index = "dist/index.js"
    match kind:
        case "everything":
            return [node, str(package("@modelcontextprotocol/server-everything", index))], {}
        case "files":
            program = str(package("@modelcontextprotocol/server-filesystem", index))
            return [node, program, str(home / "files")], {}
        case "notes":
            program = str(package("@modelcontextprotocol/server-memory", index))
            return [node, program], {"MEMORY_FILE_PATH": str(home / f"{name}.jsonl")}
        case "clock":
            return [venv_program("python-v2", "mcp-server-time"), "--local-timezone=UTC"], {}
        case "history":
            program = venv_program("python-v2", "mcp-server-git")
            return [program, "--repository", str(home / "repository")], {}
        case "asking":
            return [venv_program("python-v2", "python"), str(PROGRAMS / "asking_server.py")], {}
        case _:
            raise AssertionError(kind)


@contextmanager
def running_servers() -> Iterator[Json]:
    """Runs what is reached by URL, and writes the config with all of `SERVERS`."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tollbridge-servers-")))
        furnish(home)
        http = stack.enter_context(everything("streamableHttp"))
        sse = stack.enter_context(everything("sse"))
        direct = {"http": f"{http}/mcp", "sse": f"{sse}/sse"}
        config = home / "config.toml"
        config.write_text(config_text(home, direct))
        yield {"home": str(home), "direct": direct, "config": str(config)}


def furnish(home: Path) -> None:
    """Makes the directory and the repository that servers show."""
    (home / "files").mkdir()
    (home / "files/hello.txt").write_text("Hello,\nbridge: ü, 漢字, \U0001f309.\n")
    (home / "files/more").mkdir()
    repository = home / "repository"
    author = ["-c", "user.name=Author", "-c", "user.email=author@example.com"]
    for words in (
        ["init", "--quiet", "--initial-branch=main", str(repository)],
        ["-C", str(repository), *author, "commit", "--quiet", "--allow-empty", "-m", "Begin"],
    ):
        done = subprocess.run(
            ["git", *words], env=sheltered(str(home)), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise Failure(f"git {words[0]} fails: {done.stderr}")


def config_text(home: Path, direct: dict[str, str]) -> str:
    lines = []
    for server in SERVERS:
        lines.append(f"\n[servers.{server.name}]")
        transport = {name: transport for transport, name in EVERYTHING.items()}.get(server.name)
        if transport in direct:
            lines += [f"url = {json.dumps(direct[transport])}", f'transport = "{transport}"']
            continue
        command, environment = server_program(server.kind, home, server.name)
        lines += [f"command = {json.dumps(command[0])}", f"args = {json.dumps(command[1:])}"]
        if environment:
            pairs = (f"{key} = {json.dumps(value)}" for key, value in environment.items())
            lines.append(f"env = {{ {', '.join(pairs)} }}")
        if server.kind == "asking":
            # A legacy server on a pipe does not say which call it asks for, and here two ask at once.
            lines.append('isolation = "session"')
    return "\n".join(lines).lstrip() + "\n"


def servers_of_another() -> Json:
    try:
        return json.loads((SUITE / "servers.json").read_text())
    except FileNotFoundError:
        raise Failure("--gateway-url needs `clients.py --servers` to run meanwhile") from None


@contextmanager
def everything(transport: str) -> Iterator[str]:
    """Runs server-everything by URL, where it would listen on every address of the machine."""
    index = package("@modelcontextprotocol/server-everything", "dist/index.js")
    command = [str(package("node", "bin/node")), "--require", str(PROGRAMS / "loopback.cjs")]
    with program(f"everything-{transport}", [*command, str(index), transport], dict(os.environ)) as url:
        yield url


@contextmanager
def tollbridge(config: Path) -> Iterator[str]:
    command = [str(built("tollbridge")), "serve", "--config", str(config)]
    command += ["--listen", "127.0.0.1:0"]
    with tempfile.TemporaryDirectory(prefix="tollbridge-gateway-") as home:
        with program("tollbridge", command, sheltered(home)) as url:
            yield url


def sheltered(home: str) -> dict[str, str]:
    """Variables with which nothing of whoever runs this changes the outcome, or is changed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TOLLBRIDGE_")}
    places = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
    return kept | {place: home for place in places}


@contextmanager
def program(name: str, command: list[str], environment: dict[str, str]) -> Iterator[str]:
    """Runs a program as long as the block lasts; gives the URL of its first line of output."""
    log = SUITE / "out" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        try:
            yield listening_url(process, name, log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def listening_url(process: subprocess.Popen[str], name: str, log: Path) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], STARTUP_SECONDS)
    line = process.stdout.readline().strip() if ready else ""
    listening = re.match(r"listening on (http://\S+)", line)
    if listening is None:
        raise Failure(f"{name} does not say where it listens: {line!r}\n{log.read_text()[-2000:]}")
    return listening[1]


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
    request = urllib.request.Request(
        f"{gateway}/status", headers={"Accept": "application/json"}
    )
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
    print(f"{'':{width}}{'/mcp':8}{'/sse':8}".rstrip())
    for row in rows:
        cells = []
        for transport in ("http", "sse"):
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


def built(name: str) -> Path:
    binary = TARGET / "debug" / name
    if not binary.is_file():
        raise Failure(f"{binary} is missing, run: cargo build --bin tollbridge --example client")
    return binary


def install() -> None:
    """Installs the pinned packages, unless they are there."""
    SUITE.mkdir(parents=True, exist_ok=True)
    if stamp("npm") != NPM:
        npm = shutil.which("npm")
        if npm is None:
            raise NotInstallable("npm is missing; install Node to run the clients")
        manifest = {"private": True, "dependencies": NPM}
        (SUITE / "package.json").write_text(json.dumps(manifest, indent=1) + "\n")
        installing([npm, "install", "--no-audit", "--no-fund", "--loglevel", "error"])
        stamp("npm", NPM)
    for environment, requirements in PYPI.items():
        if stamp(environment) != requirements:
            installing([sys.executable, "-m", "venv", "--clear", environment])
            pip = [venv_program(environment, "python"), "-m", "pip", "install", "--quiet"]
            installing([*pip, *requirements])
            stamp(environment, requirements)


def stamp(name: str, value: Any = None) -> Any:
    """What was last installed under a name; with a value, it has been just now."""
    file = SUITE / f"{name}.installed.json"
    if value is not None:
        file.write_text(json.dumps(value))
        return value
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        return None


def installing(command: list[str]) -> None:
    print(f"running {shlex.join(Path(word).name for word in command[:4])} ...", flush=True)
    try:
        done = subprocess.run(
            command,
            cwd=SUITE,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotInstallable(f"no end within {INSTALL_SECONDS} s: {shlex.join(command)}") from None
    if done.returncode != 0:
        output = (done.stdout + done.stderr)[-2000:]
        raise NotInstallable(f"{shlex.join(command)} fails:\n{output}")


def package(name: str, file: str) -> Path:
    """A file of an npm package."""
    found = SUITE / "node_modules" / name / file
    if not found.is_file():
        raise NotInstallable(f"npm has installed no {file} of {name} for this machine")
    return found


def venv_program(environment: str, name: str) -> str:
    return str(SUITE / environment / "bin" / name)


if __name__ == "__main__":
    sys.exit(main())
