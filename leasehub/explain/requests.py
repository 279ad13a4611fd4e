"""Why a request to a pool waits, or how it ended."""

from typing import Any

from leasehub.db import clock
from leasehub.errors import NotFound
from leasehub.explain.resources import ENDINGS, Explanation, span
from leasehub.identity.authentication import Caller
from pools import labels, promotion, queries
from pools.models import CommandRun, Request, Slot, public_request_id

State = Request.State
MOST_AHEAD = 10

DROPPED = {
    "silent": "its waiter gave no sign of life for longer than the pool waits",
    "unclaimed": "what it was granted was not fetched in time",
    "unsatisfiable": "the pool has shrunk below what it asked for",
    "operator": "an operator dropped it",
}


def explain(*, caller: Caller, request_id: str) -> Explanation:
    """RING-1 sees the organization's requests, other keys their principal's own. Raises NotFound."""
    row = _request(caller, request_id)
    facts: dict[str, Any] = {
        "request_id": public_request_id(row.request_id),
        "pool": row.pool.name,
        "state": row.state,
        "principal": row.principal.handle,
        "holder": row.holder,
        "count": row.count,
        "selector": row.selector,
        "created_at": clock.iso(row.created_at),
        "ended_at": None if row.ended_at is None else clock.iso(row.ended_at),
        "position": None,
        "eta_ms": None,
        "slots": None,
        "ahead": [],
        "error": row.error or None,
    }
    answer = Explanation(row.reason if row.state == State.DROPPED else row.state, facts)
    if row.state == State.QUEUED:
        _say_why_it_waits(answer, caller, row)
    elif row.state == State.PROVISIONING:
        _say_what_runs(answer, row)
    else:
        _say_how_it_went(answer, row)
    return answer


def _request(caller: Caller, request_id: str) -> Request:
    found = Request.objects.filter(
        pool__organization_id=caller.organization, request_id=queries.parse_id(request_id, "req_")
    )
    if not caller.observes:
        found = found.filter(principal=caller.principal)
    row = found.select_related("pool", "principal").first()
    if row is None:
        raise NotFound
    return row


def _say_why_it_waits(answer: Explanation, caller: Caller, row: Request) -> None:
    pool, at = row.pool, clock.now()
    position = queries.position(request=row)
    estimate = queries.estimate(pool=pool, position=position, at=at)
    counts = queries.counts(pools=[pool])[pool.pk]
    matching = labels.matching(Slot.objects.filter(pool=pool, is_declared=True), row.selector).count()
    free = labels.matching(promotion.grantable(pool), row.selector).count()
    answer.facts.update(
        position=position,
        eta_ms=estimate.eta_ms,
        slots={**counts, "matching": matching, "matching_free": free},
        ahead=_ahead(caller, row),
    )
    answer.sentences.append(
        f"It waits in {pool.name}: place {position} of {counts['waiting']}, for about {span(estimate.eta_ms)} by the"
        " time that the last leases took."
    )
    answer.sentences.append(
        f"Of {counts['slots_total']} slots {counts['slots_held']} are held, {counts['slots_free']} free and"
        f" {counts['slots_out']} out of use."
    )
    if row.selector:
        answer.sentences.append(f"{matching} of them are what it asks for, {free} of these are free.")
    if row.count > free:
        answer.sentences.append(f"It asks for {row.count} at once and is given them together.")
    elif position > 1:
        answer.sentences.append("What is free is kept for those before it: the queue is served in order.")
    if queries.served(pool) is False:
        answer.sentences.append(f"No worker serves {pool.worker}, so no slot can be prepared: tell the operator.")
    answer.advice = "Go on waiting with pool_wait or the request's address: a waiter that stays silent is dropped."


def _ahead(caller: Caller, row: Request) -> list[dict[str, Any]]:
    """Who is before it; to those who observe."""
    if not caller.observes:
        return []
    before = Request.objects.filter(pool=row.pool, state=State.QUEUED, ticket__lt=row.ticket).select_related(
        "principal"
    )
    return [
        {"principal": other.principal.handle, "holder": other.holder, "count": other.count}
        for other in before.order_by("ticket")[:MOST_AHEAD]
    ]


def _say_what_runs(answer: Explanation, row: Request) -> None:
    runs = CommandRun.objects.filter(slot__request=row).exclude(state=CommandRun.State.ENDED).select_related("slot")
    answer.sentences.append(f"Its slots in {row.pool.name} are leased for it and are being prepared.")
    for run in runs.order_by("pk")[:MOST_AHEAD]:
        slot = "" if run.slot is None else f" on slot {run.slot.slot_id}"
        since = f"since {clock.iso(run.started_at)}" if run.started_at else "as soon as a worker takes it"
        actions = ", ".join(str(step["action"]) for step in run.steps)
        answer.sentences.append(f"The commands ({actions}) run{slot} {since}.")
    if queries.served(row.pool) is False:
        answer.sentences.append(f"No worker serves {row.pool.worker}: tell the operator.")
    answer.advice = "Go on waiting: it is granted once they have passed."


def _say_how_it_went(answer: Explanation, row: Request) -> None:
    at = "" if row.ended_at is None else f" at {clock.iso(row.ended_at)}"
    name = f"The request to {row.pool.name}"
    if row.state == State.READY:
        ready = "" if row.ready_at is None else f" at {clock.iso(row.ready_at)}"
        answer.sentences.append(f"{name} was granted{ready}.")
        answer.advice = "Fetch what was granted." if row.fetched_at is None else "Release it when you are done."
        return
    answer.sentences.append(
        {
            State.DROPPED: f"{name} was dropped{at}: {DROPPED.get(row.reason, row.reason)}.",
            State.CANCELLED: f"{name} was cancelled{at} by its principal.",
            State.LEASE_LOST: f"{name} has nothing left{at}: {ENDINGS.get(row.reason, row.reason)}.",
            State.LEASE_LOST_DURING_RESET: f"{name} lost its lease{at} while its slot was being prepared.",
            State.RESET_FAILED: f"{name} failed{at}: a slot could not be prepared ({row.error}).",
            State.HEALTH_FAILED: f"{name} failed{at}: a slot was not healthy ({row.error}).",
        }[State(row.state)]
    )
    answer.advice = "Ask anew if you still need a slot."
