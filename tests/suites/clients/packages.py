"""What the client suite installs, and where it is then.

Everything goes to `target/suites/clients`: pinned by exact version, from npm and PyPI, by their own
clients.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
SUITE = TARGET / "suites/clients"

# The drivers and the other programs of the suite itself.
PROGRAMS = Path(__file__).resolve().parent

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
    "oidc-provider": "9.13.3",
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

INSTALL_SECONDS = 900


class Failure(Exception):
    """Something that whoever runs this has to know; its text is the whole message."""


class NotInstallable(Failure):
    """This machine lacks git, Node, npm or a Python that makes virtual environments."""


def install() -> None:
    """Installs the pinned packages, unless they are there."""
    if sys.version_info < (3, 11):
        raise NotInstallable("Python 3.11 or a later one is needed to run the clients")
    if shutil.which("git") is None:
        raise NotInstallable("git is missing; install it to run the server that reads repositories")
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
        install_python(environment, requirements)


def install_python(environment: str, requirements: list[str]) -> None:
    """Makes a virtual environment with these packages, unless it is there."""
    if stamp(environment) == requirements:
        return
    SUITE.mkdir(parents=True, exist_ok=True)
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


def built(name: str) -> Path:
    binary = TARGET / "debug" / name
    if not binary.is_file():
        raise Failure(f"{binary} is missing, run: cargo build --bin tollbridge --example client")
    return binary
