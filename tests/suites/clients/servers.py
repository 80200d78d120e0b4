"""The servers of the client suite: what runs, and what a client does with it.

A server has a kind, which is a program; some programs run more than once. All of them work on a
directory that ends with them, and listen on loopback if they listen at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packages import PROGRAMS, SUITE, Failure, built, package, venv_program

STARTUP_SECONDS = 60
STOP_SECONDS = 15

# Clients at the same time. Each of them takes notes with a server of its own, since that server
# loses one of two notes that come at once.
JOBS = 2

# Exposed names that are longer end in this many digits of a hash instead.
NAME_CHARACTERS_MAX = 46
HASH_DIGITS = 8

Json = dict[str, Any]
Rounds = list[list[Json]]


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

    def label(self, step: str) -> str:
        return f"{self.name} {step}"

    def exposed_step(self, step: Json) -> Json:
        names = {"tool": self.exposed, "prompt": self.exposed, "resource": self.exposed_uri}
        changed = {key: rename(step[key]) for key, rename in names.items() if key in step}
        return step | changed | {"label": self.label(step["label"])}

    def exposed_result(self, result: Any) -> Any:
        """A result with its URIs as clients see them; one within a text stays what it is."""
        match result:
            case dict():
                return {
                    key: self.exposed_uri(value) if key == "uri" else self.exposed_result(value)
                    for key, value in result.items()
                }
            case list():
                return [self.exposed_result(item) for item in result]
            case _:
                return result


class Alone(Server):
    """The same on a route of its own, where nothing is renamed."""

    def exposed(self, original: str) -> str:
        return original

    def exposed_uri(self, original: str) -> str:
        return original


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


@contextmanager
def running_servers() -> Iterator[Json]:
    """Runs what is reached by URL, and writes the config with all of `SERVERS`."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tollbridge-servers-")))
        furnish(home)
        http = stack.enter_context(everything("streamableHttp"))
        sse = stack.enter_context(everything("sse"))
        alone, _ = server_program("everything", home, EVERYTHING["stdio"])
        direct = {"http": f"{http}/mcp", "sse": f"{sse}/sse", "stdio": shlex.join(alone)}
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
        if transport in ("http", "sse"):
            lines += [f"url = {json.dumps(direct[transport])}", f'transport = "{transport}"']
            continue
        command, environment = server_program(server.kind, home, server.name)
        lines += [f"command = {json.dumps(command[0])}", f"args = {json.dumps(command[1:])}"]
        if environment:
            pairs = (f"{key} = {json.dumps(value)}" for key, value in environment.items())
            lines.append(f"env = {{ {', '.join(pairs)} }}")
        if server.kind == "asking":
            # A legacy server on a pipe does not say for which call it asks, and two calls do here.
            lines.append('isolation = "session"')
    return "\n".join(lines).lstrip() + "\n"


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
def everything(transport: str) -> Iterator[str]:
    """Runs server-everything by URL, where it would listen on every address of the machine."""
    index = package("@modelcontextprotocol/server-everything", "dist/index.js")
    command = [str(package("node", "bin/node")), "--require", str(PROGRAMS / "loopback.cjs")]
    with program(
        f"everything-{transport}", [*command, str(index), transport], dict(os.environ)
    ) as url:
        yield url


@contextmanager
def tollbridge(config: Path) -> Iterator[str]:
    command = [str(built("tollbridge")), "serve", "--config", str(config)]
    command += ["--listen", "127.0.0.1:0"]
    with tempfile.TemporaryDirectory(prefix="tollbridge-gateway-") as home:
        environment = sheltered(home) | {"TOLLBRIDGE_DATA_DIR": f"{home}/data"}
        with program("tollbridge", command, environment) as url:
            yield url


def own_tollbridge(config: Path, server: str | None) -> str:
    """The command line of a Tollbridge that its client starts, with one server or all of them.

    Every list has to be whole, so the first one waits for the slowest program.
    """
    words = ["env", f"TOLLBRIDGE_FIRST_LIST_WAIT={STARTUP_SECONDS}s"]
    words += [str(built("tollbridge")), "stdio", "--config", str(config)]
    return shlex.join(words if server is None else [*words, "--server", server])


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
