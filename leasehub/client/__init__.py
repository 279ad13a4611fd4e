"""The client library: leases, claims, slots, handoffs and events of a LeaseHub server.

    hub = leasehub.client.connect()
    with hub.lease("deploy", "checkout", ttl=60) as lease:
        deploy(token=lease.fencing_token)

Standard library only. Nothing is imported before it is used, because the command line stands on this room too.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from leasehub.client.failures import CATALOGUE as CATALOGUE
    from leasehub.client.failures import Conflict as Conflict
    from leasehub.client.failures import CursorExpired as CursorExpired
    from leasehub.client.failures import Empty as Empty
    from leasehub.client.failures import Failure as Failure
    from leasehub.client.failures import Forbidden as Forbidden
    from leasehub.client.failures import GrantFailed as GrantFailed
    from leasehub.client.failures import IdempotencyMismatch as IdempotencyMismatch
    from leasehub.client.failures import InProgress as InProgress
    from leasehub.client.failures import Internal as Internal
    from leasehub.client.failures import LeaseLost as LeaseLost
    from leasehub.client.failures import NotFound as NotFound
    from leasehub.client.failures import QuotaExceeded as QuotaExceeded
    from leasehub.client.failures import Refused as Refused
    from leasehub.client.failures import Saturated as Saturated
    from leasehub.client.failures import StaleToken as StaleToken
    from leasehub.client.failures import Unauthenticated as Unauthenticated
    from leasehub.client.failures import Unreachable as Unreachable
    from leasehub.client.failures import Usage as Usage
    from leasehub.client.failures import VersionConflict as VersionConflict
    from leasehub.client.held import Claim as Claim
    from leasehub.client.held import Held as Held
    from leasehub.client.held import Lease as Lease
    from leasehub.client.held import Slot as Slot
    from leasehub.client.hub import Hub as Hub
    from leasehub.client.hub import connect as connect

WHERE = {"Hub": "hub", "connect": "hub", "Claim": "held", "Held": "held", "Lease": "held", "Slot": "held"}


def __getattr__(name: str) -> object:
    if name[:1] == "_":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = __import__(f"{__name__}.{WHERE.get(name, 'failures')}", fromlist=[name])
    try:
        return getattr(module, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
