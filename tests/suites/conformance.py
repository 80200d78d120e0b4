#!/usr/bin/env python3
"""Judges Tollbridge by the official MCP conformance suite, check by check.

The suite's own verdicts say little about a proxy: many scenarios pass on any server that answers
errors. So every scenario runs twice, against our conformance server (`examples/conformance_server`)
directly and through Tollbridge, and every check that succeeds directly has to succeed through
Tollbridge as well.

    conformance.py run [--client]        everything: direct, over HTTP, over stdio; the CI job
    conformance.py direct                the conformance server alone
    conformance.py through --gateway-url http://127.0.0.1:8080
                                         a Tollbridge that runs, with servers `http` and `pipe`
    conformance.py compare A.json B.json two results of the above
    conformance.py client-direct         the suite's client scenarios, our driver alone
    conformance.py client-through        the same with Tollbridge between the suite and the driver
    conformance.py oauth-client          the suite's authorization scenarios, with the OAuth client of
                                         Tollbridge (`cargo build --example oauth_client`)
    conformance.py oauth-through         the same with a Tollbridge that runs

`--only 2025-11-25/tools-list` (or just `2025-11-25`, `tasks`) runs less. Everything is written to
`target/suites`: the pinned npm packages, the results, the suite's own files and the logs. Build
first: `cargo build --bin tollbridge --example conformance_server`.

Exit code 0: all is well, or there is no Node here. 1: something is missing (in CI also Node).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
SUITES = TARGET / "suites"
DRIVER = "tests/suites/client_driver.mjs"
OAUTH_DRIVER = "tests/suites/oauth_gateway.py"

# The suite has no stable release that knows 2026-07-28, so its exact version matters: another one
# has other checks. It needs Node 22, which npm has as a package.
PACKAGES = {
    "@modelcontextprotocol/conformance": "0.2.0-alpha.12",
    "@modelcontextprotocol/client": "2.4.0",
    "node": "22.23.3",
}

# What the suite finds in the conformance server alone: scenarios that pass, checks that succeed.
# One scenario of `tasks` has no checks yet, so it does not pass.
DIRECT = {
    "2025-06-18": (27, 56),
    "2025-11-25": (33, 84),
    "2026-07-28": (40, 153),
    "tasks": (9, 44),
}

# Scenarios of the Tasks extension, which the suite runs only by name.
TASKS = [
    "tasks-capability-negotiation",
    "tasks-dispatch-and-envelope",
    "tasks-lifecycle",
    "tasks-mrtr-composition",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-request-state-removal",
    "tasks-required-task-error",
    "tasks-status-notifications",
    "tasks-wire-fields",
]

# Client scenarios without authorization, and the checks that succeed with our driver alone.
CLIENT = {
    "2025-11-25": {
        "initialize": 1,
        "tools_call": 2,
        "elicitation-sep1034-client-defaults": 5,
        "sse-retry": 3,
        "json-schema-2020-12-preservation": 9,
    },
    "2026-07-28": {
        "tools_call": 2,
        "request-metadata": 8,
        "http-standard-headers": 9,
        "http-custom-headers": 18,
        "http-invalid-tool-headers": 12,
        "sep-2322-client-request-state": 5,
        "json-schema-ref-no-deref": 1,
        "json-schema-2020-12-preservation": 9,
    },
}

# Client scenarios of authorization. The suite runs those of extensions only by name.
AUTH_BOTH = [
    "metadata-default",
    "metadata-var1",
    "metadata-var2",
    "metadata-var3",
    "basic-cimd",
    "scope-from-www-authenticate",
    "scope-from-scopes-supported",
    "scope-omitted-when-undefined",
    "scope-step-up",
    "scope-retry-limit",
    "token-endpoint-auth-basic",
    "token-endpoint-auth-post",
    "token-endpoint-auth-none",
    "pre-registration",
]
AUTH = {
    "2025-03-26": ["2025-03-26-oauth-metadata-backcompat", "2025-03-26-oauth-endpoint-fallback"],
    "2025-11-25": AUTH_BOTH,
    "2026-07-28": [
        *AUTH_BOTH,
        "resource-mismatch",
        "offline-access-scope",
        "offline-access-not-supported",
        "authorization-server-migration",
        "iss-supported",
        "iss-not-advertised",
        "iss-supported-missing",
        "iss-wrong-issuer",
        "iss-unexpected",
        "iss-normalized",
        "metadata-issuer-mismatch",
    ],
    # Not there: `dpop`, `dpop-nonce` and `wif-jwt-bearer`, which Tollbridge does not do.
    "extension": [
        "client-credentials-basic",
        "client-credentials-jwt",
        "enterprise-managed-authorization",
    ],
}

# Servers of the Tollbridge to judge: our conformance server behind HTTP and behind a pipe.
ROUTES = ("http", "pipe")

# Checks that cannot succeed behind Tollbridge: (route, group, scenario, check) and the reason.
EXEMPT = {
    ("pipe", "2025-11-25", "server-sse-polling", "server-sse-disconnect-resume"): (
        "a server on stdio has no event stream that it could close before it answers"
    ),
    **{
        ("oauth-through", revision, "basic-cimd", "cimd-client-id-used"): (
            "the document that the suite expects is that of its own client, and a gateway without TLS has none"
        )
        for revision in ("2025-11-25", "2026-07-28")
    },
}

STARTUP_SECONDS = 30
STOP_SECONDS = 15
SUITE_SECONDS = 600

# The driver ends by itself before that, and ends its Tollbridge.
CLIENT_MILLISECONDS = 60_000


class Failure(Exception):
    """Something that whoever runs this has to know; its text is the whole message."""


class NoNode(Failure):
    """There is no usable Node or npm."""


@dataclass
class Scenario:
    """What one scenario found: check ids, as often as the suite reports them."""

    succeeded: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def passed(self) -> bool:
        return bool(self.succeeded) and not self.failed


# Group (a revision, or `tasks`) to scenario name to what it found.
Results = dict[str, dict[str, Scenario]]

# A command returns the problems that it found.
Command = Callable[[argparse.Namespace], list[str]]


@dataclass(frozen=True)
class Job:
    """One run of the suite's program: a whole revision, or one scenario."""

    group: str
    scenario: str | None = None


def main() -> int:
    options = parse_arguments()
    # Ending by SystemExit ends the programs that were started as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started = time.monotonic()
    try:
        problems = options.command(options)
    except NoNode as reason:
        in_ci = os.environ.get("CI") == "true"
        print(f"{'failed' if in_ci else 'skipped'}: {reason}")
        return 1 if in_ci else 0
    except Failure as reason:
        print(f"failed: {reason}", file=sys.stderr)
        return 1
    for problem in problems:
        print(problem)
    verdict = f"problems: {len(problems)}" if problems else "every check succeeds"
    print(f"{verdict}, {time.monotonic() - started:.0f} s")
    return 1 if problems else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Command) -> argparse.ArgumentParser:
        added = commands.add_parser(name)
        added.set_defaults(command=run)
        added.add_argument("--only", metavar="GROUP[/SCENARIO]", help="run less than everything")
        added.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
        return added

    everything = command("run", run_all)
    everything.add_argument("--client", action="store_true", help="the client scenarios as well")
    command("direct", run_direct)
    through = command("through", run_through)
    through.add_argument("--gateway-url", required=True)
    for judging in (everything, through):
        judging.add_argument(
            "--route", choices=ROUTES, action="append", help="judge this route only"
        )
    through.add_argument("--baseline", type=Path, help="a direct.json instead of a direct run")
    comparing = command("compare", run_compare)
    comparing.add_argument("direct", type=Path)
    comparing.add_argument("through", type=Path)
    command("client-direct", run_client_direct)
    command("client-through", run_client_through)
    command("oauth-client", run_oauth_client)
    command("oauth-through", run_oauth_through)
    return parser.parse_args()


def run_all(options: argparse.Namespace) -> list[str]:
    install()
    with ExitStack() as stack:
        # Each route has a server of its own: some checks wait for changes that others cause.
        direct = stack.enter_context(conformance_server("direct"))
        backend = stack.enter_context(conformance_server("http"))
        gateway = stack.enter_context(tollbridge(backend))
        urls = {"direct": direct} | gateway_urls(gateway, options)
        found = judge_servers(urls, options)
    problems = unexpected(found["direct"], options)
    for route in options.route or ROUTES:
        problems += differences(found["direct"], found[route], route)
    print_table(found)
    if options.client and client_jobs(options.only):
        problems += run_client_through(options)
    return problems


def run_direct(options: argparse.Namespace) -> list[str]:
    install()
    with conformance_server("direct") as url:
        found = judge_servers({"direct": url}, options)
    print_table(found)
    return unexpected(found["direct"], options)


def run_through(options: argparse.Namespace) -> list[str]:
    install()
    with ExitStack() as stack:
        urls = gateway_urls(options.gateway_url, options)
        if options.baseline is None:
            urls = {"direct": stack.enter_context(conformance_server("direct"))} | urls
        found = judge_servers(urls, options)
    direct = found.pop("direct", None) or select_from(load(options.baseline), options.only)
    print_table({"direct": direct} | found)
    problems = unexpected(direct, options)
    for route in found:
        problems += differences(direct, found[route], route)
    return problems


def run_compare(options: argparse.Namespace) -> list[str]:
    direct, through = load(options.direct), load(options.through)
    route = options.through.stem
    print_table({"direct": direct, route: through})
    return differences(direct, through, route)


def run_client_direct(options: argparse.Namespace) -> list[str]:
    install()
    found = judge_clients("client-direct", None, options)
    print_table({"client-direct": found})
    return unexpected_client(found, options)


def run_client_through(options: argparse.Namespace) -> list[str]:
    install()
    binary = built("tollbridge")
    direct = judge_clients("client-direct", None, options)
    through = judge_clients("client-through", binary, options)
    print_table({"client-direct": direct, "client-through": through})
    return unexpected_client(direct, options) + differences(direct, through, "client-through")


def run_oauth_client(options: argparse.Namespace) -> list[str]:
    install()
    command = os.path.relpath(built("examples/oauth_client"), ROOT)
    return judge_authorization("oauth-client", command, options)


def run_oauth_through(options: argparse.Namespace) -> list[str]:
    install()
    command = f"python3 {OAUTH_DRIVER} {os.path.relpath(built('tollbridge'), ROOT)}"
    return judge_authorization("oauth-through", command, options)


def judge_authorization(
    route: str, command: str, options: argparse.Namespace
) -> list[str]:
    jobs = [Job(group, name) for group, names in AUTH.items() for name in names]
    chosen = [it for it in jobs if options.only in (None, it.group, f"{it.group}/{it.scenario}")]

    def run(task: tuple[str, Job]) -> dict[str, Scenario]:
        _, job = task
        arguments = ["client", "--command", command, "--scenario", f"auth/{job.scenario}"]
        if job.group != "extension":
            arguments += ["--spec-version", job.group]
        arguments += ["--timeout", str(CLIENT_MILLISECONDS)]
        found = run_suite(arguments, Path(route, job.group, str(job.scenario)))
        return {str(job.scenario): next(iter(found.values()), Scenario())}

    tasks = [(route, job) for job in chosen]
    found = collect(tasks, run, [route], options.jobs)
    print_table(found)
    problems = []
    for group, scenarios in found[route].items():
        for name, scenario in scenarios.items():
            # A warning is a failure as well: each is of something that clients should do.
            messages = [
                message
                for message in scenario.messages
                if (route, group, name, message.partition(":")[0]) not in EXEMPT
            ]
            if not scenario.passed() or messages:
                text = f"{route} {group} {name}: {len(scenario.succeeded)} checks succeed"
                problems.append("\n    ".join([text, *messages]))
    return problems


def judge_servers(urls: dict[str, str], options: argparse.Namespace) -> dict[str, Results]:
    """Runs every scenario against every URL; the keys are names of routes."""
    jobs = server_jobs(options.only)
    tasks = [(route, job) for job in jobs for route in urls]

    def run(task: tuple[str, Job]) -> dict[str, Scenario]:
        route, job = task
        arguments = ["server", "--url", urls[route]]
        if job.scenario is None:
            arguments += ["--suite", "all"]
        else:
            arguments += ["--scenario", job.scenario]
        # The Tasks scenarios belong to no revision; the suite runs them in 2026-07-28.
        if job.group != "tasks":
            arguments += ["--spec-version", job.group]
        return run_suite(arguments, Path(route, job.group, job.scenario or "all"))

    return collect(tasks, run, list(urls), options.jobs)


def judge_clients(route: str, binary: Path | None, options: argparse.Namespace) -> Results:
    """Runs the client scenarios with our driver, through the Tollbridge `binary` if given."""
    tasks = [(route, job) for job in client_jobs(options.only)]
    # The suite takes the command apart at spaces, and a path may have some: relative ones have not.
    command = f"node {DRIVER}"
    if binary is not None:
        command += f" --through {os.path.relpath(binary, ROOT)}"

    def run(task: tuple[str, Job]) -> dict[str, Scenario]:
        _, job = task
        arguments = ["client", "--command", command, "--scenario", str(job.scenario)]
        arguments += ["--spec-version", job.group, "--timeout", str(CLIENT_MILLISECONDS)]
        return run_suite(arguments, Path(route, job.group, str(job.scenario)))

    return collect(tasks, run, [route], options.jobs)[route]


def server_jobs(only: str | None) -> list[Job]:
    """The runs against a server: one for each revision, one for each Tasks scenario."""
    group, _, scenario = (only or "").partition("/")
    if scenario:
        return [Job(group, scenario)]
    revisions = [Job(revision) for revision in DIRECT if revision != "tasks"]
    jobs = revisions + [Job("tasks", name) for name in TASKS]
    return [job for job in jobs if group in ("", job.group)]


def client_jobs(only: str | None) -> list[Job]:
    """The runs against a client: one for each scenario."""
    jobs = [Job(revision, name) for revision, names in CLIENT.items() for name in names]
    return [job for job in jobs if only in (None, job.group, f"{job.group}/{job.scenario}")]


def collect(
    tasks: list[tuple[str, Job]],
    run: Callable[[tuple[str, Job]], dict[str, Scenario]],
    routes: list[str],
    jobs: int,
) -> dict[str, Results]:
    if not tasks:
        raise Failure("--only names nothing that this command runs")
    found: dict[str, Results] = {route: {} for route in routes}
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        for (route, job), scenarios in zip(tasks, pool.map(run, tasks)):
            found[route].setdefault(job.group, {}).update(scenarios)
    for route, results in found.items():
        save(results, SUITES / "results" / f"{route}.json")
    return found


def run_suite(arguments: list[str], place: Path) -> dict[str, Scenario]:
    """Runs the suite's program once and returns what each scenario found.

    A scenario that leaves no result is missing here, which a comparison then shows.
    """
    out = SUITES / "out" / place
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    program = SUITES / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    command = [node(), str(program), *arguments, "--output-dir", str(out)]
    environment = os.environ | {
        "PATH": f"{Path(node()).parent}{os.pathsep}{os.environ['PATH']}",
        "GATEWAY_SUITES": str(SUITES),
    }
    with (out / "log.txt").open("w") as log:
        try:
            # Its exit code repeats the suite's own verdict, which does not matter here.
            subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=SUITE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            log.write(f"\ngiven up after {SUITE_SECONDS} s\n")
    return {scenario_name(file): read_checks(file) for file in sorted(out.glob("**/checks.json"))}


def scenario_name(checks: Path) -> str:
    """The scenario of `server-NAME-TIME/checks.json` or `NAME-TIME/checks.json`."""
    name = re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", checks.parent.name)
    return name.removeprefix("server-")


def read_checks(file: Path) -> Scenario:
    scenario = Scenario()
    for check in json.loads(file.read_text()):
        if check["status"] == "SUCCESS":
            scenario.succeeded.append(check["id"])
        elif check["status"] in ("FAILURE", "WARNING"):
            reason = check.get("errorMessage") or "no reason given"
            scenario.messages.append(f"{check['id']}: {reason}")
            if check["status"] == "FAILURE":
                scenario.failed.append(check["id"])
    return scenario


def differences(direct: Results, through: Results, route: str) -> list[str]:
    """What succeeds directly and not through the route, and what fails only there."""
    problems = []
    for group, scenarios in direct.items():
        for name, wanted in scenarios.items():
            got = through.get(group, {}).get(name, Scenario())
            missing = Counter(wanted.succeeded) - Counter(got.succeeded)
            # Some checks exist only to fail, such as one for ids that an error does not repeat.
            missing |= Counter(got.failed) - Counter(wanted.failed)
            for check, times in sorted(missing.items()):
                if (route, group, name, check) in EXEMPT:
                    continue
                often = f" ({times} times)" if times > 1 else ""
                why = [message for message in got.messages if message.startswith(f"{check}: ")]
                text = "\n    ".join([f"{route} {group} {name}: {check}{often}", *why])
                problems.append(text)
    return problems


def unexpected(direct: Results, options: argparse.Namespace) -> list[str]:
    """Where the conformance server alone is not as good as it is known to be."""
    problems = [
        f"direct {group} {name}: {message}"
        for group, scenarios in direct.items()
        for name, scenario in scenarios.items()
        for message in scenario.messages
    ]
    for job in server_jobs(options.only):
        if job.scenario is not None and job.scenario not in direct.get(job.group, {}):
            problems.append(f"direct {job.group} {job.scenario}: the suite left no result")
    if options.only and "/" in options.only:
        return problems
    for group in dict.fromkeys(job.group for job in server_jobs(options.only)):
        scenarios = direct.get(group, {})
        passed = sum(scenario.passed() for scenario in scenarios.values())
        succeeded = sum(len(scenario.succeeded) for scenario in scenarios.values())
        if (passed, succeeded) != DIRECT[group]:
            problems.append(
                f"direct {group}: {passed} scenarios pass with {succeeded} checks,"
                f" expected {DIRECT[group][0]} with {DIRECT[group][1]}"
            )
    return problems


def unexpected_client(direct: Results, options: argparse.Namespace) -> list[str]:
    """Where the driver alone is not as good as it is known to be."""
    problems = []
    for job in client_jobs(options.only):
        expected = CLIENT[job.group][str(job.scenario)]
        got = direct.get(job.group, {}).get(str(job.scenario), Scenario())
        if len(got.succeeded) != expected:
            counts = f"{len(got.succeeded)} checks succeed, expected {expected}"
            text = f"client-direct {job.group} {job.scenario}: {counts}"
            problems.append("\n    ".join([text, *got.messages]))
    return problems


def print_table(found: dict[str, Results]) -> None:
    routes = list(found)
    groups = list(dict.fromkeys(group for results in found.values() for group in results))
    print("scenarios passed / checks succeeded")
    print(f"{'':12}" + "".join(f"{route:>16}" for route in routes))
    for group in groups:
        cells = []
        for route in routes:
            scenarios = found[route].get(group, {}).values()
            passed = sum(scenario.passed() for scenario in scenarios)
            succeeded = sum(len(scenario.succeeded) for scenario in scenarios)
            cells.append(f"{f'{passed} / {succeeded}':>16}")
        print(f"{group:12}" + "".join(cells))


def save(results: Results, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    plain = {
        group: {name: asdict(scenario) for name, scenario in sorted(scenarios.items())}
        for group, scenarios in results.items()
    }
    file.write_text(json.dumps(plain, indent=1) + "\n")


def select_from(results: Results, only: str | None) -> Results:
    """The part of older results that `--only` asks for."""
    group, _, scenario = (only or "").partition("/")
    return {
        name: {key: value for key, value in scenarios.items() if scenario in ("", key)}
        for name, scenarios in results.items()
        if group in ("", name)
    }


def load(file: Path) -> Results:
    return {
        group: {name: Scenario(**scenario) for name, scenario in scenarios.items()}
        for group, scenarios in json.loads(file.read_text()).items()
    }


@contextmanager
def conformance_server(name: str) -> Iterator[str]:
    """Runs our conformance server over HTTP; gives its URL."""
    command = [str(built("examples/conformance_server")), "--http"]
    with program(f"server-{name}", command, dict(os.environ)) as first_line:
        yield first_line


@contextmanager
def tollbridge(backend: str) -> Iterator[str]:
    """Runs Tollbridge in front of `backend` and of a conformance server on stdio; gives its URL."""
    with tempfile.TemporaryDirectory(prefix="tollbridge-conformance-") as home:
        config = Path(home, "config.toml")
        server = built("examples/conformance_server")
        # The tests in Rust read it too.
        governed = Path(__file__).with_name("governed.toml").read_text()
        config.write_text(
            f"{governed}\n[servers.http]\nurl = {json.dumps(backend)}\n\n"
            f'[servers.pipe]\ncommand = {json.dumps(str(server))}\nargs = ["--stdio"]\n'
        )
        command = [str(built("tollbridge")), "serve", "--config", str(config)]
        command += ["--listen", "127.0.0.1:0"]
        # Nothing of whoever runs this may change the outcome, and nothing of it may change theirs.
        environment = os.environ | {"HOME": home, "TOLLBRIDGE_DATA_DIR": f"{home}/data"}
        with program("tollbridge", command, environment) as first_line:
            listening = re.match(r"listening on (http://\S+)", first_line)
            if listening is None:
                raise Failure(f"tollbridge does not say where it listens: {first_line!r}")
            yield listening[1]


def gateway_urls(gateway: str, options: argparse.Namespace) -> dict[str, str]:
    routes = options.route or ROUTES
    return {route: f"{gateway.rstrip('/')}/mcp/servers/{route}" for route in routes}


@contextmanager
def program(name: str, command: list[str], environment: dict[str, str]) -> Iterator[str]:
    """Runs a program as long as the block lasts; gives its first line of output."""
    log = SUITES / "out" / f"{name}.log"
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
            yield first_line(process, name, log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def first_line(process: subprocess.Popen[str], name: str, log: Path) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], STARTUP_SECONDS)
    line = process.stdout.readline().strip() if ready else ""
    if not line:
        raise Failure(f"{name} does not start:\n{log.read_text()[-2000:]}")
    return line


def built(name: str) -> Path:
    binary = TARGET / "debug" / name
    if not binary.is_file():
        raise Failure(
            f"{binary} is missing, run: cargo build --bin tollbridge --example conformance_server"
        )
    return binary


def install() -> None:
    """Installs the pinned packages, unless they are there."""
    if all(installed(name) == version for name, version in PACKAGES.items()):
        return
    npm = shutil.which("npm")
    if npm is None:
        raise NoNode("npm is missing; install Node to run the conformance suite")
    SUITES.mkdir(parents=True, exist_ok=True)
    manifest = {"private": True, "dependencies": PACKAGES}
    (SUITES / "package.json").write_text(json.dumps(manifest, indent=1) + "\n")
    command = [npm, "install", "--no-audit", "--no-fund", "--loglevel", "error"]
    done = subprocess.run(command, cwd=SUITES, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoNode(f"npm cannot install the conformance suite:\n{done.stderr[-2000:]}")


def installed(name: str) -> str | None:
    try:
        return json.loads((SUITES / "node_modules" / name / "package.json").read_text())["version"]
    except FileNotFoundError:
        return None


def node() -> str:
    """The Node of the npm package: the one on the path may be too old."""
    binary = SUITES / "node_modules/node/bin/node"
    if not binary.is_file():
        raise NoNode(f"npm has installed no Node for this platform in {SUITES}")
    return str(binary)


if __name__ == "__main__":
    sys.exit(main())
