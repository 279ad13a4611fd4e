"""leasehub setup claude|codex|cursor: the configuration that connects an agent, printed or merged into its files.

No secret goes into a file: the token is read from the environment of the agent, or by `leasehub` itself.
"""

import json
import os
import re
import shlex
import tempfile
import tomllib
from collections.abc import Callable

from leasehub.cli import flags, guards
from leasehub.cli.output import emit, say, tell
from leasehub.client import credentials
from leasehub.client.failures import Usage
from leasehub.client.wire import Connection, Members

URL = "LEASEHUB_URL"
SECRET = re.compile(r"lh_[A-Za-z0-9]{4,16}_[A-Za-z0-9_-]{16,}")
TOKEN = "LEASEHUB_TOKEN"
# What a server is reached by in one way, and not in the other.
HTTP = ("type", "url", "headers")
STDIO = ("command", "args", "env")
# The same of Codex.
CODEX = ("url", "bearer_token_env_var", "command", "args", "env_vars")
HOOK_SECONDS = 5

EXAMPLE = '{"guards": [{"paths": ["migrations/**"], "resource": "schema/main", "acquire": true}]}'

Document = dict[str, object]


class Wanted:
    """What was asked for on the command line."""

    def __init__(self, agent: str, url: str, *, is_stdio: bool, fail: str | None) -> None:
        self.agent = agent
        self.url = f"{url}/mcp"
        self.is_stdio = is_stdio
        self.fail = fail

    def server(self, token: str, **more: str) -> Document:
        if self.is_stdio:
            return {"command": "leasehub", "args": ["mcp-stdio"]}
        return {**more, "url": self.url, "headers": {"Authorization": f"Bearer {token}"}}

    def hook(self, verb: str) -> str:
        agent = f" --agent {self.agent}" if self.agent == "cursor" else ""
        return f"leasehub hook {verb}{agent}"


def setup(arguments: list[str]) -> int:
    given, rest = flags.split("setup", arguments, values=("url", "transport", "fail"), switches=("write", "pretty"))
    if len(rest) != 1 or rest[0] not in AGENTS:
        raise Usage(f"setup takes one of: {', '.join(AGENTS)}")
    transport, fail = given.get("transport", "http"), given.get("fail")
    if transport not in ("http", "stdio"):
        raise Usage(f"--transport must be http or stdio, not {transport!r}")
    if fail not in ("open", "closed", None):
        raise Usage(f"--fail must be open or closed, not {fail!r}")
    known = None if "url" in given else credentials.find()
    url = given["url"].rstrip("/") if known is None else known.url
    # It goes into files, and a password in it would too.
    Connection(url, None)
    wanted = Wanted(rest[0], url, is_stdio=transport == "stdio", fail=fail)
    files = {file: merge(file, wanted) for file, merge in AGENTS[rest[0]].items()}
    for file, (_, after) in files.items():
        _refuse_secrets(file, after, known)
    if "write" in given:
        for file, (before, after) in files.items():
            if before != after:
                _write(file, after)
    else:
        for file, (_, after) in files.items():
            tell(f"# {file}\n{after}")
    if transport == "http" or known is None or known.source == f"{URL} and {TOKEN}":
        say("the agent and its hooks need this in the environment that the agent is started from, with its own key:")
        tell(f"export {URL}={shlex.quote(url)} {TOKEN}=lh_…")
    if guards.nearest(os.getcwd()) is None:
        say(f"nothing is guarded yet: put this into {guards.FILE}, with paths and a resource of your own:")
        tell(EXAMPLE)
    result: dict[str, object] = {
        "ok": True,
        "code": "written" if "write" in given else "printed",
        "agent": rest[0],
        "files": [
            {"file": file, "state": _state(before, after), "content": after} for file, (before, after) in files.items()
        ],
    }
    return emit(result, pretty="pretty" in given)


def _state(before: str | None, after: str) -> str:
    if before is None:
        return "new"
    return "unchanged" if before == after else "changed"


def _refuse_secrets(file: str, text: str, known: credentials.Credentials | None) -> None:
    if SECRET.search(text) or (known is not None and known.token in text):
        raise Usage(f"{file} would have an API key in it, which does not belong into a file: put it into {TOKEN}")


def _claude_servers(file: str, wanted: Wanted) -> tuple[str | None, str]:
    return _merged(file, lambda found: _add_server(file, found, wanted.server(f"${{{TOKEN}}}", type="http")))


def _cursor_servers(file: str, wanted: Wanted) -> tuple[str | None, str]:
    return _merged(file, lambda found: _add_server(file, found, wanted.server(f"${{env:{TOKEN}}}")))


def _claude_hooks(file: str, wanted: Wanted) -> tuple[str | None, str]:
    return _merged(file, lambda found: _add_groups(found, wanted, "Edit|Write|MultiEdit|NotebookEdit", "SessionEnd"))


def _codex_hooks(file: str, wanted: Wanted) -> tuple[str | None, str]:
    # It has no end of a session: the leases run out.
    return _merged(file, lambda found: _add_groups(found, wanted, "apply_patch|Edit|Write"))


def _cursor_hooks(file: str, wanted: Wanted) -> tuple[str | None, str]:
    def add(found: Document) -> None:
        found.setdefault("version", 1)
        hooks = _object(found, "hooks", file)
        edits = "Write|Edit|StrReplace|TabWrite|Delete"
        _add_hook(_array(hooks, "preToolUse", file), wanted, "pre-tool-use", matcher=edits)
        _add_hook(_array(hooks, "sessionStart", file), wanted, "session-start")
        _add_hook(_array(hooks, "sessionEnd", file), wanted, "session-end")

    return _merged(file, add)


def _codex_servers(file: str, wanted: Wanted) -> tuple[str | None, str]:
    """TOML is added to at its end, since nothing here could write it again with its comments. Of a table of our own,
    just as it was written, the lines are changed."""
    server: Document = (
        # It starts what it is told to with hardly any environment but what is named.
        {"command": "leasehub", "args": ["mcp-stdio"], "env_vars": [URL, TOKEN]}
        if wanted.is_stdio
        else {"url": wanted.url, "bearer_token_env_var": TOKEN}
    )
    lines = [f"{name} = {json.dumps(value)}" for name, value in server.items()]
    table = "\n".join(["[mcp_servers.leasehub]", *lines]) + "\n"
    before = _read(file)
    found = _toml(file, before or "")
    servers = found.get("mcp_servers", {})
    there = servers.get("leasehub") if isinstance(servers, dict) else None
    if there is None:
        after = f"{before.rstrip(chr(10))}\n\n{table}" if before and before.strip() else table
    elif isinstance(there, dict) and server.items() <= there.items():
        return before, before or ""
    else:
        after = _changed_table(before or "", lines) if _is_ours(there) else ""
        kept = {name: value for name, value in there.items() if name not in CODEX} if isinstance(there, dict) else {}
        wanted_servers = {**servers, "leasehub": {**kept, **server}}
        if not after or _toml(file, after) != {**found, "mcp_servers": wanted_servers}:
            raise Usage(f"{file} has another [mcp_servers.leasehub] already; make it this one by hand:\n{table}")
    _toml(file, after)
    return before, after


def _changed_table(text: str, lines: list[str]) -> str:
    """The text with these lines in our table instead of those that stand for the same."""
    head, found, rest = text.partition("[mcp_servers.leasehub]\n")
    own, bracket, others = rest.partition("\n[")
    kept = [line for line in own.split("\n") if line.partition("=")[0].strip() not in CODEX]
    return head + found + "\n".join([*lines, *kept]) + bracket + others if found else ""


AGENTS: dict[str, dict[str, Callable[[str, Wanted], tuple[str | None, str]]]] = {
    "claude": {".mcp.json": _claude_servers, ".claude/settings.json": _claude_hooks},
    "codex": {".codex/config.toml": _codex_servers, ".codex/hooks.json": _codex_hooks},
    "cursor": {".cursor/mcp.json": _cursor_servers, ".cursor/hooks.json": _cursor_hooks},
}


def _add_server(file: str, found: Document, server: Document) -> None:
    servers = _object(found, "mcpServers", file)
    there = servers.get("leasehub")
    leads_here = isinstance(there, dict) and "url" in server and there.get("url") == server["url"]
    if there is not None and not leads_here and not _is_ours(there):
        example = json.dumps({"leasehub": server}, indent=2)
        raise Usage(f"{file} has another server named leasehub already; make it this one by hand:\n{example}")
    others = STDIO if "url" in server else HTTP
    kept = {name: value for name, value in there.items() if name not in others} if isinstance(there, dict) else {}
    servers["leasehub"] = {**kept, **server}


def _is_ours(server: object) -> bool:
    """Whether it leads to a LeaseHub: it starts `leasehub mcp-stdio`, or has an address in /mcp and a key of ours."""
    if not isinstance(server, dict):
        return False
    if "url" not in server:
        args = server.get("args")
        is_bridge = isinstance(args, list) and args[:1] == ["mcp-stdio"]
        return is_bridge and os.path.basename(str(server.get("command"))) == "leasehub"
    headers = server.get("headers")
    key = str(headers.get("Authorization")) if isinstance(headers, dict) else str(server.get("bearer_token_env_var"))
    return str(server["url"]).endswith("/mcp") and (TOKEN in key or SECRET.search(key) is not None)


def _add_groups(found: Document, wanted: Wanted, edits: str, end: str | None = None) -> None:
    hooks = _object(found, "hooks", "the file")
    _add_group(_array(hooks, "PreToolUse", "the file"), wanted, "pre-tool-use", edits)
    _add_group(_array(hooks, "SessionStart", "the file"), wanted, "session-start")
    if end is not None:
        _add_group(_array(hooks, end, "the file"), wanted, "session-end")


def _add_group(groups: list[object], wanted: Wanted, verb: str, matcher: str | None = None) -> None:
    for group in groups:
        inner = group.get("hooks") if isinstance(group, dict) else None
        if isinstance(inner, list) and _renew(inner, wanted, verb):
            return
    hook: Document = {"type": "command", "command": _command(wanted, verb), "timeout": HOOK_SECONDS}
    groups.append({**({} if matcher is None else {"matcher": matcher}), "hooks": [hook]})


def _add_hook(hooks: list[object], wanted: Wanted, verb: str, **more: object) -> None:
    if not _renew(hooks, wanted, verb):
        hooks.append({"command": _command(wanted, verb), **more})


def _renew(hooks: list[object], wanted: Wanted, verb: str) -> bool:
    """Whether it was there, perhaps with other flags."""
    for hook in hooks:
        command = str(hook.get("command", "")) if isinstance(hook, dict) else ""
        if isinstance(hook, dict) and command.partition(" --")[0] == f"leasehub hook {verb}":
            hook["command"] = _command(wanted, verb, before=command)
            return True
    return False


def _command(wanted: Wanted, verb: str, before: str = "") -> str:
    """With the --fail that was asked for, or else that was there."""
    if verb != "pre-tool-use":
        return wanted.hook(verb)
    fail = wanted.fail or ("closed" if re.search("--fail[= ]closed", before) else "open")
    return f"{wanted.hook(verb)} --fail {fail}"


def _object(found: Document, name: str, where: str) -> Document:
    value = found.setdefault(name, {})
    if not isinstance(value, dict):
        raise Usage(f'{where} has a "{name}" that is not an object')
    return value


def _array(found: Document, name: str, where: str) -> list[object]:
    value = found.setdefault(name, [])
    if not isinstance(value, list):
        raise Usage(f'{where} has a "{name}" that is not a list')
    return value


def _merged(file: str, add: Callable[[Document], None]) -> tuple[str | None, str]:
    """What is in the file, and what is to be: all of it, and what is added."""
    before = _read(file)
    try:
        found = json.loads(before) if before and before.strip() else {}
    except ValueError as error:
        raise Usage(f"{file} is left alone, since it is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise Usage(f"{file} is left alone, since it is not a JSON object")
    was = json.dumps(found)
    add(found)
    if before is not None and json.dumps(found) == was:
        return before, before
    return before, json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _toml(file: str, text: str) -> Members:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Usage(f"{file} is left alone, since it is, or would be, no valid TOML: {error}") from None


def _read(file: str) -> str | None:
    try:
        with open(file, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Usage(f"cannot read {file}: {error}") from None


def _write(file: str, text: str) -> None:
    """All of it or nothing, where a link points to and with the mode that it has."""
    place = os.path.realpath(file)
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        mode = os.stat(place).st_mode & 0o777 if os.path.exists(place) else 0o644
        descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(place), prefix=".leasehub-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            os.fchmod(descriptor, mode)
            stream.write(text)
        os.replace(temporary, place)
    except OSError as error:
        raise Usage(f"cannot write {file}: {error}") from None
