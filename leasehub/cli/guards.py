"""The file that says which paths of a repository are guarded by which resource: .leasehub.json.

    {"guards": [{"paths": ["migrations/**"], "resource": "schema/main", "acquire": true, "ttl_seconds": 900}]}

JSON, because a hook runs before every edit and reading TOML would cost it as much again.
"""

import os

from leasehub.client import jsontext
from leasehub.client.failures import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasehub.client.wire import Members

FILE = ".leasehub.json"
MAX_FILE = 1024 * 1024
DEFAULT_TTL_SECONDS = 900
DEFAULT_HOLDER = "session-{session}"
MEMBERS = {"paths", "resource", "acquire", "ttl_seconds"}


class Guard:
    """Whoever edits one of the paths must hold the resource. With ``acquires`` the session that edits takes it by
    itself, for ``ttl_seconds`` from its last edit."""

    __slots__ = ("acquires", "paths", "resource", "resource_id", "resource_type", "ttl_seconds")

    def __init__(self, given: "Members", where: str) -> None:
        unknown = sorted(given.keys() - MEMBERS)
        if unknown:
            raise Usage(f"{where}: unknown member {unknown[0]!r}, only: {', '.join(sorted(MEMBERS))}")
        paths, resource = given.get("paths"), given.get("resource")
        if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
            raise Usage(f'{where}: "paths" must be a list of patterns')
        if not isinstance(resource, str) or not all(resource.partition("/")):
            raise Usage(f'{where}: "resource" must look like TYPE/ID, not {resource!r}')
        acquires, ttl_seconds = given.get("acquire", False), given.get("ttl_seconds", DEFAULT_TTL_SECONDS)
        if not isinstance(acquires, bool):
            raise Usage(f'{where}: "acquire" must be true or false')
        if isinstance(ttl_seconds, bool) or not isinstance(ttl_seconds, int) or ttl_seconds < 1:
            raise Usage(f'{where}: "ttl_seconds" must be a whole number of seconds')
        self.paths: list[str] = paths
        self.resource = resource
        self.resource_type, _, self.resource_id = resource.partition("/")
        self.acquires = acquires
        self.ttl_seconds = ttl_seconds

    def covers(self, path: str) -> bool:
        parts = path.split("/")
        return any(matches(_pattern(pattern), parts) for pattern in self.paths)


class Guards:
    """One such file. ``holder`` is what its sessions hold as."""

    __slots__ = ("file", "folder", "guards", "holder")

    def __init__(self, file: str) -> None:
        self.file = file
        self.folder = os.path.dirname(file)
        content = _read(file)
        unknown = sorted(content.keys() - {"guards", "holder"})
        if unknown:
            raise Usage(f"{file}: unknown member {unknown[0]!r}, only: guards, holder")
        guards, holder = content.get("guards"), content.get("holder", DEFAULT_HOLDER)
        if not isinstance(guards, list) or not all(isinstance(guard, dict) for guard in guards):
            raise Usage(f'{file}: "guards" must be a list of objects')
        if not isinstance(holder, str) or "{session}" not in holder:
            raise Usage(f'{file}: "holder" must be a text with {{session}} in it')
        self.guards = [Guard(guard, f"{file}: guard {number}") for number, guard in enumerate(guards, 1)]
        self.holder = holder


def above(folder: str) -> "Iterator[Guards]":
    """The files of that folder and of those above it, the nearest first: one further down adds guards, and takes none
    away."""
    while True:
        file = os.path.join(folder, FILE)
        if os.path.isfile(file):
            yield Guards(file)
        parent = os.path.dirname(folder)
        if parent == folder:
            return
        folder = parent


def guarding(path: str, working_folder: str) -> list[tuple[Guards, Guard]]:
    """The guards of a path, whether it is reached by its own name or through a link."""
    named = os.path.normpath(os.path.join(working_folder, path))
    found: dict[str, tuple[Guards, Guard]] = {}
    for place in {named, os.path.realpath(named)}:
        for guards in above(os.path.dirname(place)):
            relative = os.path.relpath(place, guards.folder)
            for guard in guards.guards:
                if guard.covers(relative):
                    found.setdefault(guard.resource, (guards, guard))
    # In one order for everybody: of two sessions that want the same two, one gets the first.
    return [found[resource] for resource in sorted(found)]


def matches(pattern: list[str], parts: list[str]) -> bool:
    """``**`` is any number of folders, ``*`` anything within a name, ``?`` one character of it."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(matches(pattern[1:], parts[skipped:]) for skipped in range(len(parts) + 1))
    return bool(parts) and _fits(pattern[0], parts[0]) and matches(pattern[1:], parts[1:])


def _pattern(text: str) -> list[str]:
    names = text.removeprefix("./").split("/")
    if names[-1] == "":
        names[-1] = "**"
    return [name for at, name in enumerate(names) if name != "**" or names[at - 1 : at] != ["**"]]


def _fits(pattern: str, name: str) -> bool:
    head, star, rest = pattern.partition("*")
    if not star:
        return len(head) == len(name) and all(p in ("?", c) for p, c in zip(head, name, strict=True))
    if len(name) < len(head) or not _fits(head, name[: len(head)]):
        return False
    return any(_fits(rest, name[at:]) for at in range(len(head), len(name) + 1))


def _read(file: str) -> "Members":
    try:
        with open(file, "rb") as stream:
            content = jsontext.parse(stream.read(MAX_FILE).decode())
    except OSError as error:
        raise Usage(f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:
        raise Usage(f"{file} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise Usage(f"{file} is not a JSON object")
    return content
