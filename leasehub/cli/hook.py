"""leasehub hook pre-tool-use|session-start|session-end: what coding agents call, with JSON on stdin.

Each answers with one JSON object within its budget, whatever the server or stdin does, and exits 0: other statuses
mean something of their own to their callers. An edit that is in order gets no decision at all, because to allow it
would skip the questions that the agent's own settings ask.
"""

import _thread
import os
import time

from leasehub.cli import guards
from leasehub.cli.flags import HelpWanted
from leasehub.cli.output import emit, say
from leasehub.client import credentials, jsontext
from leasehub.client.failures import Conflict, LeaseLost, NotFound, Refused, StaleToken, Usage
from leasehub.client.holder import distinct
from leasehub.client.wire import Connection, Members, fresh_key, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUDGET_SECONDS = 1.5
# What starting and ending the process takes.
RESERVE_SECONDS = 0.1
READERS = ("Read", "NotebookRead", "Grep", "Glob", "LS", "WebFetch", "WebSearch")
# The tools that edit files, without their case and underscores: one whose paths cannot be told is in doubt.
EDITORS = ("edit", "write", "multiedit", "notebookedit", "applypatch", "strreplace", "tabwrite", "delete")
# What names a path, unless it is what the file says.
PATHLIKE = ("path", "file", "uri")
CONTENTLIKE = ("content", "text", "string")
PATCHED = ("Update File:", "Add File:", "Delete File:", "Move to:")
MOST_INPUT = 16 * 1024 * 1024
MOST_LEASES = 200
FLAGS = {"--fail": ("open", "closed"), "--agent": ("claude", "codex", "cursor")}
FLAGS_TAKEN = "--fail open or closed and --agent claude, codex or cursor"


def pre_tool_use(arguments: list[str]) -> int:
    return _answer("PreToolUse", arguments, _checked)


def session_start(arguments: list[str]) -> int:
    return _answer("SessionStart", arguments, _introduced)


def session_end(arguments: list[str]) -> int:
    return _answer("SessionEnd", arguments, _ended)


class Call:
    """What the agent asks, and how to speak to the server while there is time."""

    def __init__(self, given: Members, deadline: float) -> None:
        self.given = given
        self.deadline = deadline
        self.session = str(given.get("session_id") or given.get("conversation_id") or "")
        if not self.session:
            raise Usage("the hook's input names no session")
        self.folder = str(given.get("cwd") or os.getcwd())
        self._connection: Connection | None = None

    def holder(self, template: str) -> str:
        return distinct(template.replace("{session}", self.session))

    def ask(self, method: str, path: str, body: object = None) -> Members:
        if self._connection is None:
            known = credentials.find()
            self._connection = Connection(known.url, known.token)
        self._connection.timeout = max(0.05, self.deadline - time.monotonic())
        return self._connection.call(method, path, body, key=fresh_key() if method == "POST" else None, attempts=1)


def _answer(event: str, arguments: list[str], decide: "Callable[[Call], Members]") -> int:
    """Writes the answer; of the decision in time, else of what --fail says."""
    if "--help" in arguments or "-h" in arguments:
        raise HelpWanted
    deadline = time.monotonic() + BUDGET_SECONDS - RESERVE_SECONDS
    decided: list[Members] = []
    asked: Members = {}
    done = _thread.allocate_lock()
    done.acquire()

    def work() -> None:
        try:
            asked.update(_asked())
            # Whoever is to mend the flags must still be able to read.
            if asked.get("tool_name") not in READERS:
                _check_flags(arguments)
            decided.append(decide(Call(asked, deadline)))
        except BaseException as failure:
            decided.append({"failure": f"{failure}" or type(failure).__name__})
        finally:
            done.release()

    # A thread, because neither stdin nor the look-up of a host's address can be given a time.
    _thread.start_new_thread(work, ())
    in_time = done.acquire(timeout=max(0.05, deadline - time.monotonic()))
    answer = decided[0] if in_time else {"failure": f"no answer within {BUDGET_SECONDS:g} s"}
    if "failure" in answer:
        answer = _failed(event, str(answer["failure"]), is_closed=_is_closed(arguments))
    # What could not be read names no event, so the flag says it too.
    camel = "cursor" in "".join(arguments) or str(asked.get("hook_event_name", ""))[:1].islower()
    emit(_worded(event, answer, camel=camel))
    # Whatever the thread still waits for, it is not waited for here.
    os._exit(0)


def _is_closed(arguments: list[str]) -> bool:
    try:
        _check_flags(arguments)
    except Usage:
        # Perhaps closed was what it was to be: an agent whose hook says nothing but a note goes on for ever.
        return True
    return "closed" in "".join(arguments)


def _check_flags(arguments: list[str]) -> None:
    words = [word for argument in arguments for word in argument.split("=", 1)]
    for name, value in zip(words[::2], [*words[1::2], ""], strict=False):
        if value not in FLAGS.get(name, ()):
            raise Usage(f"a hook takes {FLAGS_TAKEN}, not {' '.join(arguments)!r}: correct the agent's settings")


def _asked() -> Members:
    received, size = [], 0
    while part := os.read(0, 1 << 20):
        size += len(part)
        if size > MOST_INPUT:
            raise Usage(f"the hook's input is longer than {MOST_INPUT} bytes")
        received.append(part)
    try:
        asked = jsontext.parse(b"".join(received).decode())
    except ValueError as error:
        raise Usage(f"the hook's input is not JSON: {error}") from None
    if not isinstance(asked, dict):
        raise Usage("the hook's input is not a JSON object")
    return asked


def _failed(event: str, reason: str, *, is_closed: bool) -> Members:
    say(f"hook: {reason}")
    if event == "PreToolUse" and is_closed:
        return {"deny": f"LeaseHub could not be asked whether this edit is in order, so it is not made: {reason}"}
    return {"note": f"LeaseHub could not be asked: {reason}"}


def _worded(event: str, answer: Members, *, camel: bool) -> Members:
    """In the words of the agent: those that name their events in camelCase take another form."""
    if "deny" in answer:
        if camel:
            return {"permission": "deny", "user_message": answer["deny"], "agent_message": answer["deny"]}
        decision = {"permissionDecision": "deny", "permissionDecisionReason": answer["deny"]}
        return {"hookSpecificOutput": {"hookEventName": event, **decision}}
    if "context" in answer:
        if camel:
            return {"additional_context": answer["context"]}
        return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": answer["context"]}}
    if "note" in answer and not camel:
        return {"systemMessage": answer["note"]}
    if "note" in answer and event == "PreToolUse":
        return {"user_message": answer["note"], "agent_message": answer["note"]}
    if "note" in answer and event == "SessionStart":
        return {"additional_context": answer["note"]}
    return {}


def _checked(call: Call) -> Members:
    tool, given = call.given.get("tool_name"), call.given.get("tool_input")
    if tool in READERS:
        return {}
    paths, is_plain = edited(given)
    is_edit = not isinstance(tool, str) or tool.replace("_", "").lower() in EDITORS
    if is_edit and not (paths and is_plain):
        raise Usage(f"which files the tool {tool!r} is about to edit cannot be read from its input")
    notes: list[str] = []
    for path in paths:
        for found, guard in guards.guarding(path, call.folder):
            answer = _check(call, path, guard, call.holder(found.holder))
            if "deny" in answer:
                return answer
            notes += answer.values()
    return {"note": " ".join(notes)} if notes else {}


def edited(given: object) -> tuple[list[str], bool]:
    """The paths that a tool is about to write to, wherever in its input, and whether there is nothing but text where
    paths are expected."""
    paths: dict[str, None] = {}
    is_plain = True
    left: list[tuple[object, bool]] = [(given, False)]
    while left:
        value, is_path = left.pop()
        if isinstance(value, dict):
            left += [(inner, is_path or _names_a_path(name)) for name, inner in reversed(value.items())]
        elif isinstance(value, list):
            left += [(inner, is_path) for inner in reversed(value)]
        elif isinstance(value, str):
            if is_path and value:
                paths[value.removeprefix("file://")] = None
            if "***" in value:
                paths.update(dict.fromkeys(_patched(value)))
        elif is_path and value is not None and not isinstance(value, bool):
            is_plain = False
    return list(paths), is_plain


def _names_a_path(member: str) -> bool:
    name = member.lower()
    return any(part in name for part in PATHLIKE) and not any(part in name for part in CONTENTLIKE)


def _patched(text: str) -> "Iterator[str]":
    # Whoever applies a patch does not mind blanks around its headers.
    for line in [*text.split("\n"), *text.splitlines()]:
        mark, stars, header = line.strip().partition("***")
        if stars and not mark:
            for verb in PATCHED:
                path = header.strip().removeprefix(verb).strip()
                if header.strip().startswith(verb) and path:
                    yield path


def _check(call: Call, path: str, guard: guards.Guard, holder: str) -> Members:
    resource = f"resource_type={quoted(guard.resource_type)}&resource_id={quoted(guard.resource_id)}"
    view = call.ask("GET", f"/v1/leases/status?{resource}")
    if view["state"] == "held" and view["mine"] and view["holder"] == holder:
        if view["expires_in_ms"] > view["ttl_seconds"] * 500 or _renewed(call, view):
            return {}
    elif view["state"] == "held":
        return {"deny": _taken(path, guard, view)}
    if not guard.acquires:
        return {"deny": _not_held(path, guard, holder)}
    return _acquired(call, path, guard, holder)


def _renewed(call: Call, view: Members) -> bool:
    """An edit is a sign of life."""
    try:
        call.ask("POST", f"/v1/leases/{view['lease_id']}/heartbeat", {"fencing_token": view["fencing_token"]})
    except (LeaseLost, StaleToken, NotFound):
        return False
    return True


def _acquired(call: Call, path: str, guard: guards.Guard, holder: str) -> Members:
    body = {
        "resource_type": guard.resource_type,
        "resource_id": guard.resource_id,
        "ttl_seconds": guard.ttl_seconds,
        "holder": holder,
        "purpose": "edits of an agent's session",
        "reacquire": False,
    }
    try:
        answer = call.ask("POST", "/v1/leases", body)
    except Conflict as held:
        # Another hook of this session was quicker.
        if held.held_by_self:
            return {}
        return {"deny": _taken(path, guard, {"expires_at": held.expires_at, "expires_in_ms": held.retry_after_ms})}
    if answer["took_over_expired"]:
        return {"note": f"{guard.resource} was taken over from a lease that ran out: look for work left half done."}
    return {}


def _taken(path: str, guard: guards.Guard, view: Members) -> str:
    by = f"{view['principal']} ({view['holder']})" if view.get("holder") else "another"
    until = ""
    if view.get("expires_at"):
        until = f" until {view['expires_at']}, {(view.get('expires_in_ms') or 0) / 1000:.0f} s from now"
    return (
        f"{path} is guarded by the resource {guard.resource}, which is held by {by}{until}, or longer if it is renewed."
        f" Leave the file alone, do something else meanwhile, and try again later; do not write to it in another way."
    )


def _not_held(path: str, guard: guards.Guard, holder: str) -> str:
    return (
        f"{path} is guarded by the resource {guard.resource}, which this session does not hold. Acquire it first:"
        f" lease_acquire with resource_type {guard.resource_type!r}, resource_id {guard.resource_id!r} and"
        f" holder {holder!r}; then try again. Do not write to the file in another way."
    )


def _introduced(call: Call) -> Members:
    """What the session is told at its start: who it is, what is guarded, what waits for it."""
    lines = []
    for found in guards.above(os.path.realpath(call.folder)):
        holder = call.holder(found.holder)
        _export_owner(holder)
        for guard in found.guards:
            how = "it is acquired when you edit one" if guard.acquires else "acquire it before you edit one"
            lines.append(f"- {', '.join(guard.paths)} below {found.folder}: {guard.resource}, holder {holder}; {how}")
    text = ["LeaseHub guards these paths: who edits one must hold its resource.", *lines] if lines else []
    waiting = call.ask("GET", f"/v1/handoffs?limit={MOST_LEASES}")["handoffs"]
    if waiting:
        text.append(f"{len(waiting)} handed over to you in LeaseHub: handoff_inbox shows what and by whom.")
    return {"context": "\n".join(text)} if text else {}


def _export_owner(holder: str) -> None:
    """The commands of the session then act as the same holder."""
    file = os.environ.get("CLAUDE_ENV_FILE", "")
    if file:
        with open(file, "a") as stream:
            stream.write(f"export LEASE_OWNER='{holder}'\n")


def _ended(call: Call) -> Members:
    """Gives back what the session holds."""
    holders = {call.holder(found.holder) for found in guards.above(os.path.realpath(call.folder))}
    for holder in sorted(holders):
        held = call.ask("GET", f"/v1/leases?holder={quoted(holder)}&state=held&limit={MOST_LEASES}")["leases"]
        for lease in held:
            if lease["mine"] and lease["resource_type"] not in ("task", "slot"):
                try:
                    call.ask("DELETE", f"/v1/leases/{lease['lease_id']}?fencing_token={lease['fencing_token']}")
                except Refused as refused:
                    say(f"hook: {lease['resource_type']}/{lease['resource_id']}: {refused}")
    return {}
