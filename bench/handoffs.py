"""An inbox with a hundred thousand pending beside one with fifty; sending beside its bare statements."""

import json
from collections.abc import Iterator

from bench import ground, load, pgbench, processes
from bench.figure import Goal, Plan, Row, in_turns, milliseconds, ratio
from bench.ground import Ground
from bench.hot_path import HEALTH, LEASEHUB
from bench.load import Talk, request

PAGE = 50
FULL, SHORT = "of many", "of fifty"
HTTP, STATEMENTS = "LeaseHub over HTTP", "pgbench, its statements"

HANDOFFS = """
INSERT INTO handoffs_handoff (
    public_id, organization_id, giver_id, addressee_id, subject_id, context_id, message, next_action, content,
    state_hash, hop, status, created_at, reason, holder, observed_commit
)
SELECT gen_random_uuid(), %(organization)s, %(principal)s, %(principal)s, 'subject.' || n, '', 'half done', 'go on',
    '{"done": ["one", "two"], "blockers": ["three"]}', '', 0, 'pending', now() + n * interval '1 ms', '', '', ''
FROM generate_series(1, %(last)s::bigint) AS n
"""


def figures(plan: Plan, base: Ground) -> Iterator[Row]:
    ground.forget_all(base)
    with ground.copied(base) as full:
        for at, pending in ((base, PAGE), (full, plan.handoffs)):
            at.execute(HANDOFFS, organization=at.organization, principal=at.principal, last=pending)
            at.execute("VACUUM ANALYZE handoffs_handoff")
        with (
            processes.granian(LEASEHUB, base.environment, HEALTH) as short_port,
            processes.granian(LEASEHUB, full.environment, HEALTH) as full_port,
        ):
            yield _inbox(plan, base, short_port, full_port)
            yield _send(plan, base, short_port)


def _inbox(plan: Plan, base: Ground, short_port: int, full_port: int) -> Row:
    def seconds(port: int, plan: Plan = plan) -> float:
        return 1 / load.run(port, lambda: _asked(base), expect=200, seconds=plan.seconds, connections=1).rate

    for port in (short_port, full_port):
        seconds(port, Plan(seconds=1))
    seen = in_turns(plan.rounds, {FULL: lambda: seconds(full_port), SHORT: lambda: seconds(short_port)})
    what = f"an inbox of {PAGE} out of {plan.handoffs:,} pending against one out of {PAGE}"
    return ratio(what, seen, FULL, SHORT, Goal(1.5, at_least=False), shown=milliseconds)


def _send(plan: Plan, base: Ground, port: int) -> Row:
    def over_http(plan: Plan = plan) -> float:
        return load.run(port, lambda: _sent(base), expect=201, seconds=plan.seconds).rate

    over_http(Plan(seconds=1))
    script = _statements(base)
    seen = in_turns(
        plan.rounds,
        {
            STATEMENTS: lambda: pgbench.rate(base.url, script, clients=8, seconds=plan.seconds),
            HTTP: over_http,
        },
    )
    return ratio("sending a handoff, 8 clients, against its bare statements", seen, HTTP, STATEMENTS, Goal(0.15))


def _asked(base: Ground) -> Talk:
    asked = request("GET", f"/v1/handoffs?limit={PAGE}", token=base.secret)
    while True:
        yield asked


def _sent(base: Ground) -> Talk:
    body = {"to_principal": "bench", "subject_id": "bench", "message": "half done", "next_action": "go on"}
    sent = request("POST", "/v1/handoffs", json.dumps(body).encode(), base.secret)
    while True:
        yield sent


def _statements(base: Ground) -> str:
    """What a handoff without leases asks of the database: the key, the addressee, the clock, two rows."""
    organization, principal, key = base.organization, base.principal, base.key
    return f"""
SELECT * FROM identity_apikey JOIN identity_principal ON identity_principal.id = identity_apikey.principal_id
    JOIN identity_organization ON identity_organization.id = identity_principal.organization_id
    WHERE identity_apikey.id = {key} AND revoked_at IS NULL AND retired_at IS NULL;
BEGIN;
SELECT * FROM identity_principal WHERE organization_id = {organization} AND handle = 'bench' AND retired_at IS NULL;
SELECT leasehub_now();
INSERT INTO handoffs_handoff (
    public_id, organization_id, giver_id, addressee_id, subject_id, context_id, message, next_action, content,
    state_hash, hop, status, created_at, reason, holder, observed_commit
) VALUES (
    gen_random_uuid(), {organization}, {principal}, {principal}, 'bench', '', 'half done', 'go on', '{{}}',
    '', 0, 'pending', now(), '', '', ''
);
INSERT INTO events_event (
    event_id, organization_id, type, at, actor_id, key_id, resource_type, resource_id, principal_id, addressee_id,
    holder, data
) VALUES (
    gen_random_uuid(), {organization}, 'handoff.created', now(), {principal}, {key}, '', '', {principal}, {principal},
    '', '{{"handoff_id": "hoff_00000000000000000000000000000000", "to_principal": "bench", "status": "pending"}}'
);
COMMIT;
"""
