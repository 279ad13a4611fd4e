"""Reads of webhook endpoints and deliveries, through the caller's eyes; and what an endpoint is still to be sent."""

import uuid
from datetime import datetime

from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery

from leasehub.db import clock
from leasehub.errors import NotFound
from leasehub.events.models import Event, Feed
from leasehub.events.queries import View
from leasehub.events.webhooks.models import WebhookDelivery, WebhookEndpoint
from leasehub.identity.models import ApiKey

State = WebhookEndpoint.State
#: How many positions are looked at for the next event of an endpoint's types.
WINDOW = 50_000
#: The backlog of an endpoint is counted no further, and of no more endpoints.
MOST_COUNTED = 1000
MOST_WAITING = 100


def endpoints(*, organization: int) -> QuerySet[WebhookEndpoint]:
    return WebhookEndpoint.objects.filter(organization_id=organization, deleted_at=None).select_related("principal")


def endpoint(*, organization: int, webhook_id: str) -> WebhookEndpoint:
    """Raises NotFound, the same for one of another organization and for none."""
    found = endpoints(organization=organization).filter(public_id=_public_id("whk", webhook_id)).first()
    if found is None:
        raise NotFound
    return found


def deliveries(*, endpoint: WebhookEndpoint) -> QuerySet[WebhookDelivery]:
    return WebhookDelivery.objects.filter(endpoint=endpoint)


def delivery(*, endpoint: WebhookEndpoint, delivery_id: str) -> WebhookDelivery:
    """Raises NotFound."""
    found = deliveries(endpoint=endpoint).filter(public_id=_public_id("dlv", delivery_id)).first()
    if found is None:
        raise NotFound
    return found


def _public_id(wanted: str, given: str) -> uuid.UUID:
    prefix, _, digits = given.partition("_")
    if prefix != wanted or len(digits) != 32:
        raise NotFound
    try:
        return uuid.UUID(hex=digits)
    except ValueError:
        raise NotFound from None


def concerning(endpoint: WebhookEndpoint) -> QuerySet[Event]:
    """The numbered events that it is to be told of, in no order: those of its types that RING-1 is shown."""
    events = View(endpoint.organization_id, only_of=None, types=tuple(endpoint.types)).events()
    return events.filter(position__isnull=False).select_related("actor", "principal", "addressee", "key")


def orphaned(endpoint: WebhookEndpoint, at: datetime) -> str:
    """Why it may be told of nothing more: its principal is retired, or its key and all that replaced it have ended."""
    if endpoint.principal.retired_at is not None:
        return f"{endpoint.principal.handle}, who made it, is retired"
    working = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=at))
    found = [endpoint.key_id]
    # A rotated key hands on what was made with it.
    while found:
        if ApiKey.objects.filter(working, pk__in=found).exists():
            return ""
        found = list(ApiKey.objects.filter(rotated_from__in=found).values_list("pk", flat=True))
    return "the key that made it was revoked or has expired"


def last_position(organization: int) -> int:
    return Feed.objects.filter(pk=organization).values_list("last_position", flat=True).first() or 0


def moved_out_through(organization: int) -> int:
    """The highest position whose event retention has moved out."""
    return Feed.objects.filter(pk=organization).values_list("pruned_through", flat=True).first() or 0


def due(at: datetime) -> QuerySet[WebhookEndpoint]:
    """The endpoints with something to send that nobody is sending, whoever has waited longest first."""
    waiting = WebhookDelivery.objects.filter(endpoint=OuterRef("pk"), state="pending")
    its_turn = Q(state=State.ACTIVE, next_attempt_at__lte=at) & (_behind() | Exists(waiting.filter(purpose="replay")))
    # A test is made of a paused endpoint as well, and at once.
    tested = Exists(waiting.filter(purpose="test"))
    return (
        WebhookEndpoint.objects.filter(deleted_at=None)
        .filter(Q(claimed_until=None) | Q(claimed_until__lte=at))
        .filter(its_turn | tested)
        .order_by(F("next_attempt_at").asc())
    )


def _behind() -> Q:
    """Its feed has gone on."""
    return Q(cursor__lt=Subquery(Feed.objects.filter(pk=OuterRef("organization")).values("last_position")))


def webhook_backlog() -> tuple[int, float]:
    """(what active endpoints are still to be sent, the age in seconds of the oldest of it; 0 without any).

    Looked at are the hundred endpoints that fail for longest, or else wait for longest; of each at most a thousand
    messages are counted.
    """
    total, oldest = 0, None
    asked_for = WebhookDelivery.objects.filter(state="pending").exclude(purpose="feed")
    waiting = WebhookEndpoint.objects.filter(deleted_at=None, state=State.ACTIVE).filter(
        _behind() | Exists(asked_for.filter(endpoint=OuterRef("pk")))
    )
    for row in waiting.order_by(F("failing_since").asc(nulls_last=True), "next_attempt_at")[:MOST_WAITING]:
        ahead = concerning(row).filter(position__gt=row.cursor, position__lte=row.cursor + WINDOW)
        times = [*asked_for.filter(endpoint=row).values_list("created_at", flat=True)[:MOST_COUNTED]]
        times += ahead.order_by("position").values_list("at", flat=True)[:MOST_COUNTED]
        total += len(times)
        oldest = min([*times, *([oldest] if oldest else [])], default=None)
    return total, 0.0 if oldest is None else max(0.0, (clock.now() - oldest).total_seconds())
