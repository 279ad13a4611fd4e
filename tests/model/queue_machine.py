"""The machine of the lease with the verbs of a queue: a claim is a lease like any other, and its task goes with it."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from leasehub.errors import DomainError, NotFound, Unauthenticated
from leasehub.events.models import Event
from leasehub.identity.authentication import Caller
from leasehub.identity.errors import OutsideFence
from leases.errors import LeaseLost, StaleToken
from leases.granting import Grant
from leases.queues import services as queues
from leases.queues.engines import NewTask
from leases.queues.errors import TaskIsNotDead
from leases.queues.models import Task
from leases.services import Actor, Ended
from tests.model.lease_machine import LeaseMachine, any_lease, holders, keys, outcome, speakers, ttls
from tests.model.lease_model import Granted, Held, Model

QUEUE = "build"
PAUSE_SECONDS = 30
# A look at a queue ends twenty claims at most.
MOST_TASKS = 12


@dataclass
class Job:
    """A task, as far as its claims go."""

    priority: int
    #: The place in which it was put.
    order: int
    max_attempts: int
    ready_at: datetime | None
    state: str = "ready"
    attempts: int = 0

    @property
    def is_used_up(self) -> bool:
        return self.attempts >= self.max_attempts


@dataclass
class QueueModel(Model):
    jobs: dict[str, Job] = field(default_factory=dict)

    def end(self, resource: str, event: str, at: datetime) -> None:
        """Whatever ends a claim without a result: its task is ready again, or dead."""
        job = self.jobs.get(resource)
        if job is None:
            return super().end(resource, event, at)
        told = "task.returned" if event == "lease.released" else event
        self.leave(resource, "task.dead" if job.is_used_up else told, event.removeprefix("lease."), at)
        job.state = "dead" if job.is_used_up else "ready"
        return None

    def leave(self, resource: str, event: str, ended_by: str, at: datetime) -> None:
        lease = self.held.pop(resource)
        self._mark(lease.lease_id, ended_by)
        self.events.append((event, resource, lease.lease_id, None, lease.token, at))

    def note(self, event: str, resource: str, at: datetime) -> None:
        """What happens to a task that nobody has claimed."""
        self.events.append((event, resource, None, None, None, at))


class QueueMachine(LeaseMachine):
    model: QueueModel

    def __init__(self) -> None:
        super().__init__()
        queues._looked.clear()
        self.model = QueueModel()

    def move(self, at: datetime) -> None:
        if at < self.now:
            # A look is good for a second of real time, whatever the clock of the database does meanwhile.
            queues._looked.clear()
        super().move(at)

    def reaping_order(self, resource: str) -> tuple[int, ...]:
        """Claims come first."""
        return (resource not in self.model.jobs, *super().reaping_order(resource))

    def which_claim(self, number: int) -> Granted | None:
        claims = [lease for lease in self.model.granted if lease.resource in self.model.jobs]
        return claims[-1 - number % min(len(claims), 8)] if claims else None

    @rule(
        name=keys,
        many=st.lists(
            st.tuples(st.sampled_from([-1, 0, 0, 7]), st.sampled_from([0, 0, PAUSE_SECONDS]), st.integers(1, 3)),
            min_size=1,
            max_size=3,
        ),
    )
    def put(self, name: str, many: list[tuple[int, int, int]]) -> None:
        if len(self.model.jobs) >= MOST_TASKS:
            return
        tasks = [NewTask(None, priority, delay, attempts, None) for priority, delay, attempts in many]
        answers = outcome(queues.put, caller=self.callers[name], queue=QUEUE, tasks=tasks)
        if name in self.revoked:
            assert isinstance(answers, Unauthenticated), answers
            return
        for (priority, delay, attempts), answer in zip(many, answers, strict=True):
            resource, ready_at = f"t_{answer.task.hex}", self.now + timedelta(seconds=delay) if delay else None
            self.model.jobs[resource] = Job(priority, len(self.model.jobs), attempts, ready_at)
            self.model.note("task.queued", resource, self.now)

    @rule(name=keys, holder=holders, ttl=ttls, count=st.sampled_from([1, 1, 2]))
    def claim(self, name: str, holder: str, ttl: int, count: int) -> None:
        caller, at = self.callers[name], self.now
        answers = outcome(queues.claim, caller=caller, queue=QUEUE, ttl_seconds=ttl, holder=holder, count=count)
        if not caller.may_hold_as(holder):
            assert isinstance(answers, OutsideFence), answers
            return
        if name in self.revoked:
            assert isinstance(answers, Unauthenticated), answers
            return
        self.the_queue_is_looked_at(at)
        ready = [task for task, job in self.model.jobs.items() if job.state == "ready" and job.ready_at is None]
        ready.sort(key=lambda task: (-self.model.jobs[task].priority, self.model.jobs[task].order))
        assert [f"t_{answer.task.hex}" for answer in answers] == ready[:count]
        for answer in in_the_order_of_their_events(answers):
            self.claimed(answer, caller, holder, at, ttl)

    def the_queue_is_looked_at(self, at: datetime) -> None:
        due = [name for name in self.model.jobs if name in self.model.held and self.model.held[name].check_at <= at]
        dead = [name for name in due if not self.model.held[name].lives(at)]
        for name in sorted(dead, key=self.row_order):
            self.model.end(name, "lease.reaped", at)
        for name in set(due) - set(dead):
            self.model.held[name].check_at = self.model.held[name].expires_at
        for job in self.model.jobs.values():
            if job.ready_at is not None and job.ready_at <= at:
                # It stays claimable though the clock is set back.
                job.ready_at = None

    def claimed(self, answer: Any, caller: Caller, holder: str, at: datetime, ttl: int) -> None:
        resource = f"t_{answer.task.hex}"
        job, expiry = self.model.jobs[resource], at + timedelta(seconds=ttl)
        job.state, job.ready_at, job.attempts = "leased", None, job.attempts + 1
        assert (answer.attempt, answer.expires_at, answer.at) == (job.attempts, expiry, at)
        assert answer.fencing_token == self.model.next_token(resource, at)
        lease = Held(
            answer.lease_id,
            answer.fencing_token,
            caller.principal,
            holder,
            at,
            at,
            expiry,
            expiry,
            ttl * 1000,
            None,
        )
        self.model.start(resource, lease, "task.claimed", None)

    @rule(
        number=any_lease,
        name=speakers,
        wrong=st.sampled_from([0, 0, 0, 1]),
        verb=st.sampled_from(["heartbeat", "complete", "complete", "fail", "fail for good"]),
    )
    def step(self, number: int, name: str, wrong: int, verb: str) -> None:
        """Of a claim of any age, named by its task and its token."""
        claim = self.which_claim(number)
        if claim is None:
            return
        name, token = name or self.key_of(claim), claim.token + wrong
        named = {"caller": self.callers[name], "task_id": uuid.UUID(hex=claim.resource[2:]), "fencing_token": token}
        if verb == "heartbeat":
            answer = outcome(queues.heartbeat, **named)
        elif verb == "complete":
            answer = outcome(queues.complete, **named)
        else:
            final = verb == "fail for good"
            answer = outcome(queues.fail, **named, error="no", retry_in_seconds=PAUSE_SECONDS, final=final)
        if (refusal := self.refusal(claim.resource, token, name)) is not None:
            assert isinstance(answer, type(refusal)), answer
            assert answer.fields == refusal.fields
        elif verb == "heartbeat":
            assert isinstance(answer, Grant), answer
            assert answer.expires_at == self.model.beat(claim.resource, self.now, None)
        else:
            self.stepped(answer, claim.resource, verb)

    def refusal(self, resource: str, token: int, name: str) -> DomainError | None:
        """How a step with this token is refused; None: it is done."""
        caller, held = self.callers[name], self.model.held.get(resource)
        if name in self.revoked:
            return Unauthenticated()
        if held is not None and not caller.may_hold_as(held.holder):
            return NotFound()
        mine = held is not None and held.principal == caller.principal
        if held is not None and mine and held.token == token:
            return None if held.lives(self.now) else LeaseLost(ended_by="expired", ended_at=held.expires_at)
        for lease in self.model.granted:
            if (lease.resource, lease.token, lease.principal) == (resource, token, caller.principal) and lease.ended_by:
                return LeaseLost(ended_by=lease.ended_by, ended_at=self.ended_at(lease))
        return StaleToken() if mine else NotFound()

    def ended_at(self, lease: Granted) -> datetime:
        at: datetime = next(event[5] for event in reversed(self.model.events) if event[2] == lease.lease_id)
        return at

    def stepped(self, answer: Any, resource: str, verb: str) -> None:
        assert not isinstance(answer, DomainError), answer
        job = self.model.jobs[resource]
        if verb == "complete":
            self.model.leave(resource, "task.completed", "completed", self.now)
            job.state = "done"
        elif verb == "fail for good" or job.is_used_up:
            self.model.leave(resource, "task.dead", "failed", self.now)
            job.state = "dead"
        else:
            self.model.leave(resource, "task.failed", "failed", self.now)
            job.state, job.ready_at = "ready", self.now + timedelta(seconds=PAUSE_SECONDS)
        assert answer.state == job.state

    @rule(number=any_lease, name=speakers, wrong=st.sampled_from([0, 0, 1]))
    def give_back(self, number: int, name: str, wrong: int) -> None:
        claim = self.which_claim(number)
        if claim is None:
            return
        name = name or self.key_of(claim)
        caller, token, held = self.callers[name], claim.token + wrong, self.model.held.get(claim.resource)
        task = uuid.UUID(hex=claim.resource[2:])
        answer = outcome(queues.give_back, caller=caller, task_id=task, fencing_token=token)
        if name in self.revoked:
            assert isinstance(answer, Unauthenticated), answer
        elif (
            held is not None
            and not caller.may_hold_as(held.holder)
            or held is None
            or held.principal != caller.principal
        ):
            assert isinstance(answer, NotFound), answer
        elif held.token != token:
            assert isinstance(answer, StaleToken), answer
        else:
            assert answer == Ended(held.lease_id, self.now, not held.lives(self.now))
            self.model.end(claim.resource, "lease.released", self.now)

    @rule(number=any_lease)
    def retry(self, number: int) -> None:
        if not self.model.jobs:
            return
        resource = list(self.model.jobs)[number % len(self.model.jobs)]
        job = self.model.jobs[resource]
        actor = Actor.of(self.callers["operator"])
        answer = outcome(queues.retry, actor=actor, task_id=uuid.UUID(hex=resource[2:]))
        if job.state != "dead":
            assert isinstance(answer, TaskIsNotDead), answer
            return
        job.state, job.attempts, job.ready_at = "ready", 0, None
        self.model.note("task.queued", resource, self.now)

    @invariant()
    def every_task_is_where_the_model_has_it(self) -> None:
        found = {row.task_id: (row.state, row.attempts) for row in Task.objects.all()}
        assert found == {name: (job.state, job.attempts) for name, job in self.model.jobs.items()}


def in_the_order_of_their_events(claims: Iterable[Any]) -> list[Any]:
    by_lease = {claim.lease_id: claim for claim in claims}
    events = Event.objects.filter(type="task.claimed", lease_id__in=by_lease).order_by("pk")
    return [by_lease[lease_id] for lease_id in events.values_list("lease_id", flat=True)]
