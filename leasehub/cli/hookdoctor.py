"""leasehub hook doctor: proves that the hook blocks: the guards of here, with resources made up for it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from leasehub.cli import flags, guards
from leasehub.cli.output import emit
from leasehub.client import acquiring, credentials
from leasehub.client.acquiring import Once
from leasehub.client.failures import Failure, Internal
from leasehub.client.holder import distinct
from leasehub.client.patience import Patience
from leasehub.client.wire import Connection, Members, fresh_key, quoted

# Where agents look for their hooks, here and at home.
SETTINGS = (
    ".claude/settings.json",
    ".claude/settings.local.json",
    "~/.claude/settings.json",
    ".codex/hooks.json",
    ".codex/config.toml",
    "~/.codex/hooks.json",
    "~/.codex/config.toml",
    ".cursor/hooks.json",
    "~/.cursor/hooks.json",
)
HOOK = "leasehub hook pre-tool-use"
ITSELF = [sys.executable, "-c", "import sys; from leasehub.cli import main; sys.exit(main())"]
TTL_SECONDS = 60
LONGEST_SECONDS = 30
# Each takes a lease and two runs of the hook.
MOST_GUARDS = 8


def doctor(arguments: list[str]) -> int:
    given = flags.read("hook doctor", arguments, values=(), switches=("pretty",))
    known = credentials.find()
    checks = [_installed(), _configured(), _guarded(), _blocks(known)]
    is_well = all(check["ok"] for check in checks)
    result: dict[str, object] = {"ok": is_well, "code": "blocks" if is_well else "does_not_block", "checks": checks}
    return emit(result, pretty="pretty" in given)


def _check(name: str, ok: bool, detail: str) -> Members:
    return {"check": name, "ok": ok, "detail": detail}


def _installed() -> Members:
    found = shutil.which("leasehub")
    return _check("installed", found is not None, found or "leasehub is not on the PATH, where agents look for it")


def _configured() -> Members:
    places = [os.path.join(folder, file) for folder in _folders() for file in SETTINGS if not file.startswith("~")]
    places += [os.path.expanduser(file) for file in SETTINGS if file.startswith("~")]
    found = [file for file in dict.fromkeys(places) if _mentions(file)]
    missing = f"no settings of an agent here, above or at home call `{HOOK}`: `leasehub setup` prints what to put there"
    return _check("configured", bool(found), ", ".join(found) or missing)


def _folders() -> list[str]:
    """This one and those above it: agents are at home in the root of a repository."""
    folders = [os.path.realpath(os.getcwd())]
    while (above := os.path.dirname(folders[-1])) != folders[-1]:
        folders.append(above)
    return folders


def _mentions(file: str) -> bool:
    try:
        with open(file, errors="replace") as stream:
            return HOOK in stream.read()
    except OSError:
        return False


def _guarded() -> Members:
    try:
        found = list(guards.above(os.path.realpath(os.getcwd())))
    except Failure as failure:
        return _check("guards", False, str(failure))
    number = sum(len(file.guards) for file in found)
    missing = f"there is no {guards.FILE} here or in a folder above: it says which paths are guarded by what"
    return _check("guards", number > 0, f"{number} in {', '.join(file.file for file in found)}" if found else missing)


def _blocks(known: credentials.Credentials) -> Members:
    """Every guard of here, with a resource made up for it."""
    try:
        files = list(guards.above(os.path.realpath(os.getcwd())))
    except Failure as failure:
        return _check("blocks", False, str(failure))
    own = [(file.holder, guard) for file in files for guard in file.guards]
    if not own:
        own = [(guards.DEFAULT_HOLDER, guards.Guard({"paths": ["**"], "resource": "hook-doctor/any"}, "hook doctor"))]
    connection = Connection(known.url, known.token)
    try:
        for template, guard in own[:MOST_GUARDS]:
            wrong = _fault(connection, known, template, guard)
            if wrong:
                return _check("blocks", False, f"{', '.join(guard.paths)} ({guard.resource}): {wrong}")
    finally:
        connection.close()
    tried = f", tried with {min(len(own), MOST_GUARDS)} of {len(own)} guards"
    return _check("blocks", True, f"another session's edit is denied, the holder's own is not{tried}")


def _fault(connection: Connection, known: credentials.Credentials, template: str, guard: guards.Guard) -> str | None:
    """One session holds a made-up resource; another's edit must be denied, and its own must not."""
    mark = fresh_key()[:12]
    holding, other = f"doctor-{mark}-1", f"doctor-{mark}-2"
    body: Members = {
        "resource_type": "hook-doctor",
        "resource_id": mark,
        "ttl_seconds": guard.ttl_seconds if guard.acquires else TTL_SECONDS,
        "holder": distinct(template.replace("{session}", holding)),
        "reacquire": False,
    }
    try:
        # As the guard's own would be asked for: its name and its time are the server's to take.
        resource = f"resource_type={quoted(guard.resource_type)}&resource_id={quoted(guard.resource_id)}"
        connection.call("GET", f"/v1/leases/status?{resource}")
        answer = acquiring.acquire(Once(connection, "/v1/leases"), body, Patience(0))
    except Failure as failure:
        return f"the server does not take it: {failure}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            only: Members = {
                "paths": guard.paths,
                "resource": f"hook-doctor/{mark}",
                "acquire": guard.acquires,
                "ttl_seconds": guard.ttl_seconds,
            }
            with open(os.path.join(folder, guards.FILE), "w") as stream:
                json.dump({"guards": [only], "holder": template}, stream)
            path = os.path.join(folder, guards.example(guard.paths[0]))
            if not all(guard.covers(guards.example(pattern)) for pattern in guard.paths):
                return "a pattern fits no path"
            denied = _decision(folder, path, other, known)
            undecided = _decision(folder, path, holding, known)
    finally:
        acquiring.release(connection, answer["lease_id"], answer["fencing_token"])
    if denied != "deny":
        return "an edit of a resource that another session holds was not denied"
    if undecided is not None:
        return f"an edit of the session that holds the resource was decided: {undecided}"
    return None


def _decision(folder: str, path: str, session: str, known: credentials.Credentials) -> object:
    """What the hook answers, run as an agent runs it."""
    edit = {"file_path": path, "old_string": "a", "new_string": "b"}
    asked = {
        "session_id": session,
        "cwd": folder,
        "hook_event_name": "PreToolUse",
        "tool_name": "Edit",
        "tool_input": edit,
    }
    installed = shutil.which("leasehub")
    ran = subprocess.run(
        [*([installed] if installed else ITSELF), "hook", "pre-tool-use"],
        input=json.dumps(asked),
        env={**os.environ, "LEASEHUB_URL": known.url, "LEASEHUB_TOKEN": known.token},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    if ran.returncode:
        raise Internal(f"the hook ended with status {ran.returncode}: {ran.stderr.strip()}")
    decision: object = json.loads(ran.stdout).get("hookSpecificOutput", {}).get("permissionDecision")
    return decision
