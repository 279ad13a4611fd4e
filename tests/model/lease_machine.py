"""The verbs of the lease in any order, against a model: after each step the rows and the journal are as it says."""

from datetime import datetime, timedelta
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leasehub.errors import DomainError, NotFound, Unauthenticated
from leasehub.events import feed, queries
from leasehub.events.models import Event
from leasehub.identity import services as identity
from leasehub.identity.authentication import Caller, authenticate
from leasehub.identity.errors import OutsideFence
from leasehub.identity.models import ApiKey, Principal
from leases import services
from leases.errors import Conflict, LeaseLost, StaleToken
from leases.granting import Grant
from leases.models import Resource
from tests.concurrency.fixtures import sweep
from tests.concurrency.frozen import START, FrozenClock
from tests.model.lease_model import Granted, Held, Model
from tests.replay import assert_the_journal_gives_the_state

KIND = "deploy"
# The database's clock may be set back, but not by a day: pruned rows rely on that.
FURTHEST_BACK = timedelta(hours=12)

resources = st.sampled_from(["checkout", "checkout", "search"])
keys = st.sampled_from(["alice", "alice's second", "alice's fenced", "bob"])
holders = st.sampled_from(["ci-1", "ci-1", "ci-2", "shell"])
# Whose key speaks: mostly the holder's own.
speakers = st.sampled_from(["", "", "", "", *["alice", "alice's second", "alice's fenced", "bob"]])
ttls = st.sampled_from([10, 60, 3600])
any_lease = st.integers(0, 31)


class LeaseMachine(RuleBasedStateMachine):
    """A machine of another primitive adds its rules and what ``check_rows`` compares."""

    clock: ClassVar[FrozenClock]

    def __init__(self) -> None:
        super().__init__()
        sweep()
        self.clock.set(START)
        self.latest = START
        self.model = Model()
        self.checked = 0
        self.cursor = 0
        self.read: list[int] = []
        self.organization = identity.create_organization(name="acme").pk
        self.principals = {
            handle: identity.create_principal(organization=self.organization, handle=handle)
            for handle in ("alice", "bob", "operator")
        }
        self.callers: dict[str, Caller] = {}
        self.revoked: set[str] = set()
        self.make_key("alice", self.principals["alice"])
        self.make_key("alice's second", self.principals["alice"])
        self.make_key("alice's fenced", self.principals["alice"], holder_pattern="^ci-.*$")
        self.make_key("bob", self.principals["bob"])
        self.make_key("operator", self.principals["operator"], rings=(1, 2, 3))

    def make_key(self, name: str, principal: Principal, **rights: Any) -> None:
        _, secret = identity.issue_key(principal=principal, **rights)
        self.callers[name] = authenticate(f"Bearer {secret}")

    @property
    def now(self) -> datetime:
        return self.clock.at

    def which(self, number: int) -> Granted:
        """Mostly one that has not been ended yet."""
        self.somebody_holds()
        current = [lease for lease in self.model.granted if lease.ended_by is None]
        among = self.model.granted if number % 4 == 3 or not current else current
        return among[number // 4 % len(among)]

    def somebody_holds(self) -> None:
        """Runs draw a few of the rules each; those that need a lease do not wait for the one that makes one."""
        if self.model.held:
            return
        turn = len(self.model.granted)
        self.acquire(
            name="bob" if "alice" in self.revoked else "alice",
            resource=("checkout", "search")[turn % 2],
            holder=("shell", "ci-1", "ci-1")[turn % 3],
            ttl=60,
            reacquire=True,
            lifetime=None,
        )

    def key_of(self, lease: Granted) -> str:
        return "bob" if lease.principal == self.principals["bob"].pk else "alice"

    # Time.

    @rule(seconds=st.sampled_from([0.001, 1, 5, 30]))
    def time_passes(self, seconds: float) -> None:
        self.move(self.now + timedelta(seconds=seconds))

    @rule(number=any_lease)
    def time_passes_to_an_expiry(self, number: int) -> None:
        """To the very millisecond."""
        self.move(self.one_held(number).expires_at)

    @rule(number=any_lease, short_of=st.sampled_from([1, 1000]))
    def time_passes_almost_to_an_expiry(self, number: int, short_of: int) -> None:
        self.move(self.one_held(number).expires_at - timedelta(milliseconds=short_of))

    def one_held(self, number: int) -> Held:
        self.somebody_holds()
        leases = list(self.model.held.values())
        return leases[number % len(leases)]

    @rule()
    def days_pass(self) -> None:
        self.move(self.now + timedelta(days=2))

    @rule(seconds=st.sampled_from([0.001, 5, 60, 6 * 3600]))
    def the_clock_is_set_back(self, seconds: float) -> None:
        self.move(self.now - timedelta(seconds=seconds))

    def move(self, at: datetime) -> None:
        self.clock.set(max(at, self.latest - FURTHEST_BACK))
        self.latest = max(self.latest, self.now)

    # Keys.

    @precondition(lambda self: not self.revoked)
    @rule(name=keys)
    def a_key_is_revoked(self, name: str) -> None:
        identity.revoke_key(organization=self.organization, key=ApiKey.objects.get(pk=self.callers[name].key))
        self.revoked.add(name)

    @precondition(lambda self: self.revoked)
    @rule()
    def revoked_keys_are_replaced(self) -> None:
        for name in sorted(self.revoked):
            old = self.callers[name]
            principal = Principal.objects.get(pk=old.principal)
            self.make_key(name, principal, holder_pattern=old.holder_pattern)
        self.revoked.clear()

    # Taking.

    @rule(
        name=keys,
        resource=resources,
        holder=holders,
        ttl=ttls,
        reacquire=st.booleans(),
        lifetime=st.sampled_from([None, 15]),
    )
    def acquire(self, name: str, resource: str, holder: str, ttl: int, reacquire: bool, lifetime: int | None) -> None:
        caller, at = self.callers[name], self.now
        answer = outcome(
            services.acquire,
            caller=caller,
            resource_type=KIND,
            resource_id=resource,
            holder=holder,
            ttl_seconds=ttl,
            reacquire=reacquire,
            max_lifetime_seconds=lifetime,
        )
        held = self.model.held.get(resource)
        of_self = held is not None and (held.principal, held.holder) == (caller.principal, holder)
        if not caller.may_hold_as(holder):
            assert isinstance(answer, OutsideFence), answer
        elif name in self.revoked:
            assert isinstance(answer, Unauthenticated), answer
        elif held is not None and held.lives(at) and not (of_self and reacquire):
            assert isinstance(answer, Conflict), answer
            assert answer.fields["held_by_self"] == of_self
            assert answer.fields["retry_after_ms"] == (held.expires_at - at) // timedelta(milliseconds=1)
        else:
            self.granted(answer, resource, caller, holder, ttl, lifetime, held)

    def granted(
        self, answer: Any, resource: str, caller: Caller, holder: str, ttl: int, lifetime: int | None, held: Held | None
    ) -> None:
        assert isinstance(answer, Grant), answer
        at = self.now
        ends = None if lifetime is None else at + timedelta(seconds=lifetime)
        expiry = at + timedelta(seconds=ttl)
        expiry = expiry if ends is None else min(expiry, ends)
        taken_over = held is not None and not held.lives(at)
        assert answer.fencing_token == self.model.next_token(resource, at)
        assert (answer.at, answer.expires_at, answer.took_over_expired) == (at, expiry, taken_over)
        assert (answer.previous or {}).get("lease_id") == (held and f"lease_{held.lease_id.hex}")
        lease = Held(
            answer.lease_id, answer.fencing_token, caller.principal, holder, at, at, expiry, expiry, ttl * 1000, ends
        )
        event = "lease.taken_over" if taken_over else "lease.acquired"
        self.model.start(resource, lease, event, held and ("taken_over" if taken_over else "reacquired"))

    # Keeping.

    @rule(number=any_lease, name=speakers, wrong=st.sampled_from([0, 0, 0, -1, 1]), ttl=st.none() | ttls)
    def heartbeat(self, number: int, name: str, wrong: int, ttl: int | None) -> None:
        lease = self.which(number)
        name = name or self.key_of(lease)
        caller = self.callers[name]
        token = lease.token + wrong
        answer = outcome(
            services.heartbeat, caller=caller, lease_id=lease.lease_id, fencing_token=token, ttl_seconds=ttl
        )
        self.beaten(answer, lease, token, name, ttl)

    @rule(beats=st.lists(st.tuples(any_lease, st.sampled_from([0, 0, 0, 1])), min_size=1, max_size=5), name=speakers)
    def heartbeats(self, beats: list[tuple[int, int]], name: str) -> None:
        meant = [(self.which(number), wrong) for number, wrong in beats]
        name = name or self.key_of(meant[0][0])
        pairs = [(lease.lease_id, lease.token + wrong) for lease, wrong in meant]
        answers = outcome(services.heartbeats, caller=self.callers[name], pairs=pairs)
        if name in self.revoked:
            assert isinstance(answers, Unauthenticated), answers
            return
        assert len(answers) == len(pairs)
        for answer, (lease, wrong) in zip(answers, meant, strict=True):
            self.beaten(answer, lease, lease.token + wrong, name, None)

    @rule(number=any_lease)
    def a_holder_keeps_its_lease(self, number: int) -> None:
        """By a heartbeat half way to the expiry: the reaper will look when the lease would have run out."""
        held = self.one_held(number)
        if held.lives(self.now):
            self.move(self.now + timedelta(milliseconds=(held.expires_at - self.now) // timedelta(milliseconds=2)))
        lease = next(lease for lease in self.model.granted if lease.lease_id == held.lease_id)
        token = lease.token
        name = self.key_of(lease)
        answer = outcome(services.heartbeat, caller=self.callers[name], lease_id=lease.lease_id, fencing_token=token)
        self.beaten(answer, lease, token, name, None)

    def beaten(self, answer: Any, lease: Granted, token: int, name: str, ttl: int | None) -> None:
        caller, at = self.callers[name], self.now
        held = self.current(lease)
        if name in self.revoked:
            assert isinstance(answer, Unauthenticated), answer
        elif lease.principal != caller.principal or not caller.may_hold_as(lease.holder):
            assert isinstance(answer, NotFound), answer
        elif held is None:
            assert isinstance(answer, LeaseLost), answer
            assert answer.fields["ended_by"] == lease.ended_by
        elif token != lease.token:
            assert isinstance(answer, StaleToken), answer
        elif not held.lives(at):
            assert isinstance(answer, LeaseLost), answer
            assert answer.fields["ended_by"] == ("max_lifetime" if held.lifetime_over else "expired")
        else:
            assert isinstance(answer, Grant), answer
            expiry = self.model.beat(lease.resource, at, None if ttl is None else ttl * 1000)
            assert (answer.fencing_token, answer.at, answer.expires_at) == (token, at, expiry)

    def current(self, lease: Granted) -> Held | None:
        held = self.model.held.get(lease.resource)
        return held if held is not None and held.lease_id == lease.lease_id else None

    # Ending.

    @rule(number=any_lease, name=speakers, wrong=st.sampled_from([None, 0, -1]))
    def release(self, number: int, name: str, wrong: int | None) -> None:
        lease, at = self.which(number), self.now
        name = name or self.key_of(lease)
        caller = self.callers[name]
        token = None if wrong is None else lease.token + wrong
        answer = outcome(services.release, caller=caller, lease_id=lease.lease_id, fencing_token=token)
        held = self.current(lease)
        if name in self.revoked:
            assert isinstance(answer, Unauthenticated), answer
        elif held is None or lease.principal != caller.principal or not caller.may_hold_as(lease.holder):
            assert isinstance(answer, NotFound), answer
        elif wrong:
            assert isinstance(answer, StaleToken), answer
        else:
            assert answer == services.Ended(lease.lease_id, at, not held.lives(at))
            self.model.end(lease.resource, "lease.released", at)

    @rule(number=any_lease, wrong=st.sampled_from([0, 0, 1]))
    def force_release(self, number: int, wrong: int) -> None:
        lease, at = self.which(number), self.now
        answer = outcome(
            services.force_release,
            actor=services.Actor.of(self.callers["operator"]),
            lease_id=lease.lease_id,
            fencing_token=lease.token + wrong,
            reason="stuck",
        )
        held = self.current(lease)
        if held is None:
            assert isinstance(answer, NotFound), answer
        elif wrong:
            assert isinstance(answer, StaleToken), answer
        else:
            assert answer == services.Ended(lease.lease_id, at, not held.lives(at))
            self.model.end(lease.resource, "lease.force_released", at)

    @rule(resource=resources)
    def reap(self, resource: str) -> None:
        actor = services.Actor.of(self.callers["operator"])
        answer = outcome(services.reap, actor=actor, resource_type=KIND, resource_id=resource)
        held = self.model.held.get(resource)
        if held is None:
            assert isinstance(answer, NotFound), answer
        elif held.lives(self.now):
            assert isinstance(answer, Conflict), answer
        else:
            assert not isinstance(answer, DomainError), answer
            self.model.end(resource, "lease.reaped", self.now)

    @rule(number=st.none() | any_lease, kept=st.booleans(), times=st.sampled_from([1, 2]))
    def the_reaper_comes(self, number: int | None, kept: bool, times: int) -> None:
        """At any time, or when it meant to look at some lease, which may have been kept meanwhile."""
        if number is not None:
            if kept:
                self.a_holder_keeps_its_lease(number)
            self.move(self.one_held(number).check_at)
        at = self.now
        due = [resource for resource, lease in self.model.held.items() if lease.check_at <= at]
        dead = sorted((resource for resource in due if not self.model.held[resource].lives(at)), key=self.reaping_order)
        assert services.reap_due() == len(dead)
        for resource in dead:
            self.model.end(resource, "lease.reaped", at)
        for resource in set(due) - set(dead):
            self.model.held[resource].check_at = self.model.held[resource].expires_at
        for _ in range(times - 1):
            assert services.reap_due() == 0

    def row_order(self, resource: str) -> int:
        return Resource.objects.get(organization=self.organization, resource_id=resource).pk

    def reaping_order(self, resource: str) -> tuple[int, ...]:
        return (self.row_order(resource),)

    @rule(name=speakers, number=st.none() | any_lease)
    def reconcile(self, name: str, number: int | None) -> None:
        if number is not None:
            self.move(self.one_held(number).expires_at)
        name = name or "alice's fenced"
        caller, at = self.callers[name], self.now
        inside = {name for name, lease in self.model.held.items() if caller.may_hold_as(lease.holder)}
        foreign = set(self.model.held) - inside
        dead = sorted(inside.intersection(self.model.dead(at)), key=self.row_order)
        report = services.reconcile(caller=caller)
        assert {row.resource_id for row in report.foreign} == foreign
        assert {row.resource_id for row in report.held} == inside - set(dead)
        assert {row.resource_id for row in report.reaped} == set(dead)
        for resource in dead:
            self.model.end(resource, "lease.reaped", at)

    @rule()
    def free_rows_are_pruned(self) -> None:
        behind = self.model.events and self.model.events[-1][5] > self.now + timedelta(seconds=1)
        oldest = self.model.next_token("", self.now - timedelta(days=1))
        old = [
            resource
            for resource, token in self.model.last_token.items()
            if resource not in self.model.held and token < oldest
        ]
        assert services.prune() == (0 if behind else len(old))
        for resource in [] if behind else old:
            del self.model.last_token[resource]

    # The feed.

    @rule()
    def the_feed_is_stamped(self) -> None:
        feed.stamp_all()

    @rule(limit=st.sampled_from([1, 3, 50]))
    def a_reader_follows(self, limit: int) -> None:
        view = queries.View.of(self.callers["operator"])
        reading = queries.read(view=view, after=self.cursor, limit=limit)
        positions = [event.position for event in reading.events]
        assert positions == list(range(self.cursor + 1, self.cursor + 1 + len(positions)))
        assert len(positions) == limit or not reading.more
        self.cursor = reading.cursor
        self.read += [event.pk for event in reading.events]

    # What holds after every step.

    @invariant()
    def the_rows_are_as_the_model_says(self) -> None:
        rows = {row.resource_id: row for row in Resource.objects.filter(organization=self.organization)}
        assert {name: row.last_token for name, row in rows.items()} == self.model.last_token
        found = {
            name: Held(
                row.lease_id,
                row.last_token,
                row.principal_id or 0,
                row.holder or "",
                row.acquired_at,
                row.heartbeat_at,
                row.expires_at,
                row.check_at,
                row.ttl_ms or 0,
                row.lifetime_ends_at,
            )
            for name, row in rows.items()
            if row.lease_id and row.acquired_at and row.heartbeat_at and row.expires_at and row.check_at
        }
        assert found == self.model.held

    @invariant()
    def every_transition_has_its_event(self) -> None:
        new = Event.objects.filter(organization=self.organization).order_by("pk")[self.checked :]
        found = [
            (
                event.type,
                event.resource_id,
                event.lease_id,
                event.previous_lease_id,
                event.fencing_token,
                event.at,
            )
            for event in new
        ]
        assert found == self.model.events[self.checked :]
        self.checked = len(self.model.events)

    def teardown(self) -> None:
        assert_the_journal_gives_the_state()
        before = -1
        while len(self.read) > before:
            before = len(self.read)
            self.a_reader_follows(limit=50)
        assert self.read == list(Event.objects.order_by("pk").values_list("pk", flat=True))


def outcome(verb: Any, **members: Any) -> Any:
    """What a verb answers, or how it refuses."""
    try:
        return verb(**members)
    except DomainError as refusal:
        return refusal
