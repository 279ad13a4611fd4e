"""The checker itself: silent about what a correct server can do, loud about each thing that it cannot."""

import random
from dataclasses import replace

import pytest

from tests.histories.checker import ACQUIRE, BEAT, RELEASE, Operation, check
from tests.rounds import rounds


def acquired(client: str, token: int, sent: float, answered: float, ttl: float = 10.0) -> Operation:
    return Operation(client, ACQUIRE, "r", sent, answered, True, client, token, ttl)


def refused(client: str, sent: float, answered: float) -> Operation:
    return Operation(client, ACQUIRE, "r", sent, answered, False, client, code="CONFLICT")


def beat(client: str, token: int, sent: float, answered: float, ok: bool | None = True, ttl: float = 10.0) -> Operation:
    return Operation(client, BEAT, "r", sent, answered, ok, client, token, ttl)


def released(client: str, token: int, sent: float, answered: float | None, ok: bool | None = True) -> Operation:
    return Operation(client, RELEASE, "r", sent, answered, ok, client, token)


def rules(*operations: Operation) -> set[str]:
    return {violation.rule for violation in check(operations)}


def test_one_after_the_other_is_fine() -> None:
    assert not rules(
        acquired("a", 1, 0, 1),
        beat("a", 1, 5, 6),
        refused("b", 7, 8),
        released("a", 1, 9, 10),
        acquired("b", 2, 9.5, 11),
    )


def test_a_takeover_after_the_expiry_is_fine() -> None:
    assert not rules(acquired("a", 1, 0, 1), acquired("b", 2, 10.5, 11), beat("a", 1, 11.5, 12, ok=False))


def test_a_grant_within_another_ones_lease_is_two_holders() -> None:
    assert "two holders" in rules(acquired("a", 1, 0, 1), acquired("b", 2, 5, 6))


def test_a_grant_that_may_have_come_after_the_release_is_not() -> None:
    assert not rules(acquired("a", 1, 0, 1), released("a", 1, 5, 9), acquired("b", 2, 6, 7))


def test_a_grant_within_a_lease_that_a_heartbeat_prolonged_is_two_holders() -> None:
    assert "two holders" in rules(acquired("a", 1, 0, 1), beat("a", 1, 8, 9), acquired("b", 2, 12, 13))


def test_a_heartbeat_that_shortens_the_lease_is_believed() -> None:
    assert not rules(acquired("a", 1, 0, 1), beat("a", 1, 2, 3, ttl=1), acquired("b", 2, 4.5, 5))


def test_an_unanswered_release_may_have_happened_at_any_time() -> None:
    assert not rules(acquired("a", 1, 0, 1), released("a", 1, 2, None, None), acquired("b", 2, 5, 6))


def test_a_token_that_goes_back_or_comes_twice_is_seen() -> None:
    assert "token went back" in rules(acquired("a", 5, 0, 1), released("a", 5, 2, 3), acquired("b", 4, 4, 5))
    assert "token given twice" in rules(acquired("a", 5, 0, 1), released("a", 5, 2, 3), acquired("b", 5, 4, 5))


def test_tokens_of_overlapping_requests_may_be_in_either_order() -> None:
    assert not rules(acquired("a", 5, 0, 3), acquired("b", 4, 2, 3.5, ttl=0.1))


def test_a_heartbeat_accepted_after_the_expiry_is_a_revival() -> None:
    assert "revived" in rules(acquired("a", 1, 0, 1), beat("a", 1, 11.5, 12))


def test_a_release_that_says_it_tidied_an_expired_lease_is_none() -> None:
    late = released("a", 1, 12, 13)
    assert "revived" in rules(acquired("a", 1, 0, 1), late)
    assert not rules(acquired("a", 1, 0, 1), replace(late, was_expired=True))


def test_a_stale_token_accepted_is_seen() -> None:
    operations = [acquired("a", 1, 0, 1), released("a", 1, 1.5, 2), acquired("b", 2, 3, 4)]
    assert "stale token accepted" in rules(*operations, released("a", 1, 5, 6))
    assert "stale token accepted" in rules(*operations, beat("a", 1, 5, 6))


def test_a_heartbeat_refused_while_surely_held_is_theft() -> None:
    assert "theft" in rules(acquired("a", 1, 0, 1), beat("a", 1, 5, 6, ok=False))
    assert not rules(acquired("a", 1, 0, 1), beat("a", 1, 9.5, 10.5, ok=False))


def test_a_refusal_while_nobody_can_have_held_is_a_ghost() -> None:
    assert "ghost" in rules(acquired("a", 1, 0, 1), refused("b", 11.5, 12))
    assert "ghost" in rules(refused("b", 1, 2))
    assert "ghost" in rules(acquired("a", 1, 0, 1), released("a", 1, 2, 3), refused("b", 4, 5))


def test_a_refusal_after_an_unanswered_acquire_is_none() -> None:
    unknown = Operation("a", ACQUIRE, "r", 0, None, None, "a", ttl=10.0)
    assert not rules(unknown, refused("b", 4, 5))


BUGS = (
    "double grant", "token reset", "token twice", "beat after expiry", "beat by name", "live lease dropped",
    "release by anyone", "expired lease blocks",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(rounds(60, full=1000)))
def test_random_histories_of_a_correct_server_are_clean(seed: int) -> None:
    assert not check(simulated(seed, bug=None))


@pytest.mark.parametrize("bug", BUGS)
def test_random_histories_of_a_faulty_server_are_caught(bug: str) -> None:
    seeds = range(rounds(40, full=300))
    caught = sum(bool(check(simulated(seed, bug=bug))) for seed in seeds)
    assert caught >= len(seeds) // 3, f"only {caught} of {len(seeds)} histories of {bug}"


class FakeServer:
    """One resource of a server that is sequential inside, with at most one fault."""

    def __init__(self, bug: str | None, dice: random.Random) -> None:
        self.bug, self.dice = bug, dice
        self.token, self.holder, self.expiry = 0, "", 0.0

    def acquire(self, at: float, client: str, ttl: float) -> int | None:
        blocked = self.bug == "expired lease blocks" and self.holder != "" and self.dice.random() < 0.7
        taken = self.expiry > at or blocked
        if self.holder == client and self.expiry > at:
            taken = False
        if taken and not (self.bug == "double grant" and self.dice.random() < 0.1):
            return None
        if self.bug == "token reset" and self.dice.random() < 0.3:
            self.token = 0
        if not (self.bug == "token twice" and self.dice.random() < 0.3):
            self.token += 1
        self.holder, self.expiry = client, at + ttl
        return self.token

    def beat(self, at: float, token: int, ttl: float) -> bool:
        if self.bug == "live lease dropped" and self.dice.random() < 0.05:
            self.holder = ""
        matches = token == self.token or self.bug == "beat by name"
        alive = self.expiry > at or self.bug == "beat after expiry"
        if not (matches and alive and self.holder):
            return False
        self.expiry = at + ttl
        return True

    def release(self, at: float, token: int) -> tuple[bool, bool]:
        if not self.holder or (token != self.token and self.bug != "release by anyone"):
            return False, False
        was_expired = self.expiry <= at
        self.holder, self.expiry = "", 0.0
        return True, was_expired


def simulated(seed: int, *, bug: str | None) -> list[Operation]:
    """What clients with delays of their own would record."""
    dice = random.Random(seed)
    server = FakeServer(bug, dice)
    clients = {f"client-{number}": 0.0 for number in range(4)}
    leases: dict[str, tuple[int, float]] = {}
    operations = []
    at = 0.0
    for _ in range(150):
        at += dice.expovariate(2)
        client = dice.choice(list(clients))
        sent = max(clients[client], at - dice.random() * 0.3)
        at = max(at, sent)
        answered = None if dice.random() < 0.03 else at + dice.random() * 0.3
        operations.append(_one(dice, server, client, leases, sent, at, answered))
        clients[client] = at if answered is None else answered
    return operations


def _one(
    dice: random.Random,
    server: FakeServer,
    client: str,
    leases: dict[str, tuple[int, float]],
    sent: float,
    at: float,
    answered: float | None,
) -> Operation:
    choice = dice.random()
    if client not in leases or choice < 0.2:
        ttl = dice.uniform(0.3, 6)
        token = server.acquire(at, client, ttl)
        ok = token is not None
        leases.pop(client, None)
        if answered is not None and token is not None:
            leases[client] = (token, ttl)
        known = token if answered is not None else None
        return Operation(client, ACQUIRE, "r", sent, answered, ok if answered else None, client, known, ttl)
    token, ttl = leases[client]
    if choice < 0.75:
        ok = server.beat(at, token, ttl)
        if not ok:
            del leases[client]
        return Operation(client, BEAT, "r", sent, answered, ok if answered else None, client, token, ttl)
    ok, was_expired = server.release(at, token)
    del leases[client]
    return Operation(client, RELEASE, "r", sent, answered, ok if answered else None, client, token, 0.0, was_expired)
