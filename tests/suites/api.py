#!/usr/bin/env python3
"""Holds the admin API to its own description: Schemathesis makes requests of `/api/v1/openapi.json`, right and wrong
ones, and looks at every answer.

    api.py                  a minute and a half
    api.py --seconds 30     as long as that; the CI job
    api.py --seconds 900    as long as that; the nightly job
    api.py --seed 7         another course; each run prints its seed

A gateway with a data directory of its own is asked as an admin, and for a shorter time as an auditor, as who manages a
workspace, as an agent and without a key. What must hold: no answer is a server error; status, headers, media type and
shape are described; what breaks the description is refused; and who has no role for an operation gets 401 or 403.

A description cannot say which names are there or which texts are times, so that a request which it allows may still be
refused. Streams without an end are left out.

Nothing that is made up does harm: `api/hooks.py` puts a program that does not exist into the place of every command,
and a closed port of loopback into that of every URL.

Everything is written to `target/suites`. Build first: `cargo build --bin tollbridge`.

Exit code 0: all of it holds, or there is no usable Python here. 1: something does not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "clients")]

from packages import SUITE, Failure, NotInstallable, built, install_python, venv_program
from servers import program, sheltered

REQUIREMENTS = ["schemathesis==4.32.5"]
OUT = SUITE.parent / "out/api"

# Streams that end with their client.
ENDLESS = ("streamEvents", "streamServerStderr", "followAuditRecords")
# A role takes this long beside its requests, and one request this long at most.
START_SECONDS = 60
REQUEST_SECONDS = 20

KEYS = {
    "admin": "tb_Qm7xN2vKp9sLw4TzR8bYh3CdFj6GaEu5",
    "auditor": "tb_Zc4mT8xQw2vKp6RnY9bLs7HdF3gJ5aEu",
    "workspace_admin": "tb_Hd5tM9pXc2vQ7rKz4WnB8sLy3GfJ6aEu",
    "agent": "tb_Wk4nB8cXz2mVq7RtY5pLs9HgDf3JaKe6",
    "nobody": None,
}
# Which part of the time a role has.
SHARES = {"admin": 0.6, "auditor": 0.1, "workspace_admin": 0.1, "agent": 0.1, "nobody": 0.1}

CONFIG = f"""
listen = "127.0.0.1:0"

[governance]
auth = "keys"
policy = {{ mode = "all" }}

[agents.root]
role = "admin"
keys = ["{KEYS["admin"]}"]

[agents.reader]
role = "auditor"
keys = ["{KEYS["auditor"]}"]

[agents.lead]
role = "workspace_admin"
team = "science"
keys = ["{KEYS["workspace_admin"]}"]

[agents.bot]
team = "science"
keys = ["{KEYS["agent"]}"]
budget = "5.00"

[servers.toolbox]
transport = "builtin"
"""

# What there is beside the file: the requests that are made up name some of it.
ENTRIES = [
    ("servers", {"name": "box", "config": {"transport": "builtin"}}),
    ("servers", {"name": "kit@science", "config": {"transport": "builtin"}}),
    ("profiles", {"name": "view", "config": {"tools": ["*"]}}),
    ("agents", {"name": "helper", "settings": {"team": "science"}}),
]


def main() -> int:
    options = parse_arguments()
    try:
        if sys.version_info < (3, 11):
            raise NotInstallable("Python 3.11 or a later one is needed to run Schemathesis")
        install_python("api", REQUIREMENTS)
        return judge(options)
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
    parser.add_argument("--seconds", type=int, default=90, help="how long requests are made")
    parser.add_argument("--seed", type=int, default=1, help="which course chance takes")
    parser.add_argument("--only", choices=KEYS, help="only as this role")
    return parser.parse_args()


def judge(options: argparse.Namespace) -> int:
    print(f"seed {options.seed}")
    OUT.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tollbridge-api-") as home:
        config = Path(home, "tollbridge.toml")
        config.write_text(CONFIG)
        config.chmod(0o600)
        # No program is found by its name.
        environment = sheltered(home) | {"TOLLBRIDGE_DATA_DIR": f"{home}/data", "PATH": home}
        command = [str(built("tollbridge")), "serve", "--config", str(config)]
        with program("tollbridge-api", command, environment) as url:
            known = furnish(url)
            roles = [role for role in KEYS if options.only in (None, role)]
            failed = [role for role in roles if not ask_as(role, (url, home), known, options)]
    print(f"{time.monotonic() - started:.0f} s")
    for role in failed:
        print(f"{role}: see {OUT / role}.txt")
    return 1 if failed else 0


def furnish(url: str) -> dict[str, str]:
    """Makes what the API is asked about; gives names of it by the parameters that mean them."""
    for section, entry in ENTRIES:
        ask(f"{url}/api/v1/{section}", entry)
    key = ask(f"{url}/api/v1/agents/helper/keys", {})["id"]
    ask(f"{url}/api/v1/tools/mcp_toolbox_echo/test", {"agent": "bot", "arguments": {"message": "a"}})
    return {
        "agent": "helper",
        "budget": "agent:bot:total",
        "id": first_record(url),
        "key": key,
        "profile": "view",
        "server": "box",
        "tool": "mcp_toolbox_echo",
    }


def first_record(url: str) -> str:
    """The id of a call, once the log is indexed."""
    for _ in range(100):
        if items := ask(f"{url}/api/v1/audit")["items"]:
            return str(items[0]["id"])
        time.sleep(0.1)
    raise Failure("the audit lists no call")


def ask(url: str, body: object = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {KEYS['admin']}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def ask_as(
    role: str, place: tuple[str, str], known: dict[str, str], options: argparse.Namespace
) -> bool:
    """Lets Schemathesis make requests as somebody of a role; whether everything holds."""
    url, home = place
    seconds = max(1, int(options.seconds * SHARES[role]))
    command = [venv_program("api", "schemathesis"), "--config-file", str(HERE / "api/schemathesis.toml")]
    command += ["run", f"{url}/api/v1/openapi.json", "--url", url, "--seed", str(options.seed)]
    command += ["--max-time", str(seconds), "--request-timeout", str(REQUEST_SECONDS)]
    command += ["--generation-database", "none", "--no-color"]
    for operation in ENDLESS:
        command += ["--exclude-operation-id", operation]
    if KEYS[role]:
        command += ["--header", f"Authorization: Bearer {KEYS[role]}"]
    if role != "admin":
        # Links lead to what others are not let see.
        command += ["--phases", "coverage,fuzzing"]
    environment = sheltered(home) | {
        "SCHEMATHESIS_HOOKS": "hooks",
        "PYTHONPATH": str(HERE / "api"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "API_ROLE": role,
        "API_KNOWN": json.dumps(known),
    }
    log = OUT / f"{role}.txt"
    with log.open("w") as output:
        try:
            done = subprocess.run(
                command,
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=seconds + START_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Failure(f"{role}: no end within {seconds + START_SECONDS} s, see {log}") from None
    text = log.read_text()
    cases = re.search(r"(\d+) generated", text)
    print(f"{'failed' if done.returncode else 'ok':7} {role}: {cases[1] if cases else 'no'} requests")
    if done.returncode:
        print(text[-3000:])
    return done.returncode == 0 and cases is not None


if __name__ == "__main__":
    sys.exit(main())
