"""Selectors: equality on a slot's attributes, by their paths."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet

from leasehub.errors import ValidationError
from pools.models import Slot, SlotLabel
from pools.templates import compact_json

MAX_LABELS = 200
MAX_PATH = 200
MAX_VALUE = 200


def of(id_value: Any, kind: str, attributes: Mapping[str, Any]) -> dict[str, str]:
    """Every path of a slot with its value. Raises ValidationError."""
    found: dict[str, str] = {}
    for path, value in [("id", id_value), ("kind", kind), *_paths("", attributes)]:
        if len(path) > MAX_PATH:
            raise ValidationError(f'attribute "{path[:40]}…" is nested too deeply or its name is too long')
        if path in found:
            raise ValidationError(f'two attributes collide as "{path}"')
        found[path] = stored(value)
        if len(found) > MAX_LABELS:
            raise ValidationError(f"has more than {MAX_LABELS} attributes")
    return found


def stored(value: Any) -> str:
    """Equal values, equal text; 1 and 1.0 are equal."""
    text = compact_json(_normal(value))
    return text if len(text) <= MAX_VALUE else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def key(selector: Mapping[str, Any]) -> str:
    """Equal selectors, equal keys; the empty one's is empty."""
    if not selector:
        return ""
    text = compact_json(sorted((path, stored(value)) for path, value in selector.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def matching(slots: QuerySet[Slot], selector: Mapping[str, Any]) -> QuerySet[Slot]:
    for path, value in selector.items():
        slots = slots.filter(Exists(_having(path, value)))
    return slots


def excluding(slots: QuerySet[Slot], selector: Mapping[str, Any]) -> QuerySet[Slot]:
    """The slots that the selector does not mean."""
    meant = matching(Slot.objects.filter(pk=OuterRef("pk")), selector)
    return slots.filter(~Exists(meant))


def _having(path: str, value: Any) -> QuerySet[SlotLabel]:
    return SlotLabel.objects.filter(slot=OuterRef("pk"), path=path, value=stored(value))


def _paths(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for name, item in items:
        path = f"{prefix}.{name}" if prefix else str(name)
        yield path, item
        if isinstance(item, dict | list):
            yield from _paths(path, item)


def _normal(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _normal(item) for name, item in sorted(value.items())}
    if isinstance(value, list):
        return [_normal(item) for item in value]
    return value
