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
# These leases are made by claiming and granting alone.
RESERVED = ("task", "slot")
# The longest that a file system takes.
MAX_PATH = 4096


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
        for pattern in paths:
            wrong = _unmatchable(pattern)
            if wrong:
                raise Usage(f"{where}: the pattern {pattern!r} {wrong}")
        if not isinstance(resource, str) or not all(resource.partition("/")):
            raise Usage(f'{where}: "resource" must look like TYPE/ID, not {resource!r}')
        acquires, ttl_seconds = given.get("acquire", False), given.get("ttl_seconds", DEFAULT_TTL_SECONDS)
        if not isinstance(acquires, bool):
            raise Usage(f'{where}: "acquire" must be true or false')
        if acquires and resource.partition("/")[0] in RESERVED:
            raise Usage(f"{where}: no edit can acquire {resource!r}: the types {', '.join(RESERVED)} are reserved")
        if isinstance(ttl_seconds, bool) or not isinstance(ttl_seconds, int) or ttl_seconds < 1:
            raise Usage(f'{where}: "ttl_seconds" must be a whole number of seconds')
        self.paths: list[str] = paths
        self.resource = resource
        self.resource_type, _, self.resource_id = resource.partition("/")
        self.acquires = acquires
        self.ttl_seconds = ttl_seconds

    def covers(self, path: str, *, folds: bool = False) -> bool:
        """With ``folds`` whatever the case of the letters."""
        patterns = [pattern.casefold() if folds else pattern for pattern in self.paths]
        parts = (path.casefold() if folds else path).split("/")
        return any(matches(_pattern(pattern), parts) for pattern in patterns)


class Guards:
    """One such file. ``holder`` is what its sessions hold as; ``folds`` says whether its file system takes two names
    that differ in case for one."""

    __slots__ = ("file", "folder", "folds", "guards", "holder")

    def __init__(self, file: str) -> None:
        self.file = file
        self.folder = os.path.dirname(file)
        self.folds = os.path.exists(os.path.join(self.folder, FILE.upper()))
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
    file = nearest(folder)
    while file is not None:
        yield Guards(file)
        folder, parent = os.path.dirname(file), os.path.dirname(os.path.dirname(file))
        file = nearest(parent) if parent != folder else None


def nearest(folder: str) -> str | None:
    """The file of that folder, or of the nearest one above it that has one."""
    while True:
        file = os.path.join(folder, FILE)
        # What cannot be read is there all the same.
        if os.path.lexists(file):
            return file
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def guarding(path: str, working_folder: str) -> list[tuple[Guards, Guard]]:
    """The guards of a path, whether it is reached by its own name or through a link. A ``..`` behind a link leads
    elsewhere than its name says: both places count."""
    if len(path) > MAX_PATH or "\0" in path:
        raise Usage("a path to be edited is not one of any file")
    given = os.path.join(working_folder, path)
    named = os.path.normpath(given)
    found: dict[str, tuple[Guards, Guard]] = {}
    for place in {named, os.path.realpath(named), os.path.realpath(given)}:
        for guards in above(os.path.dirname(place)):
            relative = os.path.relpath(place, guards.folder)
            for guard in guards.guards:
                if guard.covers(relative, folds=guards.folds):
                    found.setdefault(guard.resource, (guards, guard))
    # In one order for everybody: of two sessions that want the same two, one gets the first.
    return [found[resource] for resource in sorted(found)]


def matches(pattern: list[str], parts: list[str]) -> bool:
    """``**`` is any number of folders, ``*`` anything within a name, ``?`` one character of it."""
    # How much of the pattern may be used up: looked at once for each part, however many ``**`` there are.
    at = _past_folders(pattern, {0})
    for part in parts:
        at = _past_folders(
            pattern,
            {
                here if pattern[here] == "**" else here + 1
                for here in at
                if here < len(pattern) and (pattern[here] == "**" or _fits(pattern[here], part))
            },
        )
    return len(pattern) in at


def _past_folders(pattern: list[str], at: set[int]) -> set[int]:
    """``**`` is no folder as well."""
    for here in range(len(pattern)):
        if here in at and pattern[here] == "**":
            at.add(here + 1)
    return at


def _pattern(text: str) -> list[str]:
    names = text.removeprefix("./").split("/")
    if names[-1] == "":
        names[-1] = "**"
    return names


def _unmatchable(pattern: str) -> str | None:
    """Why no path can fit it, whatever files there are; None when one can."""
    names = pattern.removeprefix("./").split("/")
    if pattern.startswith(("/", "~")):
        return "must be relative to the folder of the file"
    if pattern.startswith("!"):
        return "begins with !, but nothing is taken out again: list what is guarded"
    if "[" in pattern or "]" in pattern:
        return "has brackets, which stand for nothing here: ? is any one character"
    if "\\" in pattern:
        return "has a backslash: folders are separated by /"
    if any(name in (".", "..") for name in names) or "" in names[:-1] or names == [""]:
        return "fits no path: it must consist of names, without '..', '.' and '//'"
    return None


def example(pattern: str) -> str:
    """A path that fits it."""
    return "/".join(name.replace("*", "x").replace("?", "x") for name in _pattern(pattern))


def _fits(pattern: str, name: str) -> bool:
    """Each part between two stars is taken where it comes first: no other place leaves more room for the rest."""
    head, *rest = pattern.split("*")
    if not rest:
        return len(head) == len(name) and _at(head, name, 0)
    tail = rest.pop()
    end = len(name) - len(tail)
    if end < len(head) or not _at(head, name, 0) or not _at(tail, name, end):
        return False
    begin = len(head)
    for middle in rest:
        while begin + len(middle) <= end and not _at(middle, name, begin):
            begin += 1
        begin += len(middle)
        if begin > end:
            return False
    return True


def _at(part: str, name: str, begin: int) -> bool:
    if "?" not in part:
        return name.startswith(part, begin)
    return all(p in ("?", c) for p, c in zip(part, name[begin : begin + len(part)], strict=True))


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
