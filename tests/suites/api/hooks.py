"""What Schemathesis does with the requests that it makes up before they are sent, and one check of its own."""

from __future__ import annotations

import itertools
import json
import os
import zlib
from typing import Any

import schemathesis

ROLE = os.environ["API_ROLE"]
KNOWN: dict[str, str] = json.loads(os.environ["API_KNOWN"])

# Keys of a server that start a program or read a file, and what they say instead.
PROGRAM = "/nonexistent/program"
STARTING = {"command": PROGRAM, "plugin": PROGRAM, "cwd": "/nonexistent", "env_file": "/nonexistent/file"}
# A port of loopback at which nothing listens.
CLOSED = "http://127.0.0.1:9/"


# The keys of the run, which chance would repeat.
IDEMPOTENCY_KEYS = itertools.count()


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    case.body = harmless(case.body)
    for name in list(case.headers or {}):
        # A key that comes again brings the answer of the first time, also where the thing is gone.
        if name.lower() == "idempotency-key" and 0 < len(str(case.headers[name])) <= 200:
            case.headers[name] = f"{next(IDEMPOTENCY_KEYS)} {case.headers[name]}"


def harmless(value: Any) -> Any:
    """A body that starts nothing, and leads nowhere but to a closed port."""
    match value:
        case dict():
            return {key: harmless_at(str(key), inner) for key, inner in value.items()}
        case list():
            return [harmless(inner) for inner in value]
        case _:
            return value


def harmless_at(key: str, value: Any) -> Any:
    if key in STARTING and value is not None:
        return STARTING[key]
    if key in ("url", "issuer") or key.endswith("_url"):
        return CLOSED if isinstance(value, str) else harmless(value)
    return harmless(value)


@schemathesis.hook
def map_path_parameters(_context: Any, parameters: Any) -> Any:
    return with_known(parameters)


@schemathesis.hook
def map_query(_context: Any, query: Any) -> Any:
    return with_known(query)


@schemathesis.hook
def map_body(_context: Any, body: Any) -> Any:
    return with_known(body)


def with_known(made_up: Any) -> Any:
    """Names something that is there in half of the cases: chance alone would name nothing that is."""
    if not isinstance(made_up, dict) or zlib.crc32(repr(made_up).encode()) % 2:
        return made_up
    known = KNOWN | {"name": KNOWN["tool"]} if "agent" in made_up else KNOWN
    return {
        key: known[key] if key in known and isinstance(value, str) else value
        for key, value in made_up.items()
    }


@schemathesis.check
def open_to_its_roles_alone(_context: Any, response: Any, case: Any) -> None:
    """Who has no role for an operation, or no key, is refused before anything else is looked at."""
    raw = case.operation.definition.raw
    if case.method.lower() != case.operation.method.lower() or ROLE in raw["x-roles"]:
        return
    # That header is read before anything else is.
    if response.status_code == 400 and "Idempotency-Key" in response.text:
        return
    # Requests without a key are made as every role.
    allowed = {401, 405} if ROLE == "nobody" else {401, 403, 405}
    if response.status_code not in allowed:
        raise AssertionError(f"{ROLE} gets {response.status_code}")
