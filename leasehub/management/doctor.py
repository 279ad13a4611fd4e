"""leasehub doctor, manage.py doctor: is the server well, and what to do where it is not."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.core import checks as django_checks
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from leasehub import __version__
from leasehub.db import checks, clock
from leasehub.management import gauges
from leasehub.management.gauges import Figures
from pools.models import Pool
from pools.poolfile import Declaration
from pools.queries import is_served

OK, WARN, FAIL = "ok", "warn", "fail"
GIB = 2**30

#: (warn from, fail from) in seconds.
BEAT_AGE = (45.0, 300.0)
WORKER_AGE = (20.0, 300.0)
CLOCK_APART = (2.0, 30.0)
SLOW_ANSWER = (0.25, 2.0)
UNNUMBERED_AGE = (15.0, 300.0)
OVERDUE = (30.0, 600.0)
WEBHOOKS_LATE = (300.0, 6 * 3600.0)
OPEN_TRANSACTION = (60.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    check: str
    #: ok, warn or fail
    status: str
    message: str
    #: What to do; empty when all is well.
    todo: str = ""


def examine(*, organization: int | None = None) -> list[Verdict]:
    """Everything that can be asked from inside. For a tenant's operator, of pools and the workers that serve them its
    own alone are named."""
    examined = list(_guarded(database))
    if examined[0].status != FAIL:
        examined += _guarded(migrations)
    # Of the process and its machine, whatever the database says.
    examined += [*_guarded(configuration), *_guarded(disk)]
    if any(verdict.status == FAIL for verdict in examined if verdict.check in ("database", "migrations")):
        # Nothing else can be asked.
        return examined
    for ask in (clocks, dialect, beat, feed, reaper, webhooks):
        examined += _guarded(ask)
    examined += _guarded(lambda: workers(organization), name="workers")
    return [*examined, *_guarded(lambda: commands(organization), name="pool_workers")]


def document(verdicts: list[Verdict]) -> dict[str, Any]:
    return {
        "status": worst(verdicts),
        "version": __version__,
        "at": clock.iso(datetime.now(tz=UTC)),
        "checks": [asdict(verdict) for verdict in verdicts],
    }


def worst(verdicts: list[Verdict]) -> str:
    found = {verdict.status for verdict in verdicts}
    return FAIL if FAIL in found else WARN if WARN in found else OK


def _guarded(ask: Callable[[], Iterator[Verdict]], *, name: str = "") -> Iterator[Verdict]:
    """A question that fails is an answer, too."""
    try:
        yield from ask()
    except (DatabaseError, OSError) as error:
        name = name or ask.__name__
        said = " ".join(str(error).split())[:200]
        yield Verdict(name, FAIL, f"Cannot be asked: {said}", "See the server's log; is the database up and migrated?")


def database() -> Iterator[Verdict]:
    began = time.perf_counter()
    with connection.cursor() as cursor:
        cursor.execute("SELECT leasehub_now()")
    seconds = time.perf_counter() - began
    message = f"{connection.vendor} answers in {seconds * 1000:.1f} ms"
    yield judged("database", seconds, SLOW_ANSWER, message, "See its load, and the network between it and this server.")


def migrations() -> Iterator[Verdict]:
    executor = MigrationExecutor(connection)
    missing = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
    if missing:
        yield Verdict("migrations", FAIL, f"{missing} are missing", "Restart `leasehub up`, or run manage.py migrate.")
    else:
        yield Verdict("migrations", OK, "all are applied")


def configuration() -> Iterator[Verdict]:
    wrong = [str(found.msg) for found in django_checks.run_checks(tags=[checks.TAG])]
    if wrong:
        yield Verdict("settings", FAIL, "; ".join(wrong), "See the README's table of settings.")
    elif not settings.EMBEDDED and settings.CELERY_BROKER_URL.startswith("memory"):
        yield Verdict("settings", WARN, "PostgreSQL without a broker: messages reach one process only",
                      "Set CELERY_BROKER_URL when workers run on several hosts.")  # fmt: skip
    elif not settings.EMBEDDED and not settings.SESSION_COOKIE_SECURE:
        yield Verdict("settings", WARN, "LEASEHUB_HTTPS is off: cookies of pages go over plain HTTP",
                      "Put a proxy with TLS in front and set LEASEHUB_HTTPS=on.")  # fmt: skip
    else:
        yield Verdict("settings", OK, "nothing is wrong with them")


def clocks() -> Iterator[Verdict]:
    began = time.time()
    theirs = clock.now().timestamp()
    apart = theirs - (began + time.time()) / 2
    yield judged("clock_of_database", abs(apart), CLOCK_APART, f"{apart:+.3f} s against this server's",
                 "Leases go by the database's clock: run NTP there, and never set it back.")  # fmt: skip


def dialect() -> Iterator[Verdict]:
    if connection.vendor == "postgresql":
        seconds = value(gauges.database())
        yield judged("oldest_transaction", seconds, OPEN_TRANSACTION, f"open for {seconds:.0f} s",
                     "Find it in pg_stat_activity and end it: dead rows pile up meanwhile.")  # fmt: skip
        return
    with connection.cursor() as cursor:
        found = {}
        for pragma in ("journal_mode", "synchronous", "foreign_keys"):
            cursor.execute(f"PRAGMA {pragma}")
            found[pragma] = str(cursor.fetchone()[0]).lower()
    wanted = {"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1"}
    wrong = [f"{pragma} is {found[pragma]}" for pragma in wanted if found[pragma] != wanted[pragma]]
    if wrong:
        yield Verdict("sqlite", FAIL, "; ".join(wrong), "The file must lie on a local disk, where WAL works.")
    else:
        yield Verdict("sqlite", OK, "WAL, every commit is on disk")


def disk() -> Iterator[Verdict]:
    usage = shutil.disk_usage(settings.LEASEHUB_DATA if settings.LEASEHUB_DATA.exists() else "/")
    share = usage.free / usage.total
    message = f"{usage.free / GIB:.1f} GiB free in the data folder ({share:.0%})"
    todo = "Make room: without any, no lease can be written."
    if usage.free < GIB / 10 or share < 0.01:
        yield Verdict("disk", FAIL, message, todo)
    elif usage.free < GIB or share < 0.05:
        yield Verdict("disk", WARN, message, todo)
    else:
        yield Verdict("disk", OK, message)


def beat() -> Iterator[Verdict]:
    seconds = value(gauges.beat()[:1])
    todo = "Start a worker with beat (leasehub up has one): without it nothing is tidied up."
    if seconds < 0:
        yield Verdict("beat", FAIL, "has never run a scan", todo)
    else:
        yield judged("beat", seconds, BEAT_AGE, f"ran a scan {seconds:.0f} s ago", todo)


def workers(organization: int | None) -> Iterator[Verdict]:
    ages = gauges.beat()[1].values
    todo = "Start one: `leasehub up` has one, a fleet runs `celery -A leasehub.celery worker`."
    if not ages:
        yield Verdict("workers", FAIL, "none has been seen", todo)
        return
    youngest = min(ages.values())
    alive = sorted(queue for (queue,), age in ages.items() if age <= WORKER_AGE[0])
    named = alive
    if organization is not None:
        # What the hosts of others are called is not its business.
        own = Pool.objects.filter(organization_id=organization, worker__in=alive).values_list("worker", flat=True)
        named = [queue for queue in alive if queue in {settings.CELERY_TASK_DEFAULT_QUEUE, *own}]
    more = f" and {len(alive) - len(named)} more" if len(named) < len(alive) else ""
    message = f"seen {youngest:.0f} s ago; served: {', '.join(named) or 'nothing'}{more}"
    yield judged("workers", youngest, WORKER_AGE, message, todo)


def feed() -> Iterator[Verdict]:
    count, oldest = (value([figures]) for figures in gauges.feed())
    message = f"{count:.0f} events without a position, the oldest for {oldest:.0f} s"
    yield judged("feed", oldest, UNNUMBERED_AGE, message, "See that beat runs, and look for a long transaction.")


def reaper() -> Iterator[Verdict]:
    seconds = value(gauges.reaper())
    message = f"the oldest expired lease has waited for {seconds:.0f} s" if seconds else "nothing waits"
    yield judged("reaper", seconds, OVERDUE, message, "See that beat and a worker run. Nobody is blocked meanwhile.")


def webhooks() -> Iterator[Verdict]:
    count, oldest = (value([figures]) for figures in gauges.webhooks())
    message = f"{count:.0f} are still to be sent, the oldest for {oldest:.0f} s"
    yield judged("webhooks", oldest, WEBHOOKS_LATE, message, "See the deliveries: which endpoint does not answer?")


def commands(organization: int | None) -> Iterator[Verdict]:
    pools = Pool.objects.order_by("pk")
    if organization is not None:
        pools = pools.filter(organization_id=organization)
    served: dict[str, bool] = {}
    unserved = []
    for pool in pools:
        if not Declaration(pool.declaration).runs_commands:
            continue
        if pool.worker not in served:
            served[pool.worker] = is_served(pool.worker)
        if not served[pool.worker]:
            unserved.append(f'{pool} ("{pool.worker}")')
    if unserved:
        shown = ", ".join(unserved[:10])
        yield Verdict("pool_workers", FAIL, f"no worker runs the commands of {shown}",
                      "Start one on the host of the slots: leasehub worker --queues NAME.")  # fmt: skip
    elif pools and not settings.LEASEHUB_COMMANDS:
        yield Verdict("pool_workers", OK, "commands are off (LEASEHUB_COMMANDS)")
    else:
        yield Verdict("pool_workers", OK, "every pool with commands has a worker")


def judged(check: str, seconds: float, limits: tuple[float, float], message: str, todo: str) -> Verdict:
    warn, fail = limits
    if seconds < warn:
        return Verdict(check, OK, message)
    return Verdict(check, FAIL if seconds >= fail else WARN, message, todo)


def value(figures: list[Figures]) -> float:
    """Of a gauge without labels."""
    return figures[0].values[()]
