"""Asking for commands: the rows that workers take (pools.runs)."""

import uuid
from datetime import datetime
from typing import Any

from django.conf import settings

from leasehub.errors import Forbidden
from pools.environment import slot_environment
from pools.errors import Unsatisfiable
from pools.models import CommandRun, Pool, Request, Slot
from pools.poolfile import Declaration

Purpose = CommandRun.Purpose


def check_may_declare(declaration: Declaration) -> None:
    """Raises Forbidden."""
    if declaration.runs_commands and not settings.LEASEHUB_COMMANDS:
        raise Forbidden("This server runs no commands (LEASEHUB_COMMANDS=off): declare the pool without any.")


def check_may_run(declaration: Declaration) -> None:
    """Raises Unsatisfiable: without its commands no slot of the pool would be clean."""
    if declaration.runs_commands and not settings.LEASEHUB_COMMANDS:
        raise Unsatisfiable("This server runs no commands (LEASEHUB_COMMANDS=off), and the pool has some.")


def order(
    pool: Pool,
    slot: Slot,
    purpose: Purpose,
    steps: list[dict[str, str]],
    *,
    at: datetime,
    lease_id: uuid.UUID | None = None,
    request: Request | None = None,
    actor: int | None = None,
) -> CommandRun:
    """Commands for a slot, which nothing is granted of until they have ended. The pool is locked."""
    declaration = Declaration(pool.declaration)
    Slot.objects.filter(pk=slot.pk).update(is_busy=True)
    return CommandRun.objects.create(
        pool=pool,
        slot=slot,
        request=request,
        purpose=purpose,
        lease_id=lease_id,
        actor_id=actor,
        worker=pool.worker,
        steps=steps,
        cwd=declaration.cwd,
        environment=slot_environment(slot.slot_id, slot.kind, slot.attributes),
        step_timeout_ms=declaration.command_timeout_ms,
        created_at=at,
    )


def order_nudge(pool: Pool, request: Request, *, at: datetime) -> None:
    """Tells the request's session how it went, if the pool names a command for it; nothing waits for that."""
    declaration = Declaration(pool.declaration)
    command = declaration.nudge_command
    if not command.strip() or not settings.LEASEHUB_COMMANDS:
        return
    steps: list[dict[str, Any]] = [{"action": "nudge", "command": command}]
    CommandRun.objects.create(
        pool=pool,
        request=request,
        purpose=Purpose.NUDGE,
        worker=pool.worker,
        steps=steps,
        cwd=declaration.cwd,
        step_timeout_ms=NUDGE_TIMEOUT_MS,
        created_at=at,
    )


NUDGE_TIMEOUT_MS = 15_000
