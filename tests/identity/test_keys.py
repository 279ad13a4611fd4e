import hashlib
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from leasehub.db import clock as database_clock
from leasehub.identity import secret
from leasehub.identity.models import ApiKey, Principal
from tests.conftest import Caster, cast, error_of


def made(operator: Caster, **members: Any) -> Any:
    return operator.post("keys", {"principal": "muse", **members})


def by(response: Any, principal: Principal) -> Caster:
    return Caster(principal, response.json()["data"]["api_key"])


def test_a_key_is_made_with_its_principal_and_works_at_once(operator: Caster) -> None:
    response = made(operator, kind="service", label="ci", holder_pattern="^ci-.*$")
    key = response.json()["data"]
    assert response.status_code == 201
    assert (key["principal"], key["kind"], key["label"], key["rings"]) == ("muse", "service", "ci", [1, 2])
    assert (key["holder_pattern"], key["expires_at"], key["revoked_at"]) == ("^ci-.*$", None, None)
    muse = by(response, Principal.objects.get(handle="muse"))
    assert muse.get("whoami").json()["data"]["key_id"] == key["key_id"]
    # The principal is there now: a second key is another of its keys.
    second = made(operator).json()["data"]
    assert (second["principal"], second["kind"]) == ("muse", "service")
    assert Principal.objects.filter(handle="muse").count() == 1


def test_the_secret_is_shown_once_and_only_its_hash_is_stored(operator: Caster, stranger: Caster) -> None:
    plain = made(operator).json()["data"]["api_key"]
    assert secret.well_formed(plain)
    row = ApiKey.objects.get(prefix=plain[:11])
    assert row.secret_sha256 == hashlib.sha256(plain.encode()).hexdigest()
    for column in row._meta.concrete_fields:
        assert plain[11:] not in str(getattr(row, column.attname))
    listed = operator.get("keys").content.decode()
    assert plain not in listed
    assert plain[:11] in listed
    assert row.secret_sha256 not in listed


def test_no_table_has_the_secret(operator: Caster) -> None:
    plain = made(operator).json()["data"]["api_key"]
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT * FROM "{table}"')
            assert plain not in repr(cursor.fetchall()), table


def test_a_typing_error_in_a_secret_is_seen_offline() -> None:
    plain = secret.make()
    assert secret.well_formed(plain)
    for index in range(3, len(plain)):
        other = "a" if plain[index] != "a" else "b"
        assert not secret.well_formed(plain[:index] + other + plain[index + 1 :])


def test_the_list_is_paged_and_shows_one_organization(operator: Caster, agent: Caster, stranger: Caster) -> None:
    mine = {operator.caller.key_id, agent.caller.key_id}
    first = operator.get("keys?limit=1").json()["data"]
    rest = operator.get(f"keys?limit=1&after={first['next']}").json()["data"]
    assert {key["key_id"] for key in first["keys"] + rest["keys"]} == mine
    assert rest["next"] is None


@pytest.mark.parametrize(("own", "wanted", "missing"), [((3,), [1], 1), ((2, 3), [2, 1], 1), ((1, 3), [1, 2, 3], 2)])
def test_nobody_grants_a_ring_that_it_lacks(
    organization: Any, own: tuple[int, ...], wanted: list[int], missing: int
) -> None:
    giver = cast(organization, "giver", own)
    refused = error_of(giver.post("keys", {"principal": "muse", "rings": wanted}))
    assert (refused["status"], refused["missing_ring"]) == (403, missing)
    assert not Principal.objects.filter(handle="muse").exists()
    assert giver.post("keys", {"principal": "muse", "rings": list(own)}).status_code == 201


def test_nor_by_rotating_somebody_elses_key(organization: Any, operator: Caster) -> None:
    giver = cast(organization, "giver", (3,))
    refused = error_of(giver.post(f"keys/{operator.caller.key_id}/rotate", {}))
    assert (refused["status"], refused["missing_ring"]) == (403, 1)


def test_a_revoked_key_stays_revoked_at_the_first_time(operator: Caster, agent: Caster) -> None:
    key_id = agent.caller.key_id
    first = operator.delete(f"keys/{key_id}")
    assert first.status_code == 200
    assert first.json()["data"]["key_id"] == key_id
    assert agent.get("whoami").status_code == 401
    assert operator.delete(f"keys/{key_id}").content == first.content


def test_a_rotated_key_overlaps_with_the_new_one(operator: Caster, agent: Caster, clock: Any) -> None:
    response = operator.post(f"keys/{agent.caller.key_id}/rotate", {"overlap_seconds": 60})
    new, key = by(response, agent.principal), response.json()["data"]
    assert response.status_code == 201
    assert (key["principal"], key["rings"], key["expires_at"]) == ("agent", [1, 2], None)
    assert key["key_id"] != agent.caller.key_id
    clock.move(seconds=59)
    assert (agent.get("whoami").status_code, new.get("whoami").status_code) == (200, 200)
    clock.move(seconds=1)
    assert (agent.get("whoami").status_code, new.get("whoami").status_code) == (401, 200)


def test_without_an_overlap_the_old_key_ends_at_once(operator: Caster, agent: Caster) -> None:
    assert agent.acquire().status_code == 201
    operator.post(f"keys/{agent.caller.key_id}/rotate", {"overlap_seconds": 0})
    assert agent.acquire().status_code == 401


def test_a_rotation_makes_no_key_live_longer(operator: Caster, clock: Any) -> None:
    ends = database_clock.iso(clock.now() + timedelta(seconds=100))
    old = made(operator, expires_at=ends).json()["data"]
    assert old["expires_at"] == ends
    new = operator.post(f"keys/{old['key_id']}/rotate", {"overlap_seconds": 3600}).json()["data"]
    assert new["expires_at"] == ends
    listed = {key["key_id"]: key["expires_at"] for key in operator.get("keys").json()["data"]["keys"]}
    assert listed[old["key_id"]] == ends


def test_a_key_that_works_no_more_cannot_be_rotated(operator: Caster, agent: Caster) -> None:
    operator.delete(f"keys/{agent.caller.key_id}") if agent.caller else None
    key_id = ApiKey.objects.get(principal=agent.principal).key_id
    assert error_of(operator.post(f"keys/{key_id}/rotate", {}))["code"] == "NOT_FOUND"


def test_a_key_ends_at_its_expiry_and_not_before(operator: Caster, clock: Any) -> None:
    ends = clock.now() + timedelta(seconds=100)
    muse = by(made(operator, expires_at=database_clock.iso(ends)), operator.principal)
    for call in (lambda: muse.get("whoami"), muse.acquire):
        clock.freeze(ends - timedelta(milliseconds=1))
        assert call().status_code < 300
        clock.freeze(ends)
        assert call().status_code == 401


def test_a_fence_that_is_none_is_refused(operator: Caster) -> None:
    for pattern in ("ci-.*", "^ci-.*", "ci-.*$", "^(ci$", "^ci\\$"):
        refused = error_of(made(operator, holder_pattern=pattern))
        assert (refused["status"], list(refused["fields"])) == (400, ["holder_pattern"])
    assert not Principal.objects.filter(handle="muse").exists()


def test_a_key_for_a_principal_that_is_of_another_kind_is_refused(operator: Caster) -> None:
    assert operator.post("keys", {"principal": "robot", "kind": "service"}).status_code == 201
    assert operator.post("keys", {"principal": "robot"}).status_code == 201
    refused = error_of(operator.post("keys", {"principal": "robot", "kind": "human"}))
    assert (refused["status"], refused["fields"]) == (400, {"kind": "is service"})


def test_a_fence_is_looked_at_in_linear_time(operator: Caster) -> None:
    """An engine that backtracks doubles its time with each letter: half a minute here, and every thread waits."""
    key = by(made(operator, holder_pattern="^(a|a)*b$"), Principal.objects.get(handle="muse"))
    began = time.monotonic()
    refused = error_of(key.acquire(holder="a" * 28))
    assert time.monotonic() - began < 5
    assert key.acquire(holder="a" * 128).status_code == 403
    assert (refused["status"], refused["code"]) == (403, "FORBIDDEN")
    assert key.acquire(holder="aab").status_code == 201


@pytest.mark.parametrize("pattern", ["^(?=a)a$", "^(a)\\1$", "^(?<!a)b$"])
def test_a_fence_that_would_need_to_backtrack_is_refused(operator: Caster, pattern: str) -> None:
    refused = error_of(made(operator, holder_pattern=pattern))
    assert "RE2" in refused["fields"]["holder_pattern"]


def test_a_fence_that_no_engine_takes_any_more_holds_nobody(operator: Caster) -> None:
    key = by(made(operator, holder_pattern="^ci-.*$"), Principal.objects.get(handle="muse"))
    ApiKey.objects.filter(principal__handle="muse").update(holder_pattern="^(?=ci)ci-.*$")
    assert key.acquire(holder="ci-1").status_code == 403
