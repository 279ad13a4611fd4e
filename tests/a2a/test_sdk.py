"""The official client of A2A against the card and the door: it finds, sends, gets, lists and cancels."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehub.identity import services as identity

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


@pytest.fixture
def secret(transactional_db: None) -> str:
    organization = identity.create_organization(name="acme")
    identity.create_principal(organization=organization.pk, handle="teammate")
    principal = identity.create_principal(organization=organization.pk, handle="agent")
    return identity.issue_key(principal=principal)[1]


def with_client(server: str, secret: str, way: Callable[[Any], Awaitable[None]]) -> None:
    import httpx
    from a2a.client.card_resolver import A2ACardResolver
    from a2a.client.client import ClientConfig
    from a2a.client.client_factory import ClientFactory

    async def run() -> None:
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, trust_env=False) as http:
            card = await A2ACardResolver(http, server).get_agent_card()
            assert [interface.url for interface in card.supported_interfaces] == [f"{server}/a2a"]
            assert not (card.capabilities.streaming or card.capabilities.push_notifications)
            await way(ClientFactory(ClientConfig(httpx_client=http)).create(card))

    asyncio.run(run())


def test_the_official_client_goes_all_the_way(live_server: Any, secret: str) -> None:
    from a2a.types import a2a_pb2 as pb
    from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError, TaskNotFoundError

    def sending(name: str, to: str = "teammate") -> Any:
        parts = [pb.Part(text="Go on."), pb.Part(url="https://ci.example/1", filename="log")]
        message = pb.Message(message_id=name, role=pb.ROLE_USER, parts=parts, context_id="sprint-9")
        message.metadata.update({"to_principal": to, "subject_id": "release-41"})
        return pb.SendMessageRequest(message=message)

    async def send(client: Any, name: str, to: str = "teammate") -> Any:
        (answer,) = [answer async for answer in client.send_message(sending(name, to))]
        return answer.task

    async def way(client: Any) -> None:
        first, again, second = await send(client, "m-1"), await send(client, "m-1"), await send(client, "m-2")
        assert first.id == again.id != second.id
        assert (first.status.state, first.context_id) == (pb.TASK_STATE_SUBMITTED, "sprint-9")
        got = await client.get_task(pb.GetTaskRequest(id=first.id))
        assert got == first
        assert got.history[0].parts[0].text == "Go on."
        cancelled = await client.cancel_task(pb.CancelTaskRequest(id=first.id))
        assert cancelled.status.state == pb.TASK_STATE_CANCELED
        listed = await client.list_tasks(pb.ListTasksRequest(page_size=1))
        assert ([task.id for task in listed.tasks], listed.total_size) == ([first.id], 2)
        rest = await client.list_tasks(pb.ListTasksRequest(page_token=listed.next_page_token))
        assert ([task.id for task in rest.tasks], rest.next_page_token) == ([second.id], "")
        waiting = await client.list_tasks(pb.ListTasksRequest(status=pb.TASK_STATE_SUBMITTED))
        assert [task.id for task in waiting.tasks] == [second.id]
        with pytest.raises(TaskNotFoundError):
            await client.get_task(pb.GetTaskRequest(id="hoff_" + "0" * 32))
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(pb.CancelTaskRequest(id=first.id))
        with pytest.raises(InvalidParamsError):
            await send(client, "m-3", to="nobody")

    with_client(live_server.url, secret, way)


def test_the_official_client_is_refused_without_a_key(live_server: Any, secret: str) -> None:
    from a2a.client.errors import A2AClientError
    from a2a.types import a2a_pb2 as pb

    async def way(client: Any) -> None:
        with pytest.raises(A2AClientError, match="401"):
            await client.list_tasks(pb.ListTasksRequest())

    with_client(live_server.url, "lh_nothing", way)
