"""leasehub doctor: what the server says of itself, and what can be seen from here alone."""

import time

from leasehub.cli import flags
from leasehub.cli.output import emit, tell
from leasehub.client import credentials
from leasehub.client.failures import Unreachable
from leasehub.client.wire import Connection, Members

#: Seconds; beyond them: a warning, a failure.
CLOCK_APART = (2.0, 60.0)
SLOW_ANSWER = (1.0, 5.0)
WITHOUT_A_SERVER = "when it does not start, ask its database: python manage.py doctor (see docs/operations.md)"


def doctor(arguments: list[str]) -> int:
    given = flags.read("doctor", arguments, values=(), switches=("pretty",))
    known = credentials.find()
    server = Connection(known.url, known.token)
    try:
        server.call("GET", "/v1/whoami")
        before = time.time()
        answer = server.call("GET", "/v1/doctor")
        after = time.time()
    except Unreachable as lost:
        raise Unreachable(f"{lost}; {WITHOUT_A_SERVER}", sent=False) from None
    checks: list[Members] = [*_from_here(known, answer, before, after), *answer["checks"]]
    for check in checks:
        todo = f" -> {check['todo']}" if check["todo"] else ""
        tell(f"{check['status']:4} {check['check']}: {check['message']}{todo}")
    is_well = all(check["status"] != "fail" for check in checks)
    result: Members = {"ok": is_well, "code": "healthy" if is_well else "unhealthy"}
    result.update(answer, status=_worst(checks), url=known.url, credentials=known.source, checks=checks)
    return emit(result, pretty="pretty" in given)


def _from_here(known: credentials.Credentials, answer: Members, before: float, after: float) -> list[Members]:
    from datetime import datetime

    took = after - before
    theirs = datetime.fromisoformat(str(answer["at"]).replace("Z", "+00:00")).timestamp()
    # The server's clock stood so somewhere between the two: no less apart than to the nearer one.
    apart = theirs - after if theirs > after else min(0.0, theirs - before)
    return [
        _judged("server", took, SLOW_ANSWER, f"{known.url} answers ({took:.2f} s for all of this)",
                "See the network, and the load of the server and its database."),
        _judged("clock_of_client", abs(apart), CLOCK_APART, f"{apart:+.1f} s against this machine's",
                "Nothing depends on it but times as they are shown: run NTP on both."),
    ]  # fmt: skip


def _judged(check: str, seconds: float, limits: tuple[float, float], message: str, todo: str) -> Members:
    status = "fail" if seconds >= limits[1] else "warn" if seconds >= limits[0] else "ok"
    return {"check": check, "status": status, "message": message, "todo": "" if status == "ok" else todo}


def _worst(checks: list[Members]) -> str:
    found = {check["status"] for check in checks}
    return next(status for status in ("fail", "warn", "ok") if status in found)
