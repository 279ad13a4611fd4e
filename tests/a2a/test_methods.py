"""What each method does, with which outcome of the handoff."""

from typing import Any

import pytest
from django.db import connection

from leasehub.a2a import tasks
from leasehub.db import clock as database_clock
from tests.a2a.conftest import Agent, sending
from tests.conftest import Caster
from tests.handoffs.conftest import resolve, show

pytestmark = pytest.mark.django_db


def test_a_message_to_a_principal_becomes_a_handoff(sender: Agent, agent: Caster, teammate: Caster) -> None:
    lease = agent.acquire().json()["data"]["lease_id"]
    data = {
        "subject_id": "release-41",
        "next_action": "./deploy --from web-07",
        "done": ["six of eight"],
        "decisions": [{"what": "no database change"}],
        "state": {"repo": "shop", "commit": "3f9d51f", "dirty": False},
        "lease_ids": [lease],
    }
    parts = [
        {"text": "Six of eight hosts run 41."},
        {"text": "Two want draining."},
        {"data": data},
        {"url": "https://ci.example/runs/9041", "filename": "the last green run"},
    ]
    task = sender.send(parts=parts, contextId="sprint-9")
    assert task["status"]["state"] == "TASK_STATE_SUBMITTED"
    assert task["contextId"] == "sprint-9"
    handoff = show(teammate, task["id"])
    assert (handoff["from_principal"], handoff["subject_id"]) == ("agent", "release-41")
    assert handoff["message"] == "Six of eight hosts run 41.\n\nTwo want draining."
    (artifact,) = handoff["artifacts"]
    assert (artifact["uri"], artifact["note"]) == ("https://ci.example/runs/9041", "the last green run")
    assert (handoff["state"]["commit"], handoff["done"]) == ("3f9d51f", ["six of eight"])
    assert [offered["lease_id"] for offered in handoff["leases"]] == [lease]
    (offer,) = task["history"]
    assert (offer["role"], offer["parts"][0]["text"]) == ("ROLE_USER", handoff["message"])
    assert task["metadata"]["to_principal"] == "teammate"


def test_a_task_follows_its_handoff(sender: Agent, agent: Caster, teammate: Caster, clock: Any) -> None:
    seen = {}
    task = sender.send()
    resolve(teammate, task["id"])
    seen["accepted"] = sender.call("GetTask", id=task["id"])
    teammate.post(f"handoffs/{task['id']}/complete", {"result": {"hosts": 8}})
    seen["completed"] = sender.call("GetTask", id=task["id"])
    task = sender.send()
    resolve(teammate, task["id"], "rejected", reason="no access to web-07")
    seen["rejected"] = sender.call("GetTask", id=task["id"])
    task = sender.send()
    agent.post(f"handoffs/{task['id']}/withdraw", {})
    seen["withdrawn"] = sender.call("GetTask", id=task["id"])
    soon = clock.now().replace(microsecond=0)
    clock.move(seconds=-60)
    task = sender.send(parts=[{"text": "soon"}, {"data": {"accept_by": soon.isoformat()}}])
    clock.move(seconds=120)
    seen["expired"] = sender.call("GetTask", id=task["id"])
    assert {name: shown["status"]["state"] for name, shown in seen.items()} == {
        "accepted": "TASK_STATE_WORKING",
        "completed": "TASK_STATE_COMPLETED",
        "rejected": "TASK_STATE_REJECTED",
        "withdrawn": "TASK_STATE_CANCELED",
        "expired": "TASK_STATE_FAILED",
    }
    assert seen["rejected"]["status"]["message"]["parts"] == [{"text": "no access to web-07"}]
    assert seen["completed"]["artifacts"][0]["parts"] == [{"data": {"hosts": 8}, "mediaType": "application/json"}]
    assert seen["expired"]["status"]["timestamp"].startswith(soon.isoformat()[:19])


def test_a_message_that_is_sent_again_is_one_handoff_and_shown_as_it_is_now(sender: Agent, teammate: Caster) -> None:
    params = sending(messageId="m-1")
    first = sender.call("SendMessage", **params)["task"]
    resolve(teammate, first["id"])
    again = sender.call("SendMessage", **params)["task"]
    assert (again["id"], again["status"]["state"]) == (first["id"], "TASK_STATE_WORKING")
    assert sender.call("ListTasks")["totalSize"] == 1
    other = sending(messageId="m-1", text="Something else.")
    assert sender.refusal("SendMessage", **other) == (-32602, "IDEMPOTENCY_MISMATCH")


def test_a_message_s_id_is_no_idempotency_key_of_the_api(sender: Agent, agent: Caster, teammate: Caster) -> None:
    sender.send(messageId="m-1")
    body = {"to_principal": "teammate", "subject_id": "x"}
    assert agent.post("handoffs", body, **{"Idempotency-Key": "m-1"}).status_code == 201


def test_without_a_context_one_is_made_and_without_a_subject_it_is_that(sender: Agent, teammate: Caster) -> None:
    task = sender.send()
    assert task["contextId"].startswith("ctx_")
    assert task["metadata"]["subject_id"] == task["contextId"]


MALFORMED: list[Any] = [
    ({"to": None}, "to_principal"),
    ({"to": "teammat"}, "NOT_FOUND"),
    ({"to": 7}, "to_principal"),
    ({"role": "ROLE_AGENT"}, "message.role"),
    ({"messageId": ""}, "message.messageId"),
    ({"messageId": "x" * 191}, "message.messageId"),
    ({"messageId": "m\u00e4"}, "message.messageId"),
    ({"parts": []}, "message.parts"),
    ({"parts": "text"}, "message.parts"),
    ({"parts": [{"data": [1]}]}, "message.parts"),
    ({"parts": [{}]}, "message.parts"),
    ({"parts": [{"data": {}}, {"data": {}}]}, "message.parts"),
    ({"parts": [{"text": "x"}, {"data": {"message": "y"}}]}, "message.parts"),
    ({"parts": [{"data": {"unknown": 1}}]}, "unknown"),
    ({"parts": [{"data": {"dirty": "yes"}}]}, "dirty"),
    ({"text": "x" * 4001}, "message"),
    ({"text": "\x00"}, "message"),
    ({"text": "my key is ghp_0123456789abcdefghij0123456789abcdef"}, "message"),
    ({"contextId": "a\nb"}, "subject_id context_id"),
    ({"contextId": "a", "parts": [{"data": {"context_id": "b"}}]}, "context_id"),
]


def test_a_malformed_message_says_what_is_wrong(sender: Agent, teammate: Caster) -> None:
    for wrong, told in MALFORMED:
        assert sender.refusal("SendMessage", **sending(**wrong)) == (-32602, told), wrong
        assert sender.call("ListTasks")["tasks"] == []


def test_an_unknown_addressee_is_told_with_close_ones(sender: Agent, teammate: Caster) -> None:
    error = sender.answer("SendMessage", **sending("teammat"))["error"]
    assert "teammate" in error["data"][0]["metadata"]["did_you_mean"]


NOT_TAKEN: list[Any] = [
    {"raw": "aGVsbG8="},
    {"text": "x", "mediaType": "image/png"},
    {"data": {}, "mediaType": "application/xml"},
]


def test_a_part_of_a_kind_that_is_not_taken(sender: Agent, teammate: Caster) -> None:
    for part in NOT_TAKEN:
        refused = sender.refusal("SendMessage", **sending(parts=[{"text": "x"}, part]))
        assert refused == (-32005, "CONTENT_TYPE_NOT_SUPPORTED")


def test_members_of_the_protocol_that_are_not_known_are_passed_over(sender: Agent, teammate: Caster) -> None:
    params = sending(extensions=["urn:x"], referenceTaskIds=["t"], somethingNew=1)
    params |= {"tenant": "x", "metadata": {"trace": 1}, "configuration": {"acceptedOutputModes": ["text/plain"]}}
    assert sender.call("SendMessage", **params)["task"]["id"].startswith("hoff_")


def test_a_handoff_takes_no_second_message(sender: Agent, foreigner: Agent, teammate: Caster) -> None:
    task = sender.send(contextId="c1")
    assert sender.refusal("SendMessage", **sending(taskId=task["id"])) == (-32004, "UNSUPPORTED_OPERATION")
    mismatch = sending(taskId=task["id"], contextId="c2")
    assert sender.refusal("SendMessage", **mismatch) == (-32602, "message.contextId")
    for named in ("hoff_" + "0" * 32, "nothing", "\u0000"):
        assert sender.refusal("SendMessage", **sending(taskId=named)) == (-32001, "TASK_NOT_FOUND")
    assert foreigner.refusal("SendMessage", **sending(taskId=task["id"])) == (-32001, "TASK_NOT_FOUND")


def test_a_task_is_its_giver_s_alone(sender: Agent, foreigner: Agent, teammate: Caster, agent: Caster) -> None:
    task = sender.send()
    addressee = Agent(teammate.secret)
    nothing = {"id": "hoff_" + "0" * 32}
    for outsider in (foreigner, addressee):
        for method in ("GetTask", "CancelTask"):
            there, nowhere = (outsider.answer(method, **params) for params in ({"id": task["id"]}, nothing))
            assert there == nowhere
            assert there["error"]["code"] == -32001
        assert outsider.call("ListTasks")["tasks"] == []
    assert show(agent, task["id"])["status"] == "pending"


def test_a_handoff_that_was_sent_over_http_is_a_task_too(sender: Agent, agent: Caster, teammate: Caster) -> None:
    sent = agent.post("handoffs", {"to_principal": "teammate", "subject_id": "x"}).json()["data"]["handoff_id"]
    task = sender.call("GetTask", id=sent)
    assert task["contextId"] == sent
    assert task["history"][0]["parts"] == [{"data": {}, "mediaType": "application/json"}]
    assert [found["id"] for found in sender.call("ListTasks", contextId=sent)["tasks"]] == [sent]


def test_cancelling_takes_the_handoff_back_once(sender: Agent, agent: Caster, teammate: Caster) -> None:
    task = sender.send()
    assert sender.call("CancelTask", id=task["id"])["status"]["state"] == "TASK_STATE_CANCELED"
    assert show(teammate, task["id"])["status"] == "withdrawn"
    assert sender.refusal("CancelTask", id=task["id"]) == (-32002, "TASK_NOT_CANCELABLE")
    task = sender.send()
    resolve(teammate, task["id"])
    assert sender.refusal("CancelTask", id=task["id"]) == (-32002, "TASK_NOT_CANCELABLE")
    assert show(agent, task["id"])["status"] == "accepted"


def test_history_and_artifacts_are_left_out_on_demand(sender: Agent, teammate: Caster) -> None:
    task = sender.send()
    assert "history" not in sender.call("GetTask", id=task["id"], historyLength=0)
    assert len(sender.call("GetTask", id=task["id"], historyLength=5)["history"]) == 1
    assert "history" not in sender.call("SendMessage", **sending(), configuration={"historyLength": 0})["task"]
    assert "artifacts" not in sender.call("ListTasks")["tasks"][0]
    assert sender.call("ListTasks", includeArtifacts=True)["tasks"][0]["artifacts"] == []
    assert "history" not in sender.call("ListTasks", historyLength=0)["tasks"][0]


def test_tasks_are_listed_as_they_were_updated_over_pages(
    sender: Agent, agent: Caster, teammate: Caster, clock: Any
) -> None:
    ids = []
    for number in range(5):
        clock.move(seconds=1)
        ids.append(sender.send(contextId="even" if number % 2 == 0 else "odd")["id"])
    clock.move(seconds=1)
    middle = clock.now()
    clock.move(seconds=1)
    resolve(teammate, ids[0])
    expected = [ids[0], *reversed(ids[1:])]
    found, token = [], ""
    while True:
        page = sender.call("ListTasks", pageSize=2, pageToken=token)
        assert (page["pageSize"], page["totalSize"]) == (2, 5)
        assert len(page["tasks"]) <= 2
        found += [task["id"] for task in page["tasks"]]
        token = page["nextPageToken"]
        if not token:
            break
    assert found == expected

    def listed(**params: Any) -> list[str]:
        return [task["id"] for task in sender.call("ListTasks", **params)["tasks"]]

    assert listed(status="TASK_STATE_WORKING") == [ids[0]]
    assert listed(status="TASK_STATE_INPUT_REQUIRED") == []
    assert listed(status="TASK_STATE_UNSPECIFIED") == expected
    assert listed(contextId="odd") == [ids[3], ids[1]]
    assert listed(contextId="neither") == []
    assert listed(statusTimestampAfter=middle.isoformat()) == [ids[0]]


IMPOSSIBLE_LISTS: list[Any] = [
    ({"pageSize": 0}, "pageSize"),
    ({"pageSize": 101}, "pageSize"),
    ({"pageSize": "5"}, "pageSize"),
    ({"pageToken": "x"}, "pageToken"),
    ({"pageToken": "9999999999999999-1"}, ""),
    ({"status": "working"}, "status"),
    ({"historyLength": -1}, "historyLength"),
    ({"statusTimestampAfter": "yesterday"}, "statusTimestampAfter"),
    ({"contextId": "\x00"}, "contextId"),
]


def test_a_list_that_cannot_be(sender: Agent) -> None:
    for params, told in IMPOSSIBLE_LISTS:
        if not told:
            assert sender.call("ListTasks", **params)["tasks"] == []
            continue
        assert sender.refusal("ListTasks", **params) == (-32602, told)


NAMELESS: list[Any] = [{}, {"id": 7}, {"id": ""}, {"id": "x" * 300}, {"id": "a\x00b"}]


def test_a_task_without_a_name(sender: Agent) -> None:
    for params in NAMELESS:
        for method in ("GetTask", "CancelTask"):
            assert sender.refusal(method, **params) == (-32602, "id")


def test_a_page_of_tasks_walks_one_index(agent: Caster) -> None:
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            # A table of a few rows is read whole and sorted, whatever indexes there are.
            cursor.execute(
                "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off"
            )
    found = tasks.sent(caller=agent.caller, at=database_clock.now()).order_by("-updated", "-pk")[:50]
    plan = found.explain()
    assert "handoff_by_update" in plan
    assert "SORT" not in plan.upper().replace("SORT KEY", "")
    assert "TEMP B-TREE" not in plan.upper()
