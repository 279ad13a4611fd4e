"""Claiming a task: over HTTP and bare, deep and shallow, after many claims, beside a conventional queue."""

import itertools
import json
import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial

from bench import ground, load, pgbench, processes, procrastinate_queue
from bench.figure import Figure, Goal, LeftOut, Plan, Row, in_turns, milliseconds, per_second, ratio
from bench.ground import Ground
from bench.hot_path import CONVENTIONAL, FUNCTION, HEALTH, HTTP, LEASEHUB

PUT = """
INSERT INTO leases_task (
    id, place, queue_id, principal_id, state, priority, out_of_turn, attempts, max_attempts, created_at
)
SELECT leasehub_new_id(now()), nextval('leases_task_place'), queue.id, %(principal)s, 'ready', 0, false, 0, 5, now()
FROM leases_queue AS queue, generate_series(1, %(last)s::bigint) WHERE queue.name = %(queue)s
"""
CONTENT = """
INSERT INTO leases_taskcontent (task_id, payload)
SELECT task.id, '{"n": 1}' FROM leases_task AS task JOIN leases_queue AS queue ON queue.id = task.queue_id
WHERE queue.name = %(queue)s AND NOT EXISTS (SELECT FROM leases_taskcontent AS known WHERE known.task_id = task.id)
"""
LEFT = """
SELECT FROM leases_task AS task JOIN leases_queue AS queue ON queue.id = task.queue_id
WHERE queue.name = %s AND task.state = 'ready' LIMIT 1
"""
SETTLED = ("VACUUM ANALYZE leases_task", "VACUUM ANALYZE leases_taskcontent", "CHECKPOINT")
JOBS = """
INSERT INTO conventional_job (queue, priority, payload, state, attempts, created_at)
SELECT 'bench', 0, '{"n": 1}', 'ready', 0, now() FROM generate_series(1, %(last)s::bigint)
"""
PROCRASTINATE = "procrastinate's fetch_job, in process, no HTTP"
#: So few that an average over them is not of a changed queue.
SAMPLE = 300


def figures(plan: Plan, base: Ground) -> Iterator[Row]:
    yield from _over_http(plan, base)
    yield _many_at_once(plan, base)
    yield _deep(plan, base)
    yield _after_many(plan, base)
    yield from _put(plan, base)
    yield _returned(plan, base)


def fill(base: Ground, queue: str, tasks: int) -> None:
    """``tasks`` that are ready, in a queue that has been used before."""
    make = (
        f"SELECT * FROM task_put({base.key}::bigint, '{queue}', '{{0}}', '{{0}}', '{{NULL}}', '{{NULL}}', '{{NULL}}')"
    )
    base.execute(make)
    base.execute(PUT, CONTENT, principal=base.principal, last=tasks, queue=queue)
    base.execute(*SETTLED)


def claim_script(base: Ground, queue: str, count: int = 1) -> str:
    """As the server calls it: all but one call a second know how far the queue has been looked at."""
    return (
        f"SELECT * FROM task_claim({base.key}::bigint, '{queue}', 'bench', 600000::bigint, {count},"
        " leasehub_now() - interval '1 second');\n"
    )


def claimed_a_second(base: Ground, queue: str, *, clients: int, seconds: int, count: int = 1) -> float:
    """Raises WrongAnswer when the queue ran dry: of nothing much can be claimed in a second."""
    rate = count * pgbench.rate(base.url, claim_script(base, queue, count), clients=clients, seconds=seconds)
    with base.connect() as connection:
        left = connection.execute(LEFT, [queue]).fetchone()
    if left is None:
        raise load.WrongAnswer(f"the queue {queue} ran dry")
    return rate


def _talk(body: bytes, token: str, path: str = "/v1/leases/hot-claim", scheme: str = "Bearer") -> load.Talk:
    asked = load.request("POST", path, body, token, scheme)
    while True:
        yield asked


def _over_http(plan: Plan, base: Ground) -> Iterator[Row]:
    body = json.dumps({"queue": "bench", "ttl_seconds": 600}).encode()
    conventional = {**base.environment, "DJANGO_SETTINGS_MODULE": ground.SETTINGS}
    depth = plan.rounds * plan.seconds * 20_000
    fill(base, "bench", depth)
    base.execute(JOBS, "VACUUM ANALYZE conventional_job", last=depth)
    with (
        processes.granian(LEASEHUB, base.environment, HEALTH) as port,
        processes.granian("bench.conventional.wsgi:application", conventional, "/leases") as other,
        procrastinate_queue.filled(depth) as jobs,
    ):

        def over_http(seconds: float = plan.seconds) -> float:
            return load.run(port, lambda: _talk(body, base.secret), expect=200, seconds=seconds).rate

        def conventionally(seconds: float = plan.seconds) -> float:
            talk = partial(_talk, b'{"queue": "bench"}', base.token, "/jobs/claim", "Token")
            return load.run(other, talk, expect=200, seconds=seconds).rate

        over_http(1), conventionally(1)
        sides: dict[str, Callable[[], float]] = {
            FUNCTION: lambda: claimed_a_second(base, "bench", clients=8, seconds=plan.seconds),
            HTTP: over_http,
            CONVENTIONAL: conventionally,
        }
        if jobs is not None:
            sides[PROCRASTINATE] = lambda: jobs.fetched_a_second(clients=8, seconds=plan.seconds)
        seen = in_turns(plan.rounds, sides)
        yield ratio("hot claim, 8 clients, against the bare function", seen, HTTP, FUNCTION, Goal(0.25))
        yield ratio("hot claim, 8 clients, against a conventional view", seen, HTTP, CONVENTIONAL, Goal(5))
        what = f"hot claim, 8 clients, against {PROCRASTINATE}"
        bare = "the claim with its event, 4 clients in pgbench, against procrastinate's fetch function"
        if jobs is None:
            yield LeftOut(what, procrastinate_queue.MISSING)
            yield LeftOut(bare, procrastinate_queue.MISSING)
            return
        yield ratio(what, seen, HTTP, PROCRASTINATE, Goal(1))
    ours, theirs = "task_claim", "procrastinate_fetch_job_v2"
    fill(base, "bare", depth)
    with procrastinate_queue.filled(depth) as jobs:
        assert jobs is not None
        turns = in_turns(
            plan.rounds,
            {
                ours: lambda: claimed_a_second(base, "bare", clients=4, seconds=plan.seconds),
                theirs: lambda: pgbench.rate(jobs.url, jobs.script, clients=4, seconds=plan.seconds),
            },
        )
        yield ratio(bare, turns, ours, theirs, Goal(1.4))
        jobs.check_that_some_are_left()


def _many_at_once(plan: Plan, base: Ground) -> Row:
    fill(base, "batches", plan.rounds * plan.seconds * 60_000)
    ten, one = "ten a call", "one a call"
    seen = in_turns(
        plan.rounds,
        {
            ten: lambda: claimed_a_second(base, "batches", clients=4, seconds=plan.seconds, count=10),
            one: lambda: claimed_a_second(base, "batches", clients=4, seconds=plan.seconds),
        },
    )
    return ratio("tasks a second, claimed ten at once, 4 clients, against one at a time", seen, ten, one, Goal(3))


def seconds_a_claim(base: Ground, queue: str, claims: int = SAMPLE) -> float:
    with base.connect() as connection:
        cursor = connection.cursor()
        script = claim_script(base, queue)
        for _ in range(20):
            cursor.execute(script, prepare=True)
        begun = time.perf_counter()
        for _ in range(claims):
            cursor.execute(script, prepare=True)
        return (time.perf_counter() - begun) / claims


def _deep(plan: Plan, base: Ground) -> Row:
    deep, shallow = f"{plan.queued:,} ready", "1,000 ready"
    names = (f"shallow-{n}" for n in itertools.count())
    fill(base, "deep", plan.queued)

    def of_few() -> float:
        name = next(names)
        fill(base, name, 1000)
        return seconds_a_claim(base, name)

    seen = in_turns(plan.rounds, {shallow: of_few, deep: lambda: seconds_a_claim(base, "deep")})
    what = f"a claim with {plan.queued:,} tasks ready against one with 1,000"
    return ratio(what, seen, deep, shallow, Goal(1.2, at_least=False), shown=milliseconds)


def _after_many(plan: Plan, base: Ground) -> Row:
    """With a snapshot from before held all the while: nothing that a claim leaves behind can be cleared away."""
    many, few = f"after {plan.claims:,} claims", "after 1,000"
    seen: dict[str, list[float]] = {many: [], few: []}
    for n in range(plan.rounds):
        name = f"snapshot-{n}"
        fill(base, name, plan.claims + 10 * SAMPLE)
        with base.connect() as held:
            held.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            held.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            held.execute("SELECT count(*) FROM leases_task WHERE place = 1")
            pgbench.times(base.url, claim_script(base, name), min(1000, plan.claims) // 4, clients=4)
            seen[few].append(seconds_a_claim(base, name))
            pgbench.times(base.url, claim_script(base, name), max(0, plan.claims - 1000) // 4 or 1, clients=4)
            seen[many].append(seconds_a_claim(base, name))
            held.execute("ROLLBACK")
    what = f"a claim after {plan.claims:,} claims, an old snapshot held, against one after 1,000"
    return ratio(what, seen, many, few, Goal(2, at_least=False), shown=milliseconds)


def _put(plan: Plan, base: Ground) -> Iterator[Row]:
    body = json.dumps({"tasks": [{"payload": {"n": n}} for n in range(1000)]}).encode()
    with processes.granian(LEASEHUB, base.environment, HEALTH) as port:

        def rate(seconds: float = plan.seconds) -> float:
            talk = partial(_talk, body, base.secret, f"/v1/queues/put-{secrets.token_hex(4)}/tasks")
            return 1000 * load.run(port, talk, expect=201, seconds=seconds, connections=2).rate

        rate(1)
        yield Figure(
            "tasks put a second, 1,000 a call, 2 clients",
            [rate() for _ in range(plan.rounds)],
            Goal(5000, unit="/s"),
        )


EXPIRE = """
UPDATE leases_resource SET heartbeat_at = now() - interval '1 hour', expires_at = now() - interval '1 minute',
    check_at = now() - interval '1 minute' WHERE resource_type = 'task' AND lease_id IS NOT NULL
"""


def _returned(plan: Plan, base: Ground) -> Row:
    from leases.services import reap_due

    # What the figures above have claimed would be returned first.
    base.execute("TRUNCATE leases_task, leases_taskcontent, leases_resource, events_event")
    fill(base, "dead-workers", plan.returned)
    seconds = []
    for _ in range(min(plan.rounds, 4)):
        for _ in range(0, plan.returned, 100):
            base.execute(claim_script(base, "dead-workers", 100))
        base.execute(EXPIRE, "VACUUM ANALYZE leases_resource", *SETTLED)
        begun = time.perf_counter()
        returned = reap_due()
        seconds.append(time.perf_counter() - begun)
        if returned < plan.returned:
            raise load.WrongAnswer(f"{returned} of {plan.returned} were returned")
    rate = per_second(plan.returned / min(seconds))
    return Figure(f"the reaper returns {plan.returned:,} tasks of dead workers", seconds, Goal(1, False, " s"), rate)
