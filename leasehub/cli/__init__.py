"""The command line: standard library only, never Django. At its top it imports nothing but sys, since a whole
heartbeat, from start to exit, should cost little more than starting Python does."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehub.client.failures import Failure

# Verb -> where its function is; a function takes the arguments after the verb and returns the exit status.
VERBS = {
    "lease acquire": ("lease", "acquire"),
    "lease heartbeat": ("lease", "heartbeat"),
    "lease release": ("lease", "release"),
    "lease status": ("lease", "status"),
    "lease reap": ("sweep", "reap"),
    "lease list": ("sweep", "list_leases"),
    "lease reconcile": ("sweep", "reconcile"),
    "task put": ("task", "put"),
    "task claim": ("task", "claim"),
    "task heartbeat": ("task", "heartbeat"),
    "task complete": ("task", "complete"),
    "task fail": ("task", "fail"),
    "task return": ("task", "return_task"),
    "task show": ("task", "show"),
    "task retry": ("task", "retry"),
    "queue status": ("task", "queue_status"),
    "pool acquire": ("pool", "acquire"),
    "pool request": ("pool", "request"),
    "pool claim": ("pool", "claim"),
    "pool cancel": ("pool", "cancel"),
    "pool heartbeat": ("pool", "heartbeat"),
    "pool release": ("pool", "release"),
    "pool reset": ("pool", "reset"),
    "pool reprovision": ("pooladmin", "reprovision"),
    "pool health": ("pooladmin", "health"),
    "pool status": ("pooladmin", "status"),
    "pool pump": ("pooladmin", "pump"),
    "pool apply": ("pooladmin", "apply"),
    "pool drain": ("pooladmin", "drain"),
    "pool undrain": ("pooladmin", "undrain"),
    "pool repair": ("pooladmin", "repair"),
    "handoff send": ("handoff", "send"),
    "handoff inbox": ("handoff", "inbox"),
    "handoff show": ("handoff", "show"),
    "handoff accept": ("handoff", "accept"),
    "handoff reject": ("handoff", "reject"),
    "handoff withdraw": ("handoff", "withdraw"),
    "handoff complete": ("handoff", "complete"),
    "checkpoint save": ("checkpoint", "save"),
    "checkpoint get": ("checkpoint", "get"),
    "events list": ("events", "list_events"),
    "events tail": ("events", "tail"),
    "webhook create": ("webhook", "create"),
    "webhook list": ("webhook", "list_webhooks"),
    "webhook show": ("webhook", "show"),
    "webhook delete": ("webhook", "delete"),
    "webhook pause": ("webhook", "pause"),
    "webhook resume": ("webhook", "resume"),
    "webhook rotate": ("webhook", "rotate"),
    "webhook test": ("webhook", "test"),
    "webhook deliveries": ("webhook", "deliveries"),
    "webhook replay": ("webhook", "replay"),
    "explain": ("explain", "explain"),
    "key create": ("key", "create"),
    "key list": ("key", "list_keys"),
    "key revoke": ("key", "revoke"),
    "key rotate": ("key", "rotate"),
    "org create": ("organization", "create"),
    "whoami": ("key", "whoami"),
    "doctor": ("doctor", "doctor"),
    "version": ("version", "version"),
    "run": ("run", "run"),
    "work": ("work", "work"),
    "mcp-stdio": ("bridge", "serve"),
    "up": ("up", "up"),
    "worker": ("worker", "worker"),
    "hook pre-tool-use": ("hook", "pre_tool_use"),
    "hook session-start": ("hook", "session_start"),
    "hook session-end": ("hook", "session_end"),
    "hook doctor": ("hookdoctor", "doctor"),
    "setup": ("setup", "setup"),
}
# A shell reads their stdout when they are given --shell.
WITH_SHELL = ("pool acquire", "pool request", "pool claim")


def main(arguments: list[str] | None = None) -> int:
    verb, rest = _resolve(sys.argv[1:] if arguments is None else arguments)
    from leasehub.cli.flags import HelpWanted
    from leasehub.client.failures import Failure

    try:
        return _function(verb, rest)(rest)
    except HelpWanted:
        return _help(verb)
    except Failure as failure:
        return _fail(verb, failure, rest)
    except KeyboardInterrupt:
        from leasehub.cli.signals import SIGINT, EndedBySignal

        return _fail(verb, EndedBySignal(SIGINT), rest)
    except Exception as fault:
        import traceback

        from leasehub.client.failures import Internal

        traceback.print_exception(fault)
        return _fail(verb, Internal(f"{type(fault).__name__}: {fault}"), rest)


def _resolve(given: list[str]) -> tuple[str, list[str]]:
    both = " ".join(given[:2])
    if both in VERBS:
        return both, given[2:]
    return (given[0] if given else ""), given[1:]


def _function(verb: str, rest: list[str]) -> "Callable[[list[str]], int]":
    if verb in VERBS:
        module, name = VERBS[verb]
        # importlib would be one import more.
        function: Callable[[list[str]], int] = getattr(__import__(f"leasehub.cli.{module}", fromlist=[name]), name)
        return function
    from leasehub.cli.flags import HelpWanted
    from leasehub.client.failures import Usage

    group = [known for known in VERBS if known.startswith(f"{verb} ")]
    if verb in ("help", "--help", "-h") or (group and rest[:1] in (["--help"], ["-h"])):
        raise HelpWanted
    if verb == "--version":
        return _function("version", rest)
    from leasehub.cli import advice

    raise Usage(advice.no_such_verb(verb, rest, VERBS))


def _help(verb: str) -> int:
    from leasehub.cli import usage
    from leasehub.cli.output import emit, tell

    tell(usage.text(verb))
    return emit({"ok": True, "code": "help"})


def _fail(verb: str, failure: "Failure", rest: list[str]) -> int:
    from leasehub.cli import advice, usage
    from leasehub.cli.output import emit, say

    message = advice.on(verb, rest, failure)
    say(message)
    if failure.code == "usage":
        say(usage.line(verb))
    # What is behind -- are the flags of another command.
    own = rest[: rest.index("--")] if "--" in rest else rest
    # A shell would run what it finds on stdout.
    if verb not in WITH_SHELL or not any(argument.partition("=")[0] == "--shell" for argument in own):
        result = {"ok": False, "code": failure.code, "message": message, **failure.fields}
        emit(result, pretty="--pretty" in own)
    return failure.exit_status
