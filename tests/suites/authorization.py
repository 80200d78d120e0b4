#!/usr/bin/env python3
"""Judges the built-in authorization server by the scenarios of the official MCP conformance suite for one.

The suite plays the client. What it leaves to a person, this script does as a browser without scripts would: it logs
in with a code of `tollbridge login-code`, and allows access.

Everything is written to `target/suites`, as `conformance.py` does. Build first: `cargo build --bin tollbridge`.

Exit code 0: every check succeeds, or there is no Node here. 1: one does not (in CI also: no Node).
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

from conformance import SUITES, Failure, NoNode, built, install, node, program

# Scenarios with the number of their checks.
EXPECTED = {"authorization-server-metadata-endpoint": 2, "authorization-code-grant": 1}

CALLBACK_PORT = 33_199
SUITE_SECONDS = 120

CONFIG = """
listen = "127.0.0.1:0"
[governance]
auth = "oauth"
policy = { mode = "all" }
[agents.ann]
[servers.toolbox]
transport = "builtin"
"""


def main() -> int:
    try:
        install()
        problems = judge()
    except NoNode as reason:
        in_ci = os.environ.get("CI") == "true"
        print(f"{'failed' if in_ci else 'skipped'}: {reason}")
        return 1 if in_ci else 0
    except Failure as reason:
        print(f"failed: {reason}", file=sys.stderr)
        return 1
    for problem in problems:
        print(problem)
    print(f"problems: {len(problems)}" if problems else "every check succeeds")
    return 1 if problems else 0


def judge() -> list[str]:
    with tempfile.TemporaryDirectory(prefix="tollbridge-authorization-") as home:
        config = Path(home, "config.toml")
        config.write_text(CONFIG)
        environment = os.environ | {"HOME": home, "TOLLBRIDGE_DATA_DIR": f"{home}/data"}
        command = [str(built("tollbridge")), "serve", "--config", str(config)]
        with program("authorization", command, environment) as first_line:
            listening = re.match(r"listening on (http://\S+)", first_line)
            if listening is None:
                raise Failure(f"tollbridge does not say where it listens: {first_line!r}")
            issuer = listening[1]
            code = [str(built("tollbridge")), "login-code", "ann", "--config", str(config)]
            made = subprocess.run(code, env=environment, capture_output=True, text=True, check=True)
            return run_suite(issuer, register(issuer), made.stdout.strip())


def register(issuer: str) -> str:
    """Registers the suite as a client; gives its id."""
    redirect_uri = f"http://127.0.0.1:{CALLBACK_PORT}/callback"
    metadata = {"client_name": "conformance", "redirect_uris": [redirect_uri]}
    request = urllib.request.Request(
        f"{issuer}/oauth/register",
        json.dumps(metadata).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)["client_id"]


def run_suite(issuer: str, client: str, login_code: str) -> list[str]:
    script = SUITES / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    command = [node(), str(script), "authorization", "--url", issuer, "--client-id", client]
    command += ["--resource", f"{issuer}/mcp", "--port", str(CALLBACK_PORT)]
    suite = subprocess.Popen(
        ["timeout", str(SUITE_SECONDS), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    for line in suite.stdout or []:
        lines.append(line)
        if line.startswith(f"{issuer}/oauth/authorize"):
            sign_in(line.strip(), login_code)
    suite.wait()
    (SUITES / "out").mkdir(parents=True, exist_ok=True)
    (SUITES / "out/authorization.txt").write_text("".join(lines))
    found = dict(re.findall(r"(\S+): (\d+) passed, 0 failed", "".join(lines)))
    return [
        f"{name}: {found.get(name, 'not all')} of {checks} checks succeed; see {SUITES}/out/authorization.txt"
        for name, checks in EXPECTED.items()
        if found.get(name) != str(checks)
    ]


def sign_in(url: str, login_code: str) -> None:
    """Logs in and allows access; the last redirect brings the code to the suite."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with browser.open(url, timeout=30) as page:
        login = page.read().decode()
    for fields in ({"code": login_code}, {"decision": "allow"}):
        action = html.unescape(re.search(r'action="([^"]+)"', login)[1])
        hidden = re.search(r'name="page" value="([^"]+)"', login)[1]
        form = urllib.parse.urlencode({"page": hidden, **fields}).encode()
        with browser.open(urllib.parse.urljoin(url, action), form, timeout=30) as page:
            login = page.read().decode()


if __name__ == "__main__":
    sys.exit(main())
