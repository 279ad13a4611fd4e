"""A queue against a model of it in memory, whatever the order of calls."""

import os
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from leasehub.errors import DomainError
from leasehub.identity import services as identity
from leases.models import Resource
from leases.queues import queries, services
from leases.queues.engines import NewTask
from leases.queues.models import Task
from leases.services import Actor, reap_due
from tests.conftest import MovableClock, cast
from tests.replay import assert_the_journal_gives_the_state

FULL = os.environ.get("LEASEHUB_TEST_ROUNDS") == "full"
# Steps of time, and lengths that end half-way between two of them.
TICK = 1000
TTL = 1500
DELAY = 2500


@dataclass
class Claimed:
    token: int
    worker: int
    expires: int


@dataclass
class Known:
    priority: int
    order: int
    attempts_left: int
    ready_at: int
    dedupe_key: str | None = None
    state: str = "ready"
    attempts: int = 0
    claim: Claimed | None = None

    def give_up(self, *, ready_at: int) -> None:
        self.claim = None
        self.state = "dead" if self.attempts_left == 0 else "ready"
        self.ready_at = ready_at


class QueueMachine(RuleBasedStateMachine):
    clock: MovableClock

    def __init__(self) -> None:
        super().__init__()
        services._looked.clear()
        # What an earlier example left ran out by now and is out of the way.
        self.clock.move(seconds=10 * TICK)
        reap_due()
        organization = identity.create_organization(name=f"org-{uuid.uuid4().hex}")
        self.workers = [cast(organization, f"worker-{n}").caller for n in range(2)]
        self.operator = Actor(organization.pk, None)
        self.now = 0
        self.known: dict[uuid.UUID, Known] = {}
        self.old: list[tuple[uuid.UUID, Claimed]] = []
        self.order = 0
        self.highest: dict[uuid.UUID, int] = {}

    def live(self, key: str | None) -> uuid.UUID | None:
        live = [i for i, task in self.known.items() if task.dedupe_key == key and task.state in ("ready", "leased")]
        return live[0] if key is not None and live else None

    @rule(
        many=strategies.lists(
            strategies.tuples(
                strategies.sampled_from([-1, 0, 0, 7]),
                strategies.sampled_from([0, 0, DELAY]),
                strategies.integers(1, 3),
                strategies.sampled_from([None, None, "a", "b"]),
            ),
            min_size=1,
            max_size=4,
        )
    )
    def put(self, many: list[tuple[int, int, int, str | None]]) -> None:
        tasks = [NewTask(None, priority, delay, attempts, key) for priority, delay, attempts, key in many]
        answers = services.put(caller=self.workers[0], queue="q", tasks=tasks)
        for (priority, delay, attempts, key), answer in zip(many, answers, strict=True):
            known = self.live(key)
            assert answer.was_live == (known is not None)
            if known is not None:
                assert answer.task == known
                continue
            self.order += 1
            self.known[answer.task] = Known(priority, self.order, attempts, self.now + delay, key)

    @rule(worker=strategies.integers(0, 1), count=strategies.integers(1, 4))
    def claim(self, worker: int, count: int) -> None:
        claims = services.claim(caller=self.workers[worker], queue="q", ttl_seconds=TTL, count=count)
        self.expire()
        ready = [i for i, task in self.known.items() if task.state == "ready" and task.ready_at <= self.now]
        ready.sort(key=lambda i: (-self.known[i].priority, self.known[i].order))
        assert [claimed.task for claimed in claims] == ready[:count]
        for claimed in claims:
            task = self.known[claimed.task]
            task.attempts += 1
            task.attempts_left -= 1
            assert claimed.attempt == task.attempts
            assert claimed.fencing_token > self.highest.get(claimed.task, 0)
            self.highest[claimed.task] = claimed.fencing_token
            task.state = "leased"
            task.claim = Claimed(claimed.fencing_token, worker, self.now + TTL)
            self.old.append((claimed.task, task.claim))

    def expire(self) -> int:
        gone = [task for task in self.known.values() if task.claim and task.claim.expires <= self.now]
        for task in gone:
            task.give_up(ready_at=self.now)
        return len(gone)

    @rule()
    def reap(self) -> None:
        assert reap_due() == self.expire()

    @rule(ticks=strategies.integers(1, 3))
    def let_time_pass(self, ticks: int) -> None:
        self.now += ticks * TICK
        self.clock.move(seconds=ticks * TICK)

    @precondition(lambda self: self.old)
    @rule(
        pick=strategies.integers(0, 10**6),
        verb=strategies.sampled_from(["heartbeat", "complete", "fail", "fail for good", "give back"]),
        other=strategies.booleans(),
        wrong=strategies.booleans(),
    )
    def step(self, pick: int, verb: str, other: bool, wrong: bool) -> None:
        """Of a claim of any age, by its worker or the other one, with its token or another."""
        task_id, claim = self.old[pick % len(self.old)]
        task = self.known[task_id]
        worker = 1 - claim.worker if other and pick % 3 == 0 else claim.worker
        token = claim.token + (1 if wrong and pick % 5 == 0 else 0)
        mine = task.claim is not None and task.claim.worker == worker and task.claim.token == token
        alive = mine and task.claim is not None and task.claim.expires > self.now
        done = self.attempt(self.workers[worker], task_id, token, verb)
        assert done == (mine if verb == "give back" else alive)
        if not done:
            return
        assert task.claim is not None
        if verb == "heartbeat":
            task.claim.expires = self.now + TTL
        elif verb == "complete":
            task.claim, task.state = None, "done"
        else:
            if verb == "fail for good":
                task.attempts_left = 0
            task.give_up(ready_at=self.now + (DELAY if verb == "fail" else 0))

    def attempt(self, caller: Any, task_id: uuid.UUID, token: int, verb: str) -> bool:
        named = {"caller": caller, "task_id": task_id, "fencing_token": token}
        try:
            match verb:
                case "heartbeat":
                    services.heartbeat(**named)
                case "complete":
                    services.complete(**named, result=1)
                case "give back":
                    services.give_back(**named)
                case _:
                    final = verb == "fail for good"
                    services.fail(**named, error="no", retry_in_seconds=DELAY, final=final)
        except DomainError as refused:
            assert refused.code in ("LEASE_LOST", "STALE_TOKEN", "NOT_FOUND")
            return False
        return True

    @precondition(lambda self: self.known)
    @rule(pick=strategies.integers(0, 10**6))
    def retry(self, pick: int) -> None:
        task_id = list(self.known)[pick % len(self.known)]
        task = self.known[task_id]
        allowed = task.state == "dead" and self.live(task.dedupe_key) is None
        try:
            services.retry(actor=self.operator, task_id=task_id)
        except DomainError as refused:
            assert refused.code == "CONFLICT"
            assert not allowed
            return
        assert allowed
        row = Task.objects.get(pk=task_id)
        task.state, task.ready_at, task.attempts, task.attempts_left = "ready", self.now, 0, row.max_attempts

    @invariant()
    def every_task_is_where_the_model_has_it(self) -> None:
        rows = {row.pk: row for row in Task.objects.filter(queue__organization_id=self.operator.organization)}
        assert {i: (row.state, row.attempts) for i, row in rows.items()} == {
            i: (task.state, task.attempts) for i, task in self.known.items()
        }
        held = {
            row.resource_id: row.last_token
            for row in Resource.objects.filter(organization_id=self.operator.organization, lease_id__isnull=False)
        }
        assert held == {f"t_{i.hex}": task.claim.token for i, task in self.known.items() if task.claim}

    @invariant()
    def the_figures_are_those_of_the_model(self) -> None:
        for figures in queries.figures(queues=queries.queues(organization=self.operator.organization)):
            ready = [task for task in self.known.values() if task.state == "ready"]
            assert figures.ready == sum(task.ready_at <= self.now for task in ready)
            assert figures.delayed == sum(task.ready_at > self.now for task in ready)
            assert figures.leased == sum(task.state == "leased" for task in self.known.values())
            assert figures.dead == sum(task.state == "dead" for task in self.known.values())

    def teardown(self) -> None:
        """The journal alone gives the state of every task."""
        assert_the_journal_gives_the_state()


def test_a_queue_is_what_its_model_says(clock: MovableClock) -> None:
    QueueMachine.clock = clock
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        QueueMachine,
        settings=settings(
            max_examples=60 if FULL else 12,
            stateful_step_count=50 if FULL else 30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


pytestmark = pytest.mark.django_db
