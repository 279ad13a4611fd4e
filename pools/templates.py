"""Text of a pool file with ``{attribute.path}`` in it, filled in from a slot."""

import json
import re
from collections.abc import Mapping
from typing import Any

from leasehub.errors import ValidationError

_BRACED = re.compile(r"\{([^{}]*)\}")
_PATH = re.compile(r"[A-Za-z0-9_.]+")
_MISSING = object()


class UnknownAttribute(ValidationError):
    """A template names what the slot does not have."""


def scope(slot_id: Any, kind: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What a template of this slot may name."""
    return {**attributes, "id": slot_id, "kind": kind}


def rendered(template: Any, names: Mapping[str, Any]) -> Any:
    """A template that is exactly one placeholder gives the raw value, any other one text.

    Raises UnknownAttribute, also for ``{cache-db}`` when there is such an attribute: it is no placeholder and would
    stay as it is.
    """
    if not isinstance(template, str):
        return template
    whole = _BRACED.fullmatch(template)
    if whole is not None and _PATH.fullmatch(whole[1]):
        return _value(whole[1], names)
    return _BRACED.sub(lambda found: _filled(found, names), template)


def text_of(value: Any) -> str:
    """JSON for objects and arrays, the plain form for everything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, dict | list):
        return compact_json(value)
    return json.dumps(value)


def number_text(number: float) -> str:
    """3.0 is written as 3, as the pool file's own tool did."""
    return str(int(number)) if number.is_integer() and abs(number) < 1e21 else repr(number)


def compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _filled(found: re.Match[str], names: Mapping[str, Any]) -> str:
    path = found[1]
    if _PATH.fullmatch(path):
        return text_of(_value(path, names))
    if path.strip() in names:
        raise UnknownAttribute(f'"{found[0]}" is not a placeholder: a path has letters, digits, "_" and "." alone')
    return found[0]


def _value(path: str, names: Mapping[str, Any]) -> Any:
    value: Any = names
    for part in path.split("."):
        value = _step(value, part)
        if value is _MISSING:
            raise UnknownAttribute(f'unknown slot attribute "{path}"')
    return value


def _step(value: Any, part: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(part, _MISSING)
    if isinstance(value, list) and part.isascii() and part.isdigit() and len(part) <= 6 and int(part) < len(value):
        return value[int(part)]
    return _MISSING
