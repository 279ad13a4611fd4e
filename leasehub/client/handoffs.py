"""Handing unfinished work on, and its state."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from leasehub.client.acquiring import Once
from leasehub.client.failures import Failure
from leasehub.client.unheard import giving_back
from leasehub.client.wire import Members, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from leasehub.client.held import Held
    from leasehub.client.hub import Hub

PAGE = 200


class Accepted:
    """A handoff that was accepted: its leases, which are kept alive from now on, and those that were lost before.
    In a ``with`` the leases are given back at the end."""

    def __init__(self, answer: Members, leases: "list[Held]") -> None:
        self.handoff_id = str(answer["handoff_id"])
        self.leases = leases
        self.lost: list[Members] = answer["lost"]
        self.state_drift: bool | None = answer["state_drift"]

    def __enter__(self) -> "Accepted":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        failures: list[Failure] = []
        for lease in self.leases:
            try:
                lease.release()
            except Failure as failure:
                failures.append(failure)
        if failures and value is None:
            raise failures[0]


class Handoffs:
    def __init__(self, hub: "Hub") -> None:
        self._hub = hub

    def send(
        self,
        to: str,
        subject: str,
        *,
        leases: "Sequence[Held | str]" = (),
        message: str | None = None,
        next_action: str | None = None,
        checkpoint_id: str | None = None,
        accept_by: str | None = None,
        parent_id: str | None = None,
        **more: object,
    ) -> str:
        """Offers work to a principal, with leases; the id of the handoff. They stay one's own, and have to be kept,
        until it is accepted. ``more`` is what else the API takes: done, decisions, blockers, artifacts, state, …"""
        body = {
            "to_principal": to,
            "subject_id": subject,
            "lease_ids": [lease if isinstance(lease, str) else lease.lease_id for lease in leases],
            "message": message,
            "next_action": next_action,
            "checkpoint_id": checkpoint_id,
            "accept_by": accept_by,
            "parent_id": parent_id,
            **more,
        }
        given = {name: value for name, value in body.items() if value is not None}
        return str(self._hub.call("POST", "/v1/handoffs", given)["handoff_id"])

    def inbox(self, *, status: str | None = None) -> Iterator[Members]:
        """What waits for me, oldest first; or what came of it, by its ``status``."""
        return self._listed("inbox", status)

    def sent(self, *, status: str | None = None) -> Iterator[Members]:
        """What I gave, newest first."""
        return self._listed("sent", status)

    def show(self, handoff_id: str) -> Members:
        return self._hub.call("GET", f"/v1/handoffs/{quoted(handoff_id)}")

    def accept(
        self,
        handoff_id: str,
        *,
        ttl: int | None = None,
        holder: str | None = None,
        observed_commit: str | None = None,
        on_lost: "Callable[[Held], None] | None" = None,
    ) -> Accepted:
        """The leases move to this process, with larger tokens, and are kept alive from here."""
        holder = holder or self._hub.holder
        body: dict[str, object] = {"status": "accepted", "holder": holder}
        if ttl is not None:
            body["ttl_seconds"] = ttl
        if observed_commit is not None:
            body["observed_commit"] = observed_commit
        with self._hub.connection() as connection:
            once = Once(connection, f"/v1/handoffs/{quoted(handoff_id)}/resolve")
            with giving_back(once):
                answer = once.ask(body)
                leases = [
                    self._hub.keep(
                        lease,
                        since=once.since,
                        ttl=ttl,
                        resource_type=lease["resource_type"],
                        resource_id=lease["resource_id"],
                        holder=holder,
                        on_lost=on_lost,
                    )
                    for lease in answer["leases"]
                ]
        return Accepted(answer, leases)

    def reject(self, handoff_id: str, reason: str) -> Members:
        body = {"status": "rejected", "reason": reason}
        return self._hub.call("POST", f"/v1/handoffs/{quoted(handoff_id)}/resolve", body)

    def withdraw(self, handoff_id: str, reason: str | None = None) -> Members:
        body = {} if reason is None else {"reason": reason}
        return self._hub.call("POST", f"/v1/handoffs/{quoted(handoff_id)}/withdraw", body)

    def complete(self, handoff_id: str, result: object = None) -> Members:
        body = {} if result is None else {"result": result}
        return self._hub.call("POST", f"/v1/handoffs/{quoted(handoff_id)}/complete", body)

    def _listed(self, box: str, status: str | None) -> Iterator[Members]:
        query = f"box={box}&limit={PAGE}" + ("" if status is None else f"&status={quoted(status)}")
        after = ""
        while True:
            page = self._hub.call("GET", f"/v1/handoffs?{query}{after}")
            yield from page["handoffs"]
            if page["next"] is None:
                return
            after = f"&after={quoted(page['next'])}"


class Checkpoints:
    """Resumable state, versioned, written by compare-and-swap."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub

    def save(
        self,
        subject: str,
        kind: str,
        state: Any,
        *,
        expected_version: int | None = 0,
        ttl: int | None = None,
        fence: "Held | Mapping[str, object] | None" = None,
    ) -> Members:
        """The next version: its ``checkpoint_id`` and ``version``. ``expected_version`` is the one that is there now,
        0 for none, None for whichever; another raises VersionConflict. With the lease as ``fence`` it belongs to the
        resource, and a token that is not current any more raises StaleToken."""
        body: dict[str, object] = {"state": state, "expected_version": expected_version}
        if ttl is not None:
            body["ttl_seconds"] = ttl
        if isinstance(fence, Mapping):
            body["fence"] = dict(fence)
        elif fence is not None:
            body["fence"] = {
                "resource_type": fence.resource_type,
                "resource_id": fence.resource_id,
                "fencing_token": fence.fencing_token,
            }
        return self._hub.call("PUT", f"/v1/checkpoints/{quoted(subject)}/{quoted(kind)}", body)

    def get(self, subject: str, kind: str, *, version: int | None = None) -> Members:
        query = "" if version is None else f"?version={version}"
        return self._hub.call("GET", f"/v1/checkpoints/{quoted(subject)}/{quoted(kind)}{query}")

    def show(self, checkpoint_id: str) -> Members:
        """One that a handoff names."""
        return self._hub.call("GET", f"/v1/checkpoints/{quoted(checkpoint_id)}")
