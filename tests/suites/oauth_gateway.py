#!/usr/bin/env python3
"""Signs in to the suite's server through a Tollbridge, and calls its first tool.

`conformance.py oauth-through` has the suite run it: the arguments are the binary and the URL of the suite's server.
A person is played by opening the link of `tollbridge login` and following redirects.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

# More than any scenario takes: the gateway is to say so itself when nobody has to sign in again.
SIGN_INS_MAX = 6
STARTUP_SECONDS = 30


def main() -> int:
    binary, url = Path(sys.argv[1]).resolve(), sys.argv[-1]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "").removeprefix("auth/")
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        revision = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "")
        (place / "tollbridge.toml").write_text(config(url, scenario, revision, context, place))
        environment = os.environ | {"TOLLBRIDGE_DATA_DIR": str(place / "data"), "HOME": directory}

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [binary, *arguments],
                cwd=place,
                env=environment,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )

        with (place / "log.txt").open("w") as log:
            serving = subprocess.Popen(
                [binary, "serve"], cwd=place, env=environment, stdout=log, stderr=log
            )
            try:
                # A command that comes before would start a gateway of its own, which asks for tokens too.
                started = time.monotonic()
                while "clients connect to" not in (place / "log.txt").read_text():
                    if time.monotonic() - started > STARTUP_SECONDS:
                        return 1
                    time.sleep(0.05)
                return use(run)
            finally:
                serving.terminate()
                serving.wait(10)
                print((place / "log.txt").read_text(), file=sys.stderr)


def config(url: str, scenario: str, revision: str, context: dict[str, str], place: Path) -> str:
    grants = {
        "client-credentials-basic": "client_credentials",
        "client-credentials-jwt": "client_credentials",
        "enterprise-managed-authorization": "id_jag",
    }
    grant = grants.get(scenario, "authorization_code")
    auth: dict[str, object] = {"type": "oauth2", "grant": grant}
    if grant == "authorization_code":
        auth["per_user"] = False
    for name in ("client_id", "client_secret"):
        if name in context:
            auth[name] = context[name]
    if "private_key_pem" in context:
        (place / "client.pem").write_text(context["private_key_pem"])
        auth["private_key"] = "client.pem"
    if "idp_issuer" in context:
        auth["subject_token"] = context["idp_id_token"]
        auth["idp"] = {"issuer": context["idp_issuer"], "client_id": context["idp_client_id"]}
    era = "modern" if revision >= "2026" else "legacy"
    server = {"url": url, "transport": "http", "era": era, "auth": auth}
    # JSON strings and inline tables of them are TOML, but for the colons.
    listen = 'listen = "127.0.0.1:0"\nfirst_list_wait = "0s"\n'
    return listen + "".join(f"[servers.suite]\n{to_toml(server)}")


def to_toml(table: dict[str, object]) -> str:
    def value(of: object) -> str:
        if isinstance(of, dict):
            return "{ " + ", ".join(f"{key} = {value(item)}" for key, item in of.items()) + " }"
        return json.dumps(of)

    return "".join(f"{key} = {value(of)}\n" for key, of in table.items())


def use(run) -> int:
    """Calls the first tool, and signs in whenever the gateway says that this is needed."""
    started = time.monotonic()
    sign_ins = 0
    while time.monotonic() - started < STARTUP_SECONDS:
        servers = parsed(run("list", "servers", "--json", "--wait", "1s").stdout)
        state = servers[0]["state"] if servers else ""
        if state == "connected":
            tools = parsed(run("list", "tools", "--json").stdout)
            if not tools:
                return 1
            called = run("call", tools[0]["name"])
            print(called.stdout, called.stderr, file=sys.stderr)
            if called.returncode == 0:
                return 0
            if "NEEDS_SIGN_IN" not in called.stdout + called.stderr:
                return 1
        elif state != "needs_sign_in":
            time.sleep(0.2)
            continue
        sign_ins += 1
        if sign_ins > SIGN_INS_MAX:
            return 1
        link = run("login", "suite", "--json")
        if link.returncode != 0 or not sign_in(json.loads(link.stdout)["url"]):
            print(link.stderr, file=sys.stderr)
            return 1
        # The gateway connects in a moment.
        time.sleep(1)
    return 1


def parsed(text: str) -> list[dict[str, str]]:
    try:
        return json.loads(text)
    except ValueError:
        return []


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def sign_in(link: str) -> bool:
    """What a person does in a browser; whether the gateway says that it worked."""
    cookies = urllib.request.HTTPCookieProcessor(CookieJar())
    browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies, NoRedirect())
    page = browser.open(link).read().decode()
    base = "{0.scheme}://{0.netloc}".format(urllib.parse.urlsplit(link))
    form = {
        "action": "enter",
        "token": hidden(page, "token"),
        "code": hidden(page, "code"),
    }
    headers = {"origin": base}
    sent = urllib.request.Request(
        f"{base}/connections", urllib.parse.urlencode(form).encode(), headers
    )
    try:
        page = browser.open(sent).read().decode()
    except urllib.error.HTTPError as error:
        print(error.read().decode(), file=sys.stderr)
        return False
    found = re.search(r'content="0;url=([^"]+)"', page)
    if found is None:
        print(page, file=sys.stderr)
        return False
    try:
        browser.open(html.unescape(found[1]))
        return False
    except urllib.error.HTTPError as redirect:
        back = redirect.headers["location"]
    try:
        browser.open(back)
        return True
    except urllib.error.HTTPError as error:
        print(error.read().decode(), file=sys.stderr)
        return False


def hidden(page: str, name: str) -> str:
    found = re.search(f'name="{name}" value="([^"]*)"', page)
    return html.unescape(found[1]) if found else ""


if __name__ == "__main__":
    sys.exit(main())
