"""The environment of a slot: what its commands see, and what a grant exports unless the pool says otherwise."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from leasehub.errors import ValidationError
from pools.templates import compact_json, text_of

PREFIX = "POOL_SLOT_"
ID = "POOL_SLOT_ID"
KIND = "POOL_SLOT_KIND"
_OTHER_CHARACTERS = re.compile(r"[^A-Z0-9]+")


class NameClash(ValidationError):
    """Two things of a slot have one name in its environment."""


def slot_environment(slot_id: str, kind: str, attributes: Mapping[str, Any]) -> dict[str, str]:
    """Raises NameClash: the later one would silently hide the other."""
    environment = {ID: slot_id, KIND: kind}
    sources = {ID: "id", KIND: "kind"}
    for path, value in _flattened("", attributes):
        name = variable(path)
        if name == PREFIX:
            raise NameClash(f'attribute "{path}" has no letter or digit to name a variable by')
        if name in environment:
            raise NameClash(f'attributes "{sources[name]}" and "{path}" collide as {name}')
        environment[name], sources[name] = value, path
    return environment


def variable(path: str) -> str:
    return PREFIX + _OTHER_CHARACTERS.sub("_", path.upper()).strip("_")


def _flattened(prefix: str, attributes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in attributes.items():
        path = f"{prefix}_{name}" if prefix else name
        if isinstance(value, Mapping):
            yield from _flattened(path, value)
        elif value is None:
            yield path, ""
        elif isinstance(value, list):
            yield path, compact_json(value)
        else:
            yield path, text_of(value)
