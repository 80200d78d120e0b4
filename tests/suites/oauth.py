#!/usr/bin/env python3
"""Lets real MCP clients sign in to Tollbridge by themselves, with a certified issuer.

    oauth.py                every client in every mode on every route; the nightly job
    oauth.py --sample       each client once, each mode at least twice; the CI job
    oauth.py --only mcp     the clients whose name begins so
    oauth.py --issuer       the issuer alone, for a Tollbridge of yours

The issuer is oidc-provider from npm: it registers clients by themselves, wants PKCE and resource
indicators, and rotates refresh tokens. Tollbridge runs in three modes: `external` takes its tokens,
`login` issues its own and has people log in there, `code` has them enter a one-time code instead.

A client finds everything out from the URL alone: it gets a 401, reads the metadata, registers, and
says which page its user is to visit. A scripted browser (`oauth/browser.py`) goes there, logs in and
consents. Then the client lists the tools and calls one; its access token is spoilt, and it has to
refresh and call again.

Packages are those of `clients.py`. Build first: `cargo build --bin tollbridge`.

Exit code 0: all is well, or there is no usable Node or Python here. 1: a client could not sign in.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Drivers and this program share modules; the directories have the names of the programs.
sys.path[:0] = [str(HERE / "clients"), str(HERE / "oauth")]

from browser import Browser, Stuck
from packages import SUITE, Failure, NotInstallable, built, install, package, venv_program
from servers import program, sheltered

OUT = SUITE / "out/oauth"
PROGRAMS = HERE / "oauth"

# One sign-in takes a few seconds, but the machine may have other work.
CLIENT_SECONDS = 90
JOBS = 2

MODES = ("external", "login", "code")
# The route and what the one tool is called there.
ROUTES = {"merged": ("/mcp", "mcp_toolbox_echo"), "server": ("/mcp/servers/toolbox", "echo")}

# A page that a client wants its user to visit.
PAGE = re.compile(r"https?://\S+[?&]code_challenge=\S+")


@dataclass(frozen=True)
class Client:
    name: str
    command: Callable[[], list[str]]


CLIENTS = [
    Client("typescript-v1", lambda: [node(), str(PROGRAMS / "signin.mjs"), "v1"]),
    Client("typescript-v2", lambda: [node(), str(PROGRAMS / "signin.mjs"), "v2"]),
    Client("python-v1", lambda: [venv_program("python-v1", "python"), str(PROGRAMS / "signin.py")]),
    Client("python-v2", lambda: [venv_program("python-v2", "python"), str(PROGRAMS / "signin.py")]),
    Client("mcp-remote", lambda: [sys.executable, str(PROGRAMS / "remote.py")]),
    Client("inspector", lambda: [sys.executable, str(PROGRAMS / "inspect_tools.py")]),
]

SAMPLE = {
    ("typescript-v1", "external", "merged"),
    ("typescript-v2", "login", "server"),
    ("python-v1", "login", "merged"),
    ("python-v2", "external", "server"),
    ("mcp-remote", "external", "merged"),
    ("inspector", "code", "server"),
    ("typescript-v1", "code", "merged"),
}


@dataclass(frozen=True)
class Case:
    client: Client
    mode: str
    route: str

    def title(self) -> str:
        return f"{self.client.name}, {self.mode}, {self.route}"

    def file(self, ending: str) -> Path:
        return OUT / f"{self.client.name}-{self.mode}-{self.route}.{ending}"


@dataclass(frozen=True)
class Gateway:
    url: str
    config: Path
    environment: dict[str, str]

    def login_code(self) -> str:
        """A new one-time code, as an administrator makes one."""
        command = [str(built("tollbridge")), "login-code", "people", "--json"]
        command += ["--config", str(self.config)]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode != 0:
            raise Failure(f"login-code: exit code {done.returncode}: {done.stderr or done.stdout}")
        return str(json.loads(done.stdout)["code"])


def main() -> int:
    options = parse_arguments()
    # Ending by SystemExit ends the programs that were started as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        install()
        OUT.mkdir(parents=True, exist_ok=True)
        return issuer_only() if options.issuer else judge_all(options)
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
    parser.add_argument("--issuer", action="store_true", help="run the issuer alone")
    parser.add_argument("--only", default="", metavar="NAME", help="clients whose name begins so")
    parser.add_argument("--mode", choices=MODES, help="only this mode")
    parser.add_argument("--sample", action="store_true", help="each client once")
    return parser.parse_args()


def issuer_only() -> int:
    with running_issuer("http://127.0.0.1", "http://127.0.0.1:8080") as url:
        print(f"issuer: {url}; client `gateway` with the secret `gateway-secret`; ^C ends it")
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


def judge_all(options: argparse.Namespace) -> int:
    cases = [
        Case(client, mode, route)
        for mode in MODES
        for route in ROUTES
        for client in CLIENTS
        if client.name.startswith(options.only) and options.mode in (None, mode)
    ]
    if options.sample:
        cases = [case for case in cases if (case.client.name, case.mode, case.route) in SAMPLE]
    if not cases:
        raise Failure("no case is left")
    started = time.monotonic()
    with ExitStack() as stack:
        modes = [mode for mode in MODES if any(case.mode == mode for case in cases)]
        gateways = {mode: stack.enter_context(running_gateway(mode)) for mode in modes}
        with ThreadPoolExecutor(max_workers=JOBS) as pool:
            found = list(pool.map(lambda case: judge(case, gateways[case.mode]), cases))
    failed = 0
    for case, problem in zip(cases, found, strict=True):
        print(f"{'failed' if problem else 'ok':7} {case.title()}{f': {problem}' if problem else ''}")
        failed += problem is not None
    print(f"{time.monotonic() - started:.0f} s")
    print(f"sign-ins: {len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


def judge(case: Case, gateway: Gateway) -> str | None:
    """What is wrong with the sign-in, if anything."""
    path, tool = ROUTES[case.route]
    code = gateway.login_code() if case.mode == "code" else None
    browser = Browser(user="ada", code=code)
    try:
        report = sign_in(case, [*case.client.command(), gateway.url + path, tool], browser)
    except (Failure, Stuck) as reason:
        return f"{reason}, see {case.file('log')}"
    problems = []
    if tool not in report["tools"]:
        problems.append(f"it lists {report['tools']}")
    for said, wanted in zip(report["said"], ("first", "second"), strict=True):
        if wanted not in said:
            problems.append(f"the tool says {said!r}, not {wanted}")
    if not report["refreshed"]:
        problems.append("it has not refreshed its token")
    if case.mode != "external" and report["rotated"] is False:
        problems.append("its refresh token was not rotated")
    return "; ".join(problems) or None


def sign_in(case: Case, command: list[str], browser: Browser) -> dict[str, Any]:
    """Runs a client, and visits the page that it names; its report."""
    stuck: list[Exception] = []
    with (
        tempfile.TemporaryDirectory(prefix="tollbridge-client-") as home,
        case.file("log").open("w") as log,
        case.file("json").open("w+") as stdout,
    ):
        # Nothing is to be opened but by the scripted browser.
        environment = sheltered(home) | {"MCP_CLIENTS": str(SUITE), "BROWSER": "true"}
        process = subprocess.Popen(
            command,
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

        def follow() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                log.write(line)
                log.flush()
                if (page := PAGE.search(line)) and not browser.visited:
                    try:
                        browser.sign_in(page[0])
                    except Exception as reason:
                        stuck.append(reason)
                        end_group(process)
                    log.writelines(f"browser: {url}\n" for url in browser.visited)

        follower = threading.Thread(target=follow)
        follower.start()
        try:
            code = process.wait(CLIENT_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_group(process)
            follower.join(CLIENT_SECONDS)
        if stuck:
            raise Failure(f"the browser: {stuck[0]}")
        if code != 0:
            how = f"ended with {code}" if code is not None else f"no end within {CLIENT_SECONDS} s"
            raise Failure(how)
        if not browser.visited:
            raise Failure("it has named no page to visit")
        stdout.seek(0)
        return json.loads(stdout.read())


def end_group(process: subprocess.Popen[str]) -> None:
    """Ends a client and what it has started: they are a process group of their own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def running_gateway(mode: str) -> Iterator[Gateway]:
    """Runs Tollbridge in a mode, and the issuer that it needs."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        issuer = None
        if mode != "code":
            issuer = stack.enter_context(running_issuer(url, url))
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="tollbridge-gateway-"))
        config = Path(home, "tollbridge.toml")
        config.write_text(config_text(mode, port, issuer))
        config.chmod(0o600)
        environment = sheltered(home) | {"TOLLBRIDGE_DATA_DIR": f"{home}/data"}
        command = [str(built("tollbridge")), "serve", "--config", str(config)]
        stack.enter_context(program(f"tollbridge-{mode}", command, environment))
        yield Gateway(url, config, environment)


def config_text(mode: str, port: int, issuer: str | None) -> str:
    text = f"""\
listen = "127.0.0.1:{port}"
public_url = "http://127.0.0.1:{port}"

[governance]
auth = "oauth"

[servers.toolbox]
transport = "builtin"

[agents.people]
policy = {{ mode = "all" }}

"""
    rule = '[[agents.match]]\nclaims = { sub = "ada" }\nagent = "people"\n'
    match mode:
        case "external":
            return text + rule + f'[oauth]\nmode = "external"\nissuer = "{issuer}"\n'
        case "login":
            login = f"""\
[oauth]
mode = "builtin"

[oauth.login]
issuer = "{issuer}"
client_id = "gateway"
client_secret = "gateway-secret"
"""
            return text + rule + login
        case _:
            return text + '[oauth]\nmode = "builtin"\n'


@contextmanager
def running_issuer(prefix: str, gateway: str) -> Iterator[str]:
    """Runs oidc-provider for resources whose URL begins with `prefix`."""
    port = free_port()
    command = [node(), str(PROGRAMS / "issuer.mjs"), str(port), prefix, f"{gateway}{LOGIN_REDIRECT}"]
    environment = dict(os.environ) | {"MCP_CLIENTS": str(SUITE)}
    with program(f"issuer-{port}", command, environment) as url:
        yield url


# Where people come back to who logged in at the issuer.
LOGIN_REDIRECT = "/oauth/login/callback"


def node() -> str:
    return str(package("node", "bin/node"))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
