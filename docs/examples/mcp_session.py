#!/usr/bin/env python3
"""Two agents at MCP: one claims a task, keeps it, and hands it on with its lease; the other one is told, and finishes.

    LEASEHUB_URL=http://127.0.0.1:8787 FIRST_TOKEN=lh_… SECOND_TOKEN=lh_… docs/examples/mcp_session.py

Standard library only: what an MCP client does is a POST. The tokens are keys of two principals of one organization.
"""

import itertools
import json
import os
import urllib.request

URL = os.environ["LEASEHUB_URL"].rstrip("/")
QUEUE = os.environ.get("QUEUE", "reviews")


class Agent:
    """A client of the protocol as it has been since 2025: it shakes hands, then calls tools."""

    def __init__(self, token, holder):
        self.headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2025-06-18",
            # A process of its own is a holder of its own.
            "LeaseHub-Holder": holder,
        }
        self.numbers = itertools.count(1)
        #: Read, and not to be repeated: goes with the next call.
        self.cursor = None
        self.notices = []
        self.send(
            "initialize",
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": holder, "version": "1"},
            },
        )

    def send(self, method, params):
        message = {"jsonrpc": "2.0", "id": next(self.numbers), "method": method, "params": params}
        request = urllib.request.Request(f"{URL}/mcp", json.dumps(message).encode(), self.headers)
        with urllib.request.urlopen(request, timeout=40) as answer:
            return json.load(answer)["result"]

    def call(self, tool, **arguments):
        if self.cursor:
            arguments["notices_cursor"], self.cursor = self.cursor, None
        result = self.send("tools/call", {"name": tool, "arguments": arguments})
        said = result["structuredContent"]
        self.notices += said.get("notices", [])
        self.cursor = said.get("notices_cursor")
        if result["isError"]:
            raise SystemExit(f"{tool}: {said['code']}: {said['message']} {said['hint']}")
        return said

    def put_task(self, payload):
        """Tasks come from elsewhere, over the API."""
        body = json.dumps({"payload": payload}).encode()
        request = urllib.request.Request(f"{URL}/v1/queues/{QUEUE}/tasks", body, self.headers)
        urllib.request.urlopen(request, timeout=10).close()


def told(agent, what):
    """The notice of this handoff that the agent was given with some result or other."""
    agent.call("agent_whoami")
    mine = (notice for notice in agent.notices if notice.get("handoff_id") == offer["handoff_id"])
    return next(notice for notice in mine if notice["what"] == what)


first = Agent(os.environ["FIRST_TOKEN"], f"first.{os.getpid()}")
second = Agent(os.environ["SECOND_TOKEN"], f"second.{os.getpid()}")
second_name = second.call("agent_whoami")["principal"]

first.put_task({"pull_request": 7})
claim = first.call("task_claim", queue=QUEUE, ttl_seconds=60)
named = {"task_id": claim["task_id"], "fencing_token": claim["fencing_token"]}
print("claimed", claim["task_id"], "with token", claim["fencing_token"])
first.call("task_heartbeat", **named)
print("kept it alive")

offer = first.call(
    "handoff_offer",
    to_principal=second_name,
    subject_id=f"pull-request-{claim['payload']['pull_request']}",
    next_action="read the migration, then run its test",
    done=["the models"],
    lease_ids=[claim["task_id"]],
)
waiting = told(second, "handoff_waiting")
print("the other side is told:", waiting["message"])
accepted = second.call("handoff_accept", handoff_id=waiting["handoff_id"])
(lease,) = accepted["leases"]
print("accepted with token", lease["fencing_token"])

lost = told(first, "handoff_accepted")
print("the giver is told:", lost["message"])
done = {"task_id": lease["resource_id"], "fencing_token": lease["fencing_token"]}
print("the task is", second.call("task_complete", **done, result={"approved": True})["state"])
second.call("handoff_complete", handoff_id=offer["handoff_id"], result={"approved": True})
print("the giver is told:", told(first, "handoff_completed")["message"])
