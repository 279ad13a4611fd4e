"""The pool file: every check names the member that is wrong."""

from typing import Any

import pytest

from leasehub.errors import ValidationError
from pools import labels, poolfile
from pools.environment import slot_environment
from pools.templates import rendered, scope
from tests.conftest import Caster, error_of
from tests.pools.conftest import Declare, ask, slots

TWO = [{"id": 1}, {"id": 2}]

WRONG: list[tuple[Any, str, str]] = [
    ([], "body", "JSON object"),
    ({}, "slots", 'non-empty "slots"'),
    ({"slots": []}, "slots", 'non-empty "slots"'),
    ({"slots": "two"}, "slots", 'non-empty "slots"'),
    ({"slots": TWO, "name": "No Good"}, "name", 'invalid pool "name"'),
    ({"slots": TWO, "name": 7}, "name", 'invalid pool "name"'),
    ({"slots": TWO, "name": "other"}, "name", 'invalid pool "name"'),
    (
        {"slots": [{"id": n} for n in range(400)], "grantEnv": {f"V{n}": "{id}" for n in range(300)}},
        "grantEnv",
        "too many templates",
    ),
    ({"slots": TWO, "grantFields": {"holder": "somebody"}}, "grantFields.holder", "collides"),
    ({"slots": TWO, "kindPrefix": 1}, "kindPrefix", '"kindPrefix" must be a string'),
    ({"slots": TWO, "queueLockKind": "No"}, "queueLockKind", "must match"),
    ({"slots": TWO, "provision": None}, "provision", '"provision" must be a string'),
    ({"slots": TWO, "reset": 1}, "reset", '"reset" must be a string'),
    ({"slots": TWO, "health": []}, "health", '"health" must be a string'),
    ({"slots": TWO, "nudgeCommand": {}}, "nudgeCommand", '"nudgeCommand" must be a string'),
    ({"slots": TWO, "nudgeEvent": 1}, "nudgeEvent", '"nudgeEvent" must be a string'),
    ({"slots": TWO, "shellPrefix": 1}, "shellPrefix", '"shellPrefix" must be a string'),
    ({"slots": TWO, "shellPrefix": "a-b"}, "shellPrefix", "not a valid environment variable name"),
    ({"slots": TWO, "bookkeeper": False}, "bookkeeper", '"bookkeeper" must be a string'),
    ({"slots": TWO, "cwd": 1}, "cwd", '"cwd" must be a string'),
    ({"slots": TWO, "worker": "a b"}, "worker", "must match"),
    ({"slots": TWO, "provision": "a\0b"}, "provision", "NUL"),
    ({"slots": TWO, "ttlMinutes": 0}, "ttlMinutes", '"ttlMinutes" must be a positive number'),
    ({"slots": TWO, "ttlMinutes": True}, "ttlMinutes", '"ttlMinutes" must be a positive number'),
    ({"slots": TWO, "ttlMinutes": 0.05}, "ttlMinutes", '"ttlMinutes" must be a positive number'),
    ({"slots": TWO, "ttlMinutes": 10**400}, "ttlMinutes", '"ttlMinutes" must be a positive number'),
    ({"slots": TWO, "waiterStaleMs": -1}, "waiterStaleMs", '"waiterStaleMs" must be a positive number'),
    ({"slots": TWO, "movingAvgSeedMs": "8"}, "movingAvgSeedMs", '"movingAvgSeedMs" must be a positive number'),
    ({"slots": TWO, "claimWindowMs": None}, "claimWindowMs", '"claimWindowMs" must be a positive number'),
    ({"slots": TWO, "grantEnv": []}, "grantEnv", '"grantEnv" must be a JSON object'),
    ({"slots": TWO, "grantEnv": {"a-b": "x"}}, "grantEnv.a-b", "not a valid environment variable name"),
    ({"slots": TWO, "grantEnv": {"PORT": 1}}, "grantEnv.PORT", "grantEnv.PORT"),
    ({"slots": TWO, "grantEnv": {"POOL_RUN_TOKEN": "x"}}, "grantEnv.POOL_RUN_TOKEN", "collides"),
    ({"slots": TWO, "grantEnv": {"LEASEHUB_URL": "x"}}, "grantEnv.LEASEHUB_URL", "collides"),
    ({"slots": TWO, "grantEnv": {"POOL_LEASE_SLOT": "x"}}, "grantEnv.POOL_LEASE_SLOT", "collides"),
    ({"slots": TWO, "grantFields": {"token": "x"}}, "grantFields.token", "collides"),
    ({"slots": TWO, "grantFields": {"queued": "x"}}, "grantFields.queued", "collides"),
    ({"slots": TWO, "grantFields": {"error": "x"}}, "grantFields.error", "collides"),
    ({"slots": TWO, "ttlMinuts": 5}, "ttlMinuts", 'unknown member "ttlMinuts"'),
    ({"slots": [1]}, "slots.0", "JSON object"),
    ({"slots": [{"port": 1}]}, "slots.0", 'needs an "id"'),
    ({"slots": [{"id": ""}]}, "slots.0", 'needs an "id"'),
    ({"slots": [{"id": True}]}, "slots.0", 'needs an "id"'),
    ({"slots": [{"id": None}]}, "slots.0", 'needs an "id"'),
    ({"slots": [{"id": 1}, {"id": "1"}]}, "slots.1", "duplicate slot id"),
    ({"slots": [{"id": 1}, {"id": 1.0}]}, "slots.1", "duplicate slot id"),
    ({"slots": [{"id": "A B"}]}, "slots.0", "must match"),
    ({"slots": [{"id": "X"}]}, "slots.0", "must match"),
    ({"slots": [{"id": 1, "kind": 7}]}, "slots.0", "must match"),
    ({"slots": [{"id": 1, "kind": "a"}, {"id": 2, "kind": "a"}]}, "slots.1", "duplicate lease kind"),
    ({"slots": [{"id": 1, "kind": "e2e-queue"}]}, "slots.0", "duplicate lease kind"),
    ({"slots": [{"id": "a\nb", "kind": "a"}]}, "slots.0", 'needs an "id"'),
    ({"slots": [{"id": 1, "Id": 99}]}, "slots.0", "collide as POOL_SLOT_ID"),
    ({"slots": [{"id": 1, "KIND": 99}]}, "slots.0", "collide as POOL_SLOT_KIND"),
    ({"slots": [{"id": 1, "cache-db": 1, "cache_db": 2}]}, "slots.0", "collide as POOL_SLOT_CACHE_DB"),
    ({"slots": [{"id": 1, "a": {"b": 1}, "a_b": 2}]}, "slots.0", "collide as POOL_SLOT_A_B"),
    ({"slots": [{"id": 1, "--": 1}]}, "slots.0", "no letter or digit"),
    ({"slots": TWO, "grantEnv": {"A": "{port}"}}, "slots.1", 'unknown slot attribute "port"'),
    ({"slots": [{"id": 1, "cache-db": 7}], "grantEnv": {"A": "x{cache-db}"}}, "slots.1", "not a placeholder"),
    ({"slots": TWO, "grantFields": {"a": "{constructor}"}}, "slots.1", 'unknown slot attribute "constructor"'),
    ({"slots": [{"id": 1, "x": "\ud800"}]}, "slots.0", "surrogate"),
]


@pytest.mark.parametrize(("document", "member", "text"), WRONG, ids=[text[:60] for _, _, text in WRONG])
def test_what_is_wrong_is_named(document: Any, member: str, text: str) -> None:
    with pytest.raises(ValidationError) as refused:
        poolfile.parse(document, name="e2e")
    fields = refused.value.fields["fields"]
    assert isinstance(fields, dict)
    assert text in fields[member]
    assert text in refused.value.message


def test_everything_that_is_wrong_is_named_at_once(operator: Caster) -> None:
    refused = error_of(operator.put("pools/e2e", {"slots": [{"id": 1}, {}], "ttl": 5, "health": 7}))
    assert (refused["status"], refused["code"]) == (400, "VALIDATION_ERROR")
    assert set(refused["fields"]) == {"ttl", "health", "slots.1"}


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b'{"slots": [[[[[',
        b'{"slots": ["\\ud800"]}',
        b'{"slots": [{"id": 1e999}]}',
        b'{"slots": NaN}',
        b"\xff",
    ],
)
def test_a_body_that_is_no_pool_file_is_refused(body: bytes, operator: Caster) -> None:
    assert operator.put("pools/e2e", body).status_code == 400


def test_the_defaults() -> None:
    file = poolfile.parse({"slots": TWO})
    declared = file.declaration
    assert file.name == "pool"
    assert [slot.kind for slot in file.slots] == ["slot-1", "slot-2"]
    assert (declared.ttl_seconds, declared.waiter_stale_ms, declared.moving_avg_seed_ms) == (1800, 90_000, 480_000)
    assert (declared.nudge_event, declared.shell_prefix, declared.worker) == ("lease-granted", "POOL_LEASE", "default")
    assert not declared.runs_commands


@pytest.mark.parametrize(
    ("members", "provision", "reset"),
    [
        ({}, "", ""),
        ({"provision": "p"}, "p", "p"),
        ({"reset": "r"}, "r", "r"),
        ({"provision": "p", "reset": "r"}, "p", "r"),
        ({"provision": "", "reset": "r"}, "", "r"),
        ({"provision": "p", "reset": ""}, "p", ""),
    ],
)
def test_which_command_runs(members: dict[str, str], provision: str, reset: str) -> None:
    declared = poolfile.parse({"slots": TWO, **members}).declaration
    assert (declared.provision, declared.reset) == (provision, reset)


def test_the_environment_of_a_slot() -> None:
    attributes = {
        "cache-db": 7,
        "ports": {"api": 3000, "admin.ui": 3001},
        "tags": ["a", "b"],
        "note": None,
        "region": "eu",
        "share": 0.1,
        "whole": 3.0,
        "on": True,
        "empty": {},
    }
    assert slot_environment("web-1", "slot-web-1", attributes) == {
        "POOL_SLOT_ID": "web-1",
        "POOL_SLOT_KIND": "slot-web-1",
        "POOL_SLOT_CACHE_DB": "7",
        "POOL_SLOT_PORTS_API": "3000",
        "POOL_SLOT_PORTS_ADMIN_UI": "3001",
        "POOL_SLOT_TAGS": '["a","b"]',
        "POOL_SLOT_NOTE": "",
        "POOL_SLOT_REGION": "eu",
        "POOL_SLOT_SHARE": "0.1",
        "POOL_SLOT_WHOLE": "3",
        "POOL_SLOT_ON": "true",
    }


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{port}", 4000),
        ("http://h:{port}/{id}", "http://h:4000/7"),
        ("{tags}", ["a", {"b": 1}]),
        ("{tags.1.b}", 1),
        ("x{tags}", 'x["a",{"b":1}]'),
        ("{none}", None),
        ("x{none}{yes}", "xnulltrue"),
        ('{"a": 1}', '{"a": 1}'),
        ("{kind}", "slot-7"),
        (5, 5),
    ],
)
def test_templates(template: Any, value: Any) -> None:
    names = scope(7, "slot-7", {"port": 4000, "tags": ["a", {"b": 1}], "none": None, "yes": True})
    assert rendered(template, names) == value


def test_equal_values_are_equal_labels() -> None:
    assert labels.stored(1) == labels.stored(1.0) != labels.stored(True)
    assert labels.stored({"a": 1, "b": 2}) == labels.stored({"b": 2, "a": 1})
    assert labels.key({"a": 1, "b": 2}) == labels.key({"b": 2.0, "a": 1})
    assert len(labels.stored("x" * 5000)) < 200


def test_declaring_again_changes_the_pool_and_touches_no_lease(agent: Caster, declare: Declare) -> None:
    from tests.pools.conftest import look, on_slot, status

    declare(slots=slots(2, region="eu"))
    one, two = ask(agent), ask(agent)
    declare(slots=[{"id": 2, "region": "us"}, {"id": "new"}], ttlMinutes=5)
    for asked in (one, two):
        assert on_slot(agent, asked["grants"][0], "heartbeat").status_code == 200
    shown = {slot["slot_id"]: slot["condition"] for slot in status(agent)["slots"]}
    assert shown == {2: "enabled", "new": "enabled", 1: "removed"}
    assert look(agent, two)["grants"][0]["attrs"] == {"region": "us"}
    on_slot(agent, one["grants"][0], "release")
    assert {slot["slot_id"] for slot in status(agent)["slots"]} == {2, "new"}
    assert ask(agent)["grants"][0]["slot_id"] == "new"


def test_a_numeric_slot_is_found_by_an_equal_number(agent: Caster, declare: Declare) -> None:
    from tests.pools.conftest import on_slot

    declare(slots=[{"id": 1.5}, {"id": "01", "kind": "text"}])
    (grant,) = ask(agent)["grants"]
    assert grant["slot_id"] == 1.5
    assert on_slot(agent, {**grant, "slot_id": "01.50"}, "heartbeat").status_code == 200


def test_a_slots_id_may_have_a_slash(agent: Caster, declare: Declare) -> None:
    from tests.pools.conftest import on_slot

    declare(slots=[{"id": "rack/7", "kind": "rack-7"}])
    (grant,) = ask(agent)["grants"]
    assert grant["slot_id"] == "rack/7"
    assert on_slot(agent, {**grant, "slot_id": "rack%2F7"}, "release").status_code == 200
