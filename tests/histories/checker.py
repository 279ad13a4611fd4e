"""Judges what client processes recorded: whether leases were exclusive, tokens grew, and nobody was wronged.

Times are seconds of one monotonic clock that all clients share; every operation has the moment before it was sent and
the moment after its answer. What happened inside the server happened between the two. The fencing tokens give the order
of the grants. An operation without an answer may have happened or not, at any time until GRACE: it only widens what is
possible, and accuses nobody.

Standard library only.
"""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# An unanswered request has been carried out or given up by then: the statement timeout, and to spare.
GRACE = 15.0
# The database's clock has milliseconds; an expiry is cut to them.
RESOLUTION = 0.002
FOREVER = float("inf")

ACQUIRE, BEAT, RELEASE = "acquire", "heartbeat", "release"


@dataclass(frozen=True)
class Operation:
    client: str
    verb: str
    resource: str
    sent: float
    #: None: no answer came.
    answered: float | None
    #: None: no answer came.
    ok: bool | None
    holder: str = ""
    #: Of the lease that is meant, or that was granted.
    token: int | None = None
    ttl: float = 0.0
    was_expired: bool = False
    code: str = ""

    @property
    def until(self) -> float:
        """By then it has happened, if it ever does."""
        return self.sent + GRACE if self.answered is None else self.answered


@dataclass(frozen=True)
class Violation:
    rule: str
    resource: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule} on {self.resource}: {self.text}"


@dataclass
class Lease:
    """What is known of one grant."""

    grant: Operation
    beats: list[Operation] = field(default_factory=list)
    releases: list[Operation] = field(default_factory=list)
    #: Acquires by the same holder that may have ended it.
    successors: list[Operation] = field(default_factory=list)

    @property
    def token(self) -> int:
        assert self.grant.token is not None
        return self.grant.token

    def surely_held(self) -> Iterator[tuple[float, float]]:
        """Spans in which it was certainly this holder's, whatever happened inside the server."""
        ends = [operation for operation in (*self.releases, *self.successors) if operation.ok is not False]
        beats = [beat for beat in self.beats if beat.ok is not False]
        for sign in [self.grant, *(beat for beat in beats if beat.ok)]:
            if any(end.ok is None and end.sent <= sign.sent for end in ends):
                # Still under way, it may end the lease at any time.
                continue
            until = sign.sent + sign.ttl
            for beat in beats:
                if beat.sent > sign.sent or beat.ok is None:
                    until = min(until, max(beat.sent, sign.sent) + beat.ttl)
            until = min([until - RESOLUTION, *(end.sent for end in ends if end.sent > sign.sent)])
            assert sign.answered is not None
            if until > sign.answered:
                yield sign.answered, until

    def possibly_held_until(self) -> float:
        """After this it was certainly not this holder's any more."""
        signs = [self.grant, *(beat for beat in self.beats if beat.ok is not False)]
        expiry = max(sign.until + sign.ttl + RESOLUTION for sign in signs)
        ended = [release.until for release in self.releases if release.ok]
        ended += [successor.until for successor in self.successors if successor.ok]
        return min([expiry, *ended])

    def expired_before(self, moment: float) -> bool:
        """Whether it had certainly run out, by the signs of life sent before."""
        signs = [self.grant, *(beat for beat in self.beats if beat.ok is not False and beat.sent < moment)]
        return max(sign.until + sign.ttl + RESOLUTION for sign in signs) < moment


def check(operations: Iterable[Operation]) -> list[Violation]:
    """Everything that cannot have happened on a correct server; nothing that could."""
    by_resource: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_resource[operation.resource].append(operation)
    return [violation for resource in sorted(by_resource) for violation in _check(resource, by_resource[resource])]


def _check(resource: str, operations: list[Operation]) -> Iterator[Violation]:
    operations = sorted(operations, key=lambda operation: operation.sent)
    leases, duplicates = _leases(operations)
    for operation in duplicates:
        yield Violation("token given twice", resource, f"{operation.token} to {operation.client}")
    spans = Spans(leases.values())
    yield from _tokens_follow_time(resource, leases)
    yield from _one_holder(resource, leases, spans)
    yield from _accepted(resource, operations, leases)
    yield from _refused(resource, operations, leases, spans)
    yield from _ghosts(resource, operations, leases)


def _leases(operations: list[Operation]) -> tuple[dict[int, Lease], list[Operation]]:
    leases: dict[int, Lease] = {}
    duplicates = []
    for operation in operations:
        if operation.verb == ACQUIRE and operation.ok and operation.token is not None:
            if operation.token in leases:
                duplicates.append(operation)
            else:
                leases[operation.token] = Lease(operation)
    by_holder: dict[str, list[Lease]] = defaultdict(list)
    for lease in leases.values():
        by_holder[lease.grant.holder].append(lease)
    for operation in operations:
        lease_meant = leases.get(operation.token) if operation.token is not None else None
        if operation.verb == BEAT and lease_meant is not None:
            lease_meant.beats.append(operation)
        elif operation.verb == RELEASE and lease_meant is not None:
            lease_meant.releases.append(operation)
        elif operation.verb == ACQUIRE and operation.ok is not False:
            for lease in by_holder[operation.holder]:
                if operation.sent >= (lease.grant.answered or FOREVER):
                    lease.successors.append(operation)
    return leases, duplicates


def _tokens_follow_time(resource: str, leases: dict[int, Lease]) -> Iterator[Violation]:
    """A grant that was answered before another was asked for has the lower token."""
    grants = [lease.grant for lease in leases.values()]
    answered = sorted(grants, key=lambda grant: grant.answered or FOREVER)
    times = [grant.answered or FOREVER for grant in answered]
    highest: list[Operation] = []
    for grant in answered:
        highest.append(grant if not highest or _token(grant) > _token(highest[-1]) else highest[-1])
    for grant in grants:
        earlier = bisect_right(times, grant.sent)
        if earlier and _token(highest[earlier - 1]) > _token(grant):
            yield Violation(
                "token went back", resource, f"{grant.token} was granted after {highest[earlier - 1].token}"
            )


def _one_holder(resource: str, leases: dict[int, Lease], spans: "Spans") -> Iterator[Violation]:
    """No grant lies wholly inside a span in which somebody else surely held; no two such spans overlap."""
    for lease in leases.values():
        grant = lease.grant
        assert grant.answered is not None
        for token in spans.covering(grant.sent, grant.answered):
            if token != lease.token:
                yield Violation("two holders", resource, f"{grant.token} was granted while {token} was held")
    latest, holder = 0.0, 0
    for start, end, token in spans.sorted:
        if token != holder and start < latest:
            yield Violation("two holders", resource, f"{holder} and {token} were held at once")
        if end > latest:
            latest, holder = end, token


class Spans:
    """The spans in which somebody surely held, in order of their starts."""

    def __init__(self, leases: Iterable[Lease]) -> None:
        self.sorted = sorted((start, end, lease.token) for lease in leases for start, end in lease.surely_held())
        self.longest = max((end - start for start, end, _ in self.sorted), default=0.0)

    def covering(self, start: float, end: float) -> Iterator[int]:
        """Whose spans contain the whole of start..end."""
        for position in range(bisect_right(self.sorted, (start, FOREVER, 0)) - 1, -1, -1):
            span_start, span_end, token = self.sorted[position]
            if start - span_start > self.longest:
                return
            if span_start < start and end < span_end:
                yield token


def _accepted(resource: str, operations: list[Operation], leases: dict[int, Lease]) -> Iterator[Violation]:
    """Nobody's heartbeat or release was accepted after the lease had surely gone."""
    grants = sorted((lease.grant.answered or FOREVER, lease.token) for lease in leases.values())
    times = [answered for answered, _ in grants]
    highest: list[int] = []
    for _, token in grants:
        highest.append(max(token, highest[-1]) if highest else token)
    for operation in operations:
        if operation.verb not in (BEAT, RELEASE) or not operation.ok or operation.token is None:
            continue
        before = bisect_right(times, operation.sent)
        if before and highest[before - 1] > operation.token:
            yield Violation(
                "stale token accepted",
                resource,
                f"{operation.verb} of {operation.token} after {highest[before - 1]} was granted",
            )
        lease = leases.get(operation.token)
        if lease is None:
            continue
        if lease.expired_before(operation.sent) and not (operation.verb == RELEASE and operation.was_expired):
            yield Violation("revived", resource, f"{operation.verb} of {operation.token} after its expiry")
        if any(release.ok and release.until < operation.sent for release in lease.releases):
            yield Violation("revived", resource, f"{operation.verb} of {operation.token} after its release")


def _refused(
    resource: str, operations: list[Operation], leases: dict[int, Lease], spans: "Spans"
) -> Iterator[Violation]:
    """Nobody was refused a heartbeat or a release of what they surely held."""
    for operation in operations:
        if operation.verb not in (BEAT, RELEASE) or operation.ok is not False or operation.answered is None:
            continue
        if operation.token in leases and operation.token in spans.covering(operation.sent, operation.answered):
            yield Violation(
                "theft", resource, f"{operation.verb} of {operation.token} was refused ({operation.code}) while held"
            )


def _ghosts(resource: str, operations: list[Operation], leases: dict[int, Lease]) -> Iterator[Violation]:
    """Nobody was told that it is taken when it surely was not."""
    possible = [(lease.grant.sent, lease.possibly_held_until()) for lease in leases.values()]
    possible += [
        (operation.sent, operation.until + operation.ttl)
        for operation in operations
        if operation.verb == ACQUIRE and operation.ok is None
    ]
    merged = _merged(possible)
    starts = [start for start, _ in merged]
    for operation in operations:
        if operation.verb != ACQUIRE or operation.ok is not False or operation.answered is None:
            continue
        before = bisect_right(starts, operation.answered)
        if not before or merged[before - 1][1] < operation.sent:
            yield Violation("ghost", resource, f"{operation.client} was refused at {operation.sent:.3f}: nobody held")


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _token(operation: Operation) -> int:
    assert operation.token is not None
    return operation.token


def read(files: Iterable[Path]) -> list[Operation]:
    """The operations of recorded files: a line when it is sent, and one when the answer came.

    A last line that a killed client did not finish is left out.
    """
    operations = []
    for file in files:
        sent: dict[int, dict[str, Any]] = {}
        answers: dict[int, dict[str, Any]] = {}
        for line in file.read_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            (answers if "answered" in record else sent)[record["number"]] = record
        operations += [_operation(file.stem, record, answers.get(number)) for number, record in sent.items()]
    return operations


def _operation(client: str, sent: dict[str, Any], answer: dict[str, Any] | None) -> Operation:
    answer = answer or {}
    return Operation(
        client=client,
        verb=sent["verb"],
        resource=sent["resource"],
        sent=sent["sent"],
        answered=answer.get("answered"),
        ok=answer.get("ok"),
        holder=sent["holder"],
        token=answer.get("token", sent.get("token")),
        ttl=sent.get("ttl", 0.0),
        was_expired=answer.get("was_expired", False),
        code=answer.get("code", ""),
    )
