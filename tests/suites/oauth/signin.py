"""A sign-in by the official Python SDK, 1.x and 2.x alike.

    signin.py URL TOOL

It says on standard error which page the user is to visit (`visit URL`), waits on loopback for the
browser to come back, lists the tools, calls one, spoils its access token, and calls again. The report
is one JSON object on standard output:

    {"tools": ["echo"], "said": ["first", "second"], "registered": "CLIENT_ID", "refreshed": true,
     "rotated": true}
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

try:
    from mcp.client.auth import AuthorizationCodeResult
except ImportError:
    AuthorizationCodeResult = None

try:
    import httpx2 as httpx
except ImportError:
    import httpx

SECONDS = 60


class Storage:
    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client: OAuthClientInformationFull) -> None:
        self.client = client


async def main(url: str, tool: str) -> None:
    arrived: asyncio.Future[dict[str, list[str]]] = asyncio.get_running_loop().create_future()

    async def come_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readline()).decode().split(" ")[1]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nsigned in")
        await writer.drain()
        writer.close()
        if not arrived.done():
            arrived.set_result(parse_qs(urlsplit(request).query))

    server = await asyncio.start_server(come_back, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def redirect(page: str) -> None:
        print(f"visit {page}", file=sys.stderr, flush=True)

    async def callback() -> Any:
        answer = await arrived
        first = {name: values[0] for name, values in answer.items()}
        if "code" not in first:
            raise RuntimeError(f"no code: {first}")
        if AuthorizationCodeResult is not None:
            return AuthorizationCodeResult(
                code=first["code"], state=first.get("state"), iss=first.get("iss")
            )
        return first["code"], first.get("state")

    storage = Storage()
    provider = OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata(
            client_name="Python SDK",
            redirect_uris=[f"http://127.0.0.1:{port}/callback"],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            token_endpoint_auth_method="none",
        ),
        storage=storage,
        redirect_handler=redirect,
        callback_handler=callback,
    )
    async with (
        server,
        httpx.AsyncClient(auth=provider, timeout=SECONDS) as http,
        streamable_http_client(url, http_client=http) as (read, write, *_),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        tools = await session.list_tools()

        async def call(text: str) -> str:
            result = await session.call_tool(tool, {"text": text})
            return result.content[0].text

        first = await call("first")
        before = storage.tokens
        # Its time is over, as far as the SDK can tell: it refreshes.
        provider.context.token_expiry_time = 1
        second = await call("second")
        report = {
            "tools": [tool.name for tool in tools.tools],
            "said": [first, second],
            "registered": storage.client.client_id,
            "refreshed": storage.tokens.access_token != before.access_token,
            "rotated": storage.tokens.refresh_token != before.refresh_token,
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
