"""A key that works no more is refused at the next call, whatever the process remembers and whatever is sent."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from leasehub.identity import authentication
from leasehub.identity.models import ApiKey, Principal
from tests.api.samples import SAMPLES, Names, Sample
from tests.conftest import Caster, cast, error_of

End = Callable[[Caster, Any], None]


def revoke(caster: Caster, clock: Any) -> None:
    ApiKey.objects.filter(principal=caster.principal).update(revoked_at=clock.now())


def retire(caster: Caster, clock: Any) -> None:
    Principal.objects.filter(pk=caster.principal.pk).update(retired_at=clock.now())


def expire(caster: Caster, clock: Any) -> None:
    ApiKey.objects.filter(principal=caster.principal).update(expires_at=clock.now() + timedelta(seconds=1))
    clock.move(seconds=1)


ENDS: dict[str, End] = {"revoked": revoke, "retired": retire, "expired": expire}


def refused(response: Any) -> bool:
    return bool(response.status_code == 401 and response.headers["WWW-Authenticate"].startswith("Bearer"))


@pytest.mark.parametrize("end", ENDS)
def test_the_next_call_is_refused_though_the_process_remembers_the_key(organization: Any, clock: Any, end: str) -> None:
    caster = cast(organization, "caster", (1, 2, 3))
    held = caster.acquire().json()["data"]
    names = Names(held["lease_id"], held["fencing_token"], caster.caller.key_id, "someone", "checkout")
    caster.get("whoami")
    ENDS[end](caster, clock)
    let_through = []
    remembered = dict(authentication._remembered)
    for name, sample in SAMPLES.items():
        for what, response in in_many_ways(caster, sample, names):
            if not refused(response):
                let_through.append(f"{name} {what}")
            # A refusal makes the process forget the key.
            authentication._remembered.update(remembered)
    assert let_through == []
    assert remembered


def in_many_ways(caster: Caster, sample: Sample, names: Names) -> Iterator[tuple[str, Any]]:
    path = sample.path(names).partition("?")[0]
    yield "well-formed", sample.send(caster, names)
    yield "of nothing", sample.send(caster, Names.of_nothing())
    yield "with an unknown parameter", caster.request(sample.method, f"{path}?nonsense=1", sample.body(names))
    yield "with no JSON", caster.request(sample.method, path, b"[")
    yield "with a media type", caster.request(sample.method, path, b"x", **{"Content-Type": "text/plain"})
    yield "with a large body", caster.request(sample.method, path, b" " * (2**20 + 1))
    yield "with an idempotency key", sample.send(caster, names, **{"Idempotency-Key": "k"})
    yield "with an illegal idempotency key", sample.send(caster, names, **{"Idempotency-Key": ""})


# What the hot path refuses before it asks the database anything.
EARLY: dict[str, Callable[[Caster, str], Any]] = {
    "a holder outside the fence": lambda caster, _: caster.acquire(holder="muse"),
    "a reserved type": lambda caster, _: caster.acquire(resource_type="task"),
    "a short ttl": lambda caster, _: caster.acquire(ttl_seconds=1),
    "a release of no id": lambda caster, _: caster.delete("leases/garbage"),
    "a beat of no id": lambda caster, _: caster.post("leases/garbage/heartbeat", {"fencing_token": 1}),
    "a release outside the fence": lambda caster, lease_id: caster.delete(f"leases/{lease_id}"),
    "a beat outside the fence": lambda caster, lease_id: caster.post(
        f"leases/{lease_id}/heartbeat", {"fencing_token": 1}
    ),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("what", EARLY)
def test_even_what_is_refused_anyway_is_refused_for_the_key_first(
    organization: Any, clock: Any, what: str, end: str
) -> None:
    outside = cast(organization, "caster").acquire("outside", holder="muse").json()["data"]["lease_id"]
    caster = cast(organization, "caster", (2,), holder_pattern="^ci-.*$")
    # Once for each: the refusal makes the process forget the key.
    caster.get("whoami")
    assert EARLY[what](caster, outside).status_code in (400, 403, 404)
    ENDS[end](caster, clock)
    assert refused(EARLY[what](caster, outside))


def test_every_operation_refuses_a_call_without_a_key(agent: Caster) -> None:
    for sample in SAMPLES.values():
        for authorization in ("", f"Bearer lh_{'a' * 8}_{'a' * 49}"):
            assert refused(sample.send(agent, Names.of_nothing(), Authorization=authorization))


def test_what_kind_of_wrong_a_key_is_is_not_told(agent: Caster, clock: Any) -> None:
    unknown = agent.get("whoami", Authorization=f"Bearer lh_{'a' * 8}_{'a' * 49}").content
    agent.get("whoami")
    for end in (expire, retire, revoke):
        end(agent, clock)
        assert agent.get("whoami").content == unknown


# The operations whose own business is keys.
OF_KEYS = {"key_list", "key_create", "key_revoke", "key_rotate", "event_list"}


@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in OF_KEYS])
def test_a_request_asks_at_most_once_for_its_key(organization: Any, name: str) -> None:
    caster = cast(organization, "caster", (1, 2, 3))
    held = caster.acquire().json()["data"]
    mine = Names(held["lease_id"], held["fencing_token"], caster.caller.key_id, "someone", "checkout")
    for names in (mine, Names.of_nothing(), Names("garbage", 1, "garbage", "garbage", "garbage")):
        with CaptureQueriesContext(connection) as captured:
            SAMPLES[name].send(caster, names)
        asked = [query["sql"] for query in captured if 'FROM "identity_apikey"' in query["sql"]]
        # On PostgreSQL the hot path's one call is not among these: it asks for the key by itself.
        assert len([sql for sql in asked if sql.startswith("SELECT")]) <= 1, asked


def test_a_batch_asks_once_for_all(agent: Caster) -> None:
    held = [agent.acquire(f"r{number}").json()["data"] for number in range(5)]
    body = {"leases": [{"lease_id": one["lease_id"], "fencing_token": one["fencing_token"]} for one in held]}
    with CaptureQueriesContext(connection) as captured:
        agent.post("leases/heartbeats", body)
    assert sum('FROM "identity_apikey"' in query["sql"] for query in captured) <= 1


def test_the_key_is_found_by_its_index(agent: Caster) -> None:
    with CaptureQueriesContext(connection) as captured:
        agent.get("whoami")
    assert sum("secret_sha256" in query["sql"] for query in captured) == 1
    # A table of one page is read as a whole, or by any of its indexes at the same cost.
    secrets = [f"{number:064x}" for number in range(2000)]
    ApiKey.objects.bulk_create(
        ApiKey(principal=agent.principal, secret_sha256=secret, created_at=agent.principal.created_at)
        for secret in secrets
    )
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("ANALYZE identity_apikey")
        explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
        cursor.execute(f"{explain} {authentication.LOOK_UP}", [secrets[0]])
        plan = str(cursor.fetchall())
    assert "identity_apikey_secret_sha256" in plan or "(secret_sha256=?)" in plan, plan


def last_used(caster: Caster) -> Any:
    return ApiKey.objects.get(principal=caster.principal).last_used_at


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The process's own clock, moved by hand."""
    at = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    return at


@pytest.mark.parametrize(
    "call", [lambda caster: caster.get("whoami"), lambda caster: caster.acquire()], ids=["cold", "hot"]
)
def test_the_last_use_is_written_at_most_once_a_minute(
    agent: Caster, clock: Any, monotonic: list[float], call: Callable[[Caster], Any]
) -> None:
    assert last_used(agent) is None
    call(agent)
    first = last_used(agent)
    assert first is not None
    for _ in range(3):
        clock.move(seconds=19)
        monotonic[0] += 19
        with CaptureQueriesContext(connection) as captured:
            call(agent)
        assert not [query for query in captured if query["sql"].startswith('UPDATE "identity_apikey"')]
    assert last_used(agent) == first
    clock.move(seconds=4)
    monotonic[0] += 4
    call(agent)
    assert last_used(agent) > first


def test_another_process_does_not_write_it_again_within_the_minute(
    agent: Caster, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.get("whoami")
    first = last_used(agent)
    clock.move(seconds=30)
    monkeypatch.setattr(authentication, "_last_used", {})
    agent.get("whoami")
    assert last_used(agent) == first


@pytest.mark.parametrize("end", ENDS)
def test_a_refused_call_is_no_use(agent: Caster, clock: Any, monotonic: list[float], end: str) -> None:
    agent.acquire()
    first = last_used(agent)
    clock.move(seconds=120)
    monotonic[0] += 120
    ENDS[end](agent, clock)
    assert refused(agent.acquire())
    assert refused(agent.get("whoami"))
    assert last_used(agent) == first


def test_rings_and_fence_are_remembered_per_key_not_per_principal(organization: Any) -> None:
    wide, narrow = cast(organization, "muse", (1, 2, 3)), cast(organization, "muse", (2,), holder_pattern="^ci$")
    for _ in range(2):
        assert wide.get("leases").status_code == 200
        assert error_of(narrow.get("leases"))["missing_ring"] == 1
        assert narrow.acquire(holder="muse").status_code == 403
