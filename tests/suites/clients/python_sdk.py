"""What both major versions of the official Python SDK, and libraries built on it, spell alike."""

from __future__ import annotations

import shlex

from mcp import StdioServerParameters, types
from pydantic import BaseModel
from visit import Json, Target


def handlers(answer: str | None) -> Json:
    """Callbacks by keyword; the SDK declares a capability for each."""
    if answer is None:
        return {}

    async def elicit(_context: object, _params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"answer": answer})

    async def sample(
        _context: object, _params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        content = types.TextContent(type="text", text=answer)
        return types.CreateMessageResult(role="assistant", content=content, model="none")

    return {"elicitation_callback": elicit, "sampling_callback": sample}


def plain(model: BaseModel) -> Json:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def program(target: Target) -> StdioServerParameters:
    command, *args = shlex.split(target.url)
    return StdioServerParameters(command=command, args=args)
