"""The pool file: every check, whoever hands it in (PUT /v1/pools, the command line's apply, the admin's upload)."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from leasehub.api.parsing import bounded_json
from leasehub.errors import DomainError, ValidationError
from pools import labels
from pools.environment import slot_environment
from pools.templates import number_text, rendered, scope, text_of

KIND = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
KIND_RULE = "^[a-z0-9][a-z0-9._-]{0,127}$"
QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
COMMANDS = ("provision", "reset", "health", "nudgeCommand")
STRINGS = (*COMMANDS, "nudgeEvent", "shellPrefix", "bookkeeper")
# The largest that each may be, in its own unit: beyond a year a number is a slip.
NUMBERS = {
    "ttlMinutes": 527_040,
    "waiterStaleMs": 31_622_400_000,
    "movingAvgSeedMs": 31_622_400_000,
    "claimWindowMs": 31_622_400_000,
    "commandTimeoutMs": 86_400_000,
}
MEMBERS = {
    "slots",
    "name",
    "kindPrefix",
    "queueLockKind",
    *STRINGS,
    *NUMBERS,
    "grantEnv",
    "grantFields",
    "cwd",
    "worker",
}
# What a grant, a failure or a place in the queue says of itself, here and on the command line.
RESERVED_GRANT_FIELDS = {
    *("ok", "state", "request_id", "mode", "slot_id", "kind", "owner", "token", "ttlMinutes", "attrs", "env"),
    *("grantedAt", "lease_id", "fencing_token", "expires_at", "expires_in_ms", "ttl_minutes", "granted_at"),
    *("holder", "principal"),
    *("grant_fields", "code", "error", "queued", "position", "eta", "eta_ms", "etaMs", "at", "session"),
}
#: Templates times slots: as many are rendered in about two seconds.
MAX_RENDERED = 100_000
# `leasehub run` exports these itself, and later calls of the command line read those.
RESERVED_VARIABLES = ("POOL_RUN_", "LEASEHUB_")
MAX_SLOTS = 10_000
MAX_ID_LENGTH = 200


@dataclass(frozen=True, slots=True)
class DeclaredSlot:
    id_value: str | int | float
    slot_id: str
    kind: str
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Declaration:
    """A pool file's members but for its slots, with defaults for what it leaves out."""

    members: Mapping[str, Any]

    @property
    def provision(self) -> str:
        return str(self.members.get("provision", self.members.get("reset", "")))

    @property
    def reset(self) -> str:
        return str(self.members.get("reset", self.provision))

    @property
    def health(self) -> str:
        return str(self.members.get("health", ""))

    @property
    def nudge_command(self) -> str:
        return str(self.members.get("nudgeCommand", ""))

    @property
    def nudge_event(self) -> str:
        return str(self.members.get("nudgeEvent", "lease-granted"))

    @property
    def shell_prefix(self) -> str:
        return str(self.members.get("shellPrefix", "POOL_LEASE"))

    @property
    def cwd(self) -> str:
        return str(self.members.get("cwd", "."))

    @property
    def worker(self) -> str:
        return str(self.members.get("worker", "default"))

    @property
    def ttl_seconds(self) -> int:
        return self._number("ttlMinutes", 30, times=60)

    @property
    def waiter_stale_ms(self) -> int:
        return self._number("waiterStaleMs", 90_000)

    @property
    def moving_avg_seed_ms(self) -> int:
        return self._number("movingAvgSeedMs", 480_000)

    @property
    def claim_window_ms(self) -> int:
        return self._number("claimWindowMs", 600_000)

    @property
    def command_timeout_ms(self) -> int:
        return self._number("commandTimeoutMs", 600_000)

    def _number(self, member: str, default: int, *, times: int = 1) -> int:
        value: float = self.members.get(member, default)
        return math.ceil(value * times)

    @property
    def runs_commands(self) -> bool:
        return bool(self.provision or self.reset or self.health or self.nudge_command)

    def granting_steps(self) -> list[dict[str, str]]:
        return _steps(provision=self.provision, health=self.health)

    def resetting_steps(self) -> list[dict[str, str]]:
        return _steps(reset=self.reset, health=self.health)

    def health_steps(self) -> list[dict[str, str]]:
        return _steps(health=self.health)

    def grant_environment(self, slot: Any) -> dict[str, str]:
        """What a grant of this slot exports: the pool's grantEnv, else the slot's own environment."""
        templates = self.members.get("grantEnv")
        if templates is None:
            return slot_environment(slot.slot_id, slot.kind, slot.attributes)
        names = scope(slot.id_value, slot.kind, slot.attributes)
        return {name: text_of(rendered(template, names)) for name, template in templates.items()}

    def grant_fields(self, slot: Any) -> dict[str, Any]:
        names = scope(slot.id_value, slot.kind, slot.attributes)
        return {name: rendered(value, names) for name, value in (self.members.get("grantFields") or {}).items()}


@dataclass(frozen=True, slots=True)
class PoolFile:
    name: str
    declaration: Declaration
    slots: tuple[DeclaredSlot, ...]


def parse(document: Any, *, name: str | None = None) -> PoolFile:
    """A checked pool file. ``name``: what it must be called, when the caller's address says so.

    Raises ValidationError with what is wrong with each member, in the order of the checks.
    """
    if not isinstance(document, dict):
        raise ValidationError("A pool file must be a JSON object.", body="must be a JSON object")
    wrong: dict[str, str] = {}
    for member in document:
        if member not in MEMBERS:
            wrong[_legible(member)] = f'unknown member "{_legible(member)}"'
    if not isinstance(document.get("slots"), list) or not document["slots"]:
        wrong["slots"] = 'a pool needs a non-empty "slots" array'
    elif len(document["slots"]) > MAX_SLOTS:
        wrong["slots"] = f"a pool has at most {MAX_SLOTS} slots"
    pool_name = _checked_name(document, name, wrong)
    _check_members(document, pool_name, wrong)
    slots = [] if "slots" in wrong else _checked_slots(document, pool_name, wrong)
    if not wrong:
        _check_rendering(Declaration(document), slots, wrong)
    if wrong:
        shown = "; ".join(wrong.values()) if len(wrong) <= 5 else "; ".join([*list(wrong.values())[:5], "…"])
        raise ValidationError(shown[:2000], **wrong)
    members = {member: value for member, value in document.items() if member not in ("slots", "name")}
    return PoolFile(pool_name, Declaration(members), tuple(slots))


def _checked_name(document: Mapping[str, Any], name: str | None, wrong: dict[str, str]) -> str:
    given = document.get("name")
    given = (name or "pool") if given is None else given
    if not isinstance(given, str) or not KIND.fullmatch(given):
        wrong["name"] = f'invalid pool "name": must match {KIND_RULE}'
        return "pool"
    if name is not None and given != name:
        wrong["name"] = f'invalid pool "name": the address says "{_legible(name)}"'
    return given


def _check_members(document: Mapping[str, Any], pool_name: str, wrong: dict[str, str]) -> None:
    prefix = document.get("kindPrefix")
    if prefix is not None and not isinstance(prefix, str):
        wrong["kindPrefix"] = '"kindPrefix" must be a string'
    if not KIND.fullmatch(_queue_lock_kind(document, pool_name)):
        wrong["queueLockKind"] = f'"queueLockKind" must match {KIND_RULE}'
    for member in (*STRINGS, "cwd", "worker"):
        if member in document and not isinstance(document[member], str):
            wrong[member] = f'"{member}" must be a string'
    for member in NUMBERS:
        if member in document:
            _check_number(document[member], member, wrong)
    for member in ("grantEnv", "grantFields"):
        if document.get(member) is not None and not isinstance(document[member], dict):
            wrong[member] = f'"{member}" must be a JSON object'
    for member in MEMBERS - {"slots"}:
        if member in document and member not in wrong:
            _check_storable(document[member], member, wrong)
    if "worker" not in wrong and not QUEUE.fullmatch(document.get("worker", "default")):
        wrong["worker"] = f'"worker" must match ^{QUEUE.pattern}$'
    if "shellPrefix" not in wrong and not VARIABLE.fullmatch(document.get("shellPrefix", "POOL_LEASE")):
        wrong["shellPrefix"] = '"shellPrefix" is not a valid environment variable name'
    if "cwd" not in wrong and len(document.get("cwd", ".")) > 4000:
        wrong["cwd"] = '"cwd" is too long'
    _check_grant_fields(document, wrong)
    _check_grant_env(document, wrong)


def _check_number(value: Any, member: str, wrong: dict[str, str]) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or value == math.inf:
        wrong[member] = f'"{member}" must be a positive number'
    elif value > NUMBERS[member]:
        wrong[member] = f'"{member}" must be a positive number up to {NUMBERS[member]}'
    elif member == "ttlMinutes":
        least, most = settings.LEASEHUB_MIN_TTL_SECONDS, settings.LEASEHUB_MAX_TTL_SECONDS
        if not least <= math.ceil(value * 60) <= most:
            wrong[member] = f'"ttlMinutes" must be a positive number from {least / 60:g} to {most / 60:g}'


def _check_grant_fields(document: Mapping[str, Any], wrong: dict[str, str]) -> None:
    fields = document.get("grantFields")
    for key in fields if isinstance(fields, dict) else ():
        if key in RESERVED_GRANT_FIELDS:
            wrong[f"grantFields.{key}"] = f'grantFields key "{key}" collides with a member of every grant'


def _check_grant_env(document: Mapping[str, Any], wrong: dict[str, str]) -> None:
    templates = document.get("grantEnv")
    prefix = document.get("shellPrefix", "POOL_LEASE")
    for key, template in templates.items() if isinstance(templates, dict) else ():
        member = f"grantEnv.{_legible(key)}"
        if not VARIABLE.fullmatch(key):
            wrong[member] = f'grantEnv key "{_legible(key)}" is not a valid environment variable name'
        elif not isinstance(template, str):
            wrong[member] = f'"{member}" must be a string'
        elif key.startswith(RESERVED_VARIABLES) or key in (f"{prefix}_SLOT", f"{prefix}_TOKEN", f"{prefix}_OWNER"):
            wrong[member] = f'grantEnv key "{key}" collides with a variable that is set beside it'


def _checked_slots(document: Mapping[str, Any], pool_name: str, wrong: dict[str, str]) -> list[DeclaredSlot]:
    prefix = document.get("kindPrefix")
    prefix = prefix if isinstance(prefix, str) else "slot-"
    slots: list[DeclaredSlot] = []
    ids: set[str] = set()
    kinds = {_queue_lock_kind(document, pool_name)}
    for index, given in enumerate(document["slots"]):
        try:
            slot = _checked_slot(given, prefix, pool_name)
            if slot.slot_id in ids:
                raise ValidationError(f'duplicate slot id "{slot.slot_id}"')
            if slot.kind in kinds:
                raise ValidationError(f'duplicate lease kind "{slot.kind}"')
        except DomainError as error:
            wrong[f"slots.{index}"] = f"slot {index}: {error.message}"
            continue
        ids.add(slot.slot_id)
        kinds.add(slot.kind)
        slots.append(slot)
    return slots


def _checked_slot(given: Any, prefix: str, pool_name: str) -> DeclaredSlot:
    if not isinstance(given, dict):
        raise ValidationError("must be a JSON object")
    problem = _storable(given)
    if problem:
        raise ValidationError(problem)
    id_value = given.get("id")
    if isinstance(id_value, bool) or not isinstance(id_value, str | int | float) or id_value == "":
        raise ValidationError('needs an "id" that is a non-empty string or a number')
    slot_id = (
        id_value
        if isinstance(id_value, str)
        else number_text(id_value)
        if isinstance(id_value, float)
        else str(id_value)
    )
    kind = given.get("kind")
    kind = prefix + slot_id if kind is None else kind
    if not isinstance(kind, str) or not KIND.fullmatch(kind):
        raise ValidationError(f'lease kind "{_legible(text_of(kind))}" must match {KIND_RULE}')
    if not slot_id.isprintable() or len(f"{pool_name}/{slot_id}") > MAX_ID_LENGTH:
        raise ValidationError('needs an "id" of printable characters that is not so long')
    attributes = {name: value for name, value in given.items() if name not in ("id", "kind")}
    # Both raise when two attributes could not be told apart later.
    slot_environment(slot_id, kind, attributes)
    labels.of(id_value, kind, attributes)
    return DeclaredSlot(id_value, slot_id, kind, attributes)


def _check_rendering(declaration: Declaration, slots: Sequence[DeclaredSlot], wrong: dict[str, str]) -> None:
    """Every template for every slot: a bad one fails here, not at a grant."""
    for member in ("grantEnv", "grantFields"):
        templates = declaration.members.get(member) or {}
        if len(templates) * len(slots) > MAX_RENDERED:
            wrong[member] = f'"{member}" has too many templates for {len(slots)} slots: at most {MAX_RENDERED} in all'
            return
    for slot in slots:
        try:
            environment = declaration.grant_environment(slot)
            fields = declaration.grant_fields(slot)
        except ValidationError as error:
            wrong[f"slots.{slot.slot_id}"] = f'slot "{slot.slot_id}": {error.message}'
            continue
        problem = _storable({"env": environment, "fields": fields})
        if problem:
            wrong[f"slots.{slot.slot_id}"] = f'slot "{slot.slot_id}": its grant {problem}'


def _check_storable(value: Any, member: str, wrong: dict[str, str]) -> None:
    problem = _storable(value)
    if problem:
        wrong[member] = f'"{member}" {problem}'


def _storable(value: Any) -> str:
    """What keeps a value out of the database, or nothing."""
    try:
        bounded_json(value)
    except ValueError as error:
        return str(error)
    return ""


def _queue_lock_kind(document: Mapping[str, Any], pool_name: str) -> str:
    given = document.get("queueLockKind")
    given = f"{pool_name}-queue"[:128] if given is None else given
    return given if isinstance(given, str) else ""


def _legible(text: str) -> str:
    return json.dumps(text[:200])[1:-1]


def _steps(**commands: str) -> list[dict[str, str]]:
    return [{"action": action, "command": command} for action, command in commands.items() if command.strip()]
