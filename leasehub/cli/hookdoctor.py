"""leasehub hook doctor: proves that the hook blocks, with a lease and an edit made up for it."""

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
from leasehub.client.holder import fitting
from leasehub.client.patience import Patience
from leasehub.client.wire import Connection, Members, fresh_key

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
    found = [file for file in SETTINGS if _mentions(os.path.expanduser(file))]
    missing = f"no settings of an agent here or at home call `{HOOK}`: `leasehub setup` prints what to put there"
    return _check("configured", bool(found), ", ".join(found) or missing)


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
    where = ", ".join(file.file for file in found) or f"there is no {guards.FILE} here or in a folder above"
    return _check("guards", number > 0, f"{number} in {where}" if found else where)


def _blocks(known: credentials.Credentials) -> Members:
    """One session holds a made-up resource; another's edit must be denied, and its own must not."""
    template = _template()
    mark = fresh_key()[:12]
    holding, other = f"doctor-{mark}-1", f"doctor-{mark}-2"
    connection = Connection(known.url, known.token)
    body: Members = {
        "resource_type": "hook-doctor",
        "resource_id": mark,
        "ttl_seconds": TTL_SECONDS,
        "holder": fitting(template.replace("{session}", holding)),
        "reacquire": False,
    }
    answer = acquiring.acquire(Once(connection, "/v1/leases"), body, Patience(0))
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = {"guards": [{"paths": ["**"], "resource": f"hook-doctor/{mark}"}], "holder": template}
            with open(os.path.join(folder, guards.FILE), "w") as stream:
                json.dump(file, stream)
            denied = _decision(folder, other, known)
            undecided = _decision(folder, holding, known)
    finally:
        acquiring.release(connection, answer["lease_id"], answer["fencing_token"])
        connection.close()
    if denied != "deny":
        return _check("blocks", False, "an edit of a resource that another session holds was not denied")
    if undecided is not None:
        return _check("blocks", False, f"an edit of the session that holds the resource was decided: {undecided}")
    return _check("blocks", True, "another session's edit is denied, the holder's own is not")


def _template() -> str:
    try:
        found = next(guards.above(os.path.realpath(os.getcwd())), None)
    except Failure:
        found = None
    return guards.DEFAULT_HOLDER if found is None else found.holder


def _decision(folder: str, session: str, known: credentials.Credentials) -> object:
    """What the hook answers, run as an agent runs it."""
    edit = {"file_path": os.path.join(folder, "file"), "old_string": "a", "new_string": "b"}
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
