"""A whole session with the official client of either generation: what was said goes to stdout as JSON.

Run as a script, since a process has one generation: python conversation.py '{"url": …, "token": …}', or with
{"command": …, "args": …, "env": …} over stdio.
"""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from typing import Any

RESOURCE = {"resource_type": "deploy", "resource_id": "conversation"}


async def newer(where: dict[str, Any], stack: AsyncExitStack) -> tuple[Any, str]:
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client

    if "url" in where:
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {where['token']}"}, timeout=30)
        transport = streamable_http_client(where["url"], http_client=await stack.enter_async_context(http))
        client = await stack.enter_async_context(Client(transport))
    else:
        client = await stack.enter_async_context(Client(StdioServerParameters(**where)))
    return client, str(client.protocol_version)


async def older(where: dict[str, Any], stack: AsyncExitStack) -> tuple[Any, str]:
    from mcp import ClientSession, StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamablehttp_client

    if "url" in where:
        headers = {"Authorization": f"Bearer {where['token']}"}
        streams = await stack.enter_async_context(streamablehttp_client(where["url"], headers=headers))
    else:
        streams = await stack.enter_async_context(stdio_client(StdioServerParameters(**where)))
    session = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
    shaken = await session.initialize()
    return session, str(shaken.protocolVersion)


async def converse(where: dict[str, Any]) -> dict[str, Any]:
    import mcp

    async with AsyncExitStack() as stack:
        client, version = await (newer if hasattr(mcp, "Client") else older)(where, stack)

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            # The client itself holds the result against the tool's schema.
            said = (await client.call_tool(tool, arguments)).model_dump(by_alias=True)
            return {"refused": bool(said["isError"]), **said["structuredContent"]}

        listed = await client.list_tools()
        granted = await call("lease_acquire", **RESOURCE, ttl_seconds=60)
        named = {"lease_id": granted["lease_id"], "fencing_token": granted["fencing_token"]}
        return {
            "protocol": version,
            "tools": [tool.name for tool in listed.tools],
            "whoami": await call("agent_whoami"),
            "granted": granted,
            "beaten": await call("lease_heartbeat", **named),
            "unknown": await call("lease_heartbeat", **named, force=True),
            "taken": await call("lease_acquire", **RESOURCE, holder="somebody.else"),
            "released": await call("lease_release", **named),
            "lost": await call("lease_heartbeat", **named),
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(converse(json.loads(sys.argv[1])))))
