-- The verbs of the queues, one round trip each. Claiming a task is taking the lease on it: the resource row
-- (task, t_…) of leases_resource is the claim. leases/queues/engines/portable.py says the same in Python for SQLite.
--
-- Lock order: tasks by id, then resource rows. A claim skips tasks that are locked; everything else waits for them.

-- A version 7 UUID: the newest at one end of its indexes instead of all over them.
CREATE FUNCTION leasehub_new_id(p_at timestamptz) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (
        lpad(to_hex(floor(extract(epoch FROM p_at) * 1000)::bigint), 12, '0') || '7'
        || substr(replace(gen_random_uuid()::text, '-', ''), 14)
    )::uuid
$$;

CREATE FUNCTION task_public_id(p_id uuid) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 't_' || replace(p_id::text, '-', '')
$$;

-- Rings for those who wait at a queue; costs nothing while nobody does.
CREATE FUNCTION task_ring(p_queues bigint[]) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_notify('leasehub_task', queue.id::text) FROM leases_queue AS queue
    WHERE queue.id = ANY (p_queues) AND queue.awaited_until > leasehub_now()
$$;

-- Puts tasks, given as arrays of one length, into a queue, which is made if it is new. A dedupe key that a live
-- task has answers that task (was_live). One row for each, in their order; one row 'unauthenticated'.
CREATE FUNCTION task_put(
    p_key bigint, p_queue text, p_priorities smallint[], p_delays_ms bigint[], p_max_attempts smallint[],
    p_dedupe_keys text[], p_payloads text[]
) RETURNS TABLE (outcome text, task_id uuid, state text, ready_at timestamptz, was_live boolean)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    owner record;
    q leases_queue;
    at timestamptz;
    many integer := cardinality(p_priorities);
    new_ids uuid[];
    places bigint[];
    ids uuid[];
    made uuid[] := '{}';
BEGIN
    SELECT * INTO owner FROM leasehub_key_owner(p_key);
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'unauthenticated', NULL::uuid, NULL::text, NULL::timestamptz, NULL::boolean;
        RETURN;
    END IF;
    at := leasehub_now();
    LOOP
        SELECT * INTO q FROM leases_queue AS queue
        WHERE queue.organization_id = owner.organization_id AND queue.name = p_queue;
        EXIT WHEN FOUND;
        INSERT INTO leases_queue (
            organization_id, name, max_attempts, backoff_base_seconds, backoff_max_seconds, keep_days, created_at,
            last_place
        ) VALUES (owner.organization_id, p_queue, 5, 5, 3600, 7, at, 0) ON CONFLICT DO NOTHING;
    END LOOP;
    -- Before the places are allotted: lane_advance() counts on both.
    LOCK TABLE leases_task IN ROW EXCLUSIVE MODE;
    PERFORM pg_current_xact_id();
    -- In one order, as the dedupe keys below: two calls at once must not wait for each other.
    INSERT INTO leases_lane (queue_id, priority, low_water, candidate, candidate_xid)
    SELECT q.id, wanted.priority, 0, 0, 0 FROM (SELECT DISTINCT unnest(p_priorities) AS priority) AS wanted
    WHERE NOT EXISTS (
        SELECT FROM leases_lane AS lane WHERE lane.queue_id = q.id AND lane.priority = wanted.priority
    )
    ORDER BY wanted.priority ON CONFLICT DO NOTHING;
    places := ARRAY(SELECT nextval('leases_task_place') FROM generate_series(1, many));
    new_ids := ARRAY(SELECT leasehub_new_id(at) FROM generate_series(1, many));
    ids := new_ids;
    LOOP
        WITH fresh AS (
            INSERT INTO leases_task (
                id, place, queue_id, principal_id, state, priority, ready_at, out_of_turn, attempts, max_attempts,
                dedupe_key, created_at
            )
            SELECT
                new_ids[given.i], places[given.i], q.id, owner.principal_id, 'ready', given.priority,
                CASE WHEN given.delay_ms > 0 THEN at + given.delay_ms * interval '1 millisecond' END,
                given.delay_ms > 0, 0, coalesce(given.max_attempts, q.max_attempts), given.dedupe_key, at
            FROM unnest(p_priorities, p_delays_ms, p_max_attempts, p_dedupe_keys)
                WITH ORDINALITY AS given (priority, delay_ms, max_attempts, dedupe_key, i)
            WHERE ids[given.i] = new_ids[given.i] AND new_ids[given.i] <> ALL (made)
            ORDER BY given.dedupe_key NULLS FIRST, given.i
            ON CONFLICT DO NOTHING
            RETURNING id
        )
        SELECT made || coalesce(array_agg(fresh.id), '{}') INTO made FROM fresh;
        EXIT WHEN cardinality(made) = many;
        -- A key whose live task ended between the two statements is free now: that one keeps its new id, once more.
        ids := ARRAY(
            SELECT CASE WHEN new_ids[given.i] = ANY (made) THEN new_ids[given.i] ELSE coalesce(live.id, new_ids[given.i]) END
            FROM unnest(p_dedupe_keys) WITH ORDINALITY AS given (dedupe_key, i)
            LEFT JOIN leases_task AS live ON live.queue_id = q.id AND live.dedupe_key = given.dedupe_key
                AND live.state IN ('ready', 'leased') AND live.dedupe_key IS NOT NULL
            ORDER BY given.i
        );
        EXIT WHEN NOT EXISTS (
            SELECT FROM unnest(ids, new_ids) AS given (id, new_id)
            WHERE given.id = given.new_id AND given.id <> ALL (made)
        );
    END LOOP;
    IF cardinality(made) > 0 THEN
        INSERT INTO leases_taskcontent (task_id, payload)
        SELECT new_ids[given.i], given.payload::jsonb
        FROM unnest(p_payloads) WITH ORDINALITY AS given (payload, i)
        WHERE given.payload IS NOT NULL AND new_ids[given.i] = ANY (made);
        INSERT INTO events_event (
            event_id, organization_id, type, at, actor_id, key_id, resource_type, resource_id, holder, data
        )
        SELECT
            gen_random_uuid(), owner.organization_id, 'task.queued', at, owner.principal_id, p_key,
            'task', task_public_id(task.id), '',
            jsonb_strip_nulls(jsonb_build_object(
                'queue', p_queue, 'priority', task.priority, 'max_attempts', task.max_attempts,
                'ready_at', leasehub_iso(task.ready_at), 'dedupe_key', task.dedupe_key
            ))
        FROM leases_task AS task WHERE task.id = ANY (made) ORDER BY task.place;
        PERFORM task_ring(ARRAY[q.id]);
    END IF;
    RETURN QUERY
    SELECT 'put', task.id, task.state::text, task.ready_at, NOT given.id = new_ids[given.i]
    FROM unnest(ids) WITH ORDINALITY AS given (id, i) JOIN leases_task AS task ON task.id = given.id
    ORDER BY given.i;
END
$$;

-- Whether a transaction that has written to leases_task, or locked rows of it, is older than another and still runs.
-- Transactions of other tables and other databases do not matter, so pg_current_snapshot() would say too little.
CREATE FUNCTION task_has_older_writer(p_than xid8) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    WITH held AS MATERIALIZED (
        SELECT locktype, mode, database, relation, virtualtransaction, transactionid FROM pg_locks WHERE granted
    )
    SELECT EXISTS (
        SELECT FROM held AS used JOIN held AS number USING (virtualtransaction)
        WHERE used.relation = 'leases_task'::regclass AND used.mode <> 'AccessShareLock'
          AND used.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND number.locktype = 'transactionid' AND number.mode = 'ExclusiveLock'
          AND age(number.transactionid) > age(p_than::xid)
    )
$$;

-- Raises a lane's low water behind its claims. ``p_reached`` is the place of a task that this transaction has locked,
-- and it had no number before it did.
--
-- No task in turn below ``low_water`` may exist or appear. Tasks in turn appear by INSERT alone, with places that grow
-- but may be committed in another order; and a claim that is rolled back lays its task back. So the place that was
-- reached is a candidate only, kept with the number of this transaction: whoever has been allotted a lower place, or
-- had locked a lower task when this claim passed over it, has a lower number and a lock on the table. Once all of those
-- have ended, what they left is visible, and the lowest of it, or else the candidate, is the new low water.
CREATE FUNCTION lane_advance(p_lane bigint, p_reached bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    lane leases_lane;
    first_waiting bigint;
    own bigint := pg_current_xact_id()::text::bigint;
BEGIN
    SELECT * INTO lane FROM leases_lane AS row WHERE row.id = p_lane FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- A candidate with a larger number than one's own may come from the server that a backup was taken of: replaced.
    IF lane.candidate > 0 AND lane.candidate_xid <= own THEN
        IF task_has_older_writer(lane.candidate_xid::text::xid8) THEN
            RETURN;
        END IF;
        -- In a statement of its own: its snapshot must be newer than the look at the transactions.
        SELECT task.place INTO first_waiting FROM leases_task AS task
        WHERE task.queue_id = lane.queue_id AND NOT task.out_of_turn AND task.priority = lane.priority
          AND task.state = 'ready' AND task.ready_at IS NULL
          AND task.place >= lane.low_water AND task.place < lane.candidate
        ORDER BY task.place LIMIT 1;
        lane.low_water := greatest(lane.low_water, coalesce(first_waiting, lane.candidate));
    END IF;
    UPDATE leases_lane AS row SET low_water = lane.low_water, candidate = p_reached, candidate_xid = own
    WHERE row.id = lane.id;
END
$$;

-- Locks up to p_count claimable tasks of a lane, the oldest first, those out of turn in their place among the others.
CREATE FUNCTION lane_take(p_lane leases_lane, p_count integer, p_from bigint) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    past_all CONSTANT bigint := 9223372036854775807;
    taken uuid[] := '{}';
    got uuid[];
    reached bigint;
    other bigint;
    next_in_turn bigint := 0;
    has_number boolean := pg_current_xact_id_if_assigned() IS NOT NULL;
BEGIN
    LOOP
        SELECT task.place INTO other FROM leases_task AS task
        WHERE task.queue_id = p_lane.queue_id AND task.out_of_turn AND task.priority = p_lane.priority
          AND task.state = 'ready' AND task.ready_at IS NULL AND task.place >= next_in_turn
        ORDER BY task.place LIMIT 1;
        SELECT array_agg(found.id), max(found.place) INTO got, reached FROM (
            SELECT task.id, task.place FROM leases_task AS task
            WHERE task.queue_id = p_lane.queue_id AND NOT task.out_of_turn AND task.priority = p_lane.priority
              AND task.state = 'ready' AND task.ready_at IS NULL
              AND task.place >= p_from AND task.place < coalesce(other, past_all)
            ORDER BY task.place LIMIT p_count - cardinality(taken)
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS found;
        taken := taken || got;
        -- Every few hundred claims.
        IF NOT has_number AND reached - p_lane.low_water >= 256 THEN
            PERFORM lane_advance(p_lane.id, reached);
        END IF;
        EXIT WHEN other IS NULL OR cardinality(taken) >= p_count;
        -- The one out of turn is the oldest left: take it and its like up to the next one in turn.
        has_number := true;
        p_from := greatest(p_from, other);
        SELECT task.place INTO next_in_turn FROM leases_task AS task
        WHERE task.queue_id = p_lane.queue_id AND NOT task.out_of_turn AND task.priority = p_lane.priority
          AND task.state = 'ready' AND task.ready_at IS NULL AND task.place >= p_from
        ORDER BY task.place LIMIT 1;
        taken := taken || ARRAY(
            SELECT task.id FROM leases_task AS task
            WHERE task.queue_id = p_lane.queue_id AND task.out_of_turn AND task.priority = p_lane.priority
              AND task.state = 'ready' AND task.ready_at IS NULL
              AND task.place >= other AND task.place < coalesce(next_in_turn, past_all)
            ORDER BY task.place LIMIT p_count - cardinality(taken)
            FOR NO KEY UPDATE SKIP LOCKED
        );
        EXIT WHEN next_in_turn IS NULL OR cardinality(taken) >= p_count;
        p_from := next_in_turn;
    END LOOP;
    RETURN taken;
END
$$;

-- Ends the claims of these tasks whose lease ran out, and pushes check_at of those that turn out alive; how many
-- ended. Locks are skipped: whoever has them decides, or the next call comes back.
CREATE FUNCTION task_reap(p_resources bigint[]) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    locked uuid[];
    rows bigint[];
    queues bigint[];
    at timestamptz;
    ended integer;
BEGIN
    locked := ARRAY(
        SELECT task.id FROM leases_task AS task
        WHERE task.id = ANY (ARRAY(
            SELECT substr(r.resource_id, 3)::uuid FROM leases_resource AS r
            WHERE r.id = ANY (p_resources) AND r.resource_type = 'task'
        )) AND task.state = 'leased'
        ORDER BY task.id FOR NO KEY UPDATE SKIP LOCKED
    );
    IF cardinality(locked) = 0 THEN
        RETURN 0;
    END IF;
    rows := ARRAY(
        SELECT r.id FROM leases_resource AS r
        WHERE r.id = ANY (p_resources) AND r.lease_id IS NOT NULL AND substr(r.resource_id, 3)::uuid = ANY (locked)
        ORDER BY r.id FOR NO KEY UPDATE SKIP LOCKED
    );
    at := leasehub_now();
    WITH dead AS MATERIALIZED (
        SELECT r.*, task.id AS task_row, task.attempts, task.attempts >= task.max_attempts AS is_last
        FROM leases_resource AS r JOIN leases_task AS task ON task.id = substr(r.resource_id, 3)::uuid
        WHERE r.id = ANY (rows) AND r.expires_at <= at
    ), moved AS (
        UPDATE leases_task AS task SET
            state = CASE WHEN dead.is_last THEN 'dead' ELSE 'ready' END,
            finished_at = CASE WHEN dead.is_last THEN at END, out_of_turn = true
        FROM dead WHERE task.id = dead.task_row
    ), freed AS (
        UPDATE leases_resource AS row SET
            lease_id = NULL, principal_id = NULL, holder = NULL, purpose = NULL, payload = NULL,
            acquired_at = NULL, heartbeat_at = NULL, expires_at = NULL, check_at = NULL, ttl_ms = NULL,
            lifetime_ends_at = NULL
        FROM dead WHERE row.id = dead.id
    ), journaled AS (
        INSERT INTO events_event (
            event_id, organization_id, type, at, resource_type, resource_id, lease_id, fencing_token,
            principal_id, holder, data
        )
        SELECT
            gen_random_uuid(), dead.organization_id,
            CASE WHEN dead.is_last THEN 'task.dead' ELSE 'lease.reaped' END,
            at, dead.resource_type, dead.resource_id, dead.lease_id, dead.last_token, dead.principal_id, dead.holder,
            jsonb_build_object(
                'acquired_at', leasehub_iso(dead.acquired_at),
                'heartbeat_at', leasehub_iso(dead.heartbeat_at),
                'expired_at', leasehub_iso(dead.expires_at),
                'lifetime_over', coalesce(dead.lifetime_ends_at <= dead.expires_at, false),
                'ended_by', 'reaped',
                'queue', queue.name,
                'attempt', dead.attempts,
                'task_state', CASE WHEN dead.is_last THEN 'dead' ELSE 'ready' END
            )
        FROM dead JOIN leases_queue AS queue ON queue.id = dead.queue_id ORDER BY dead.id
    )
    SELECT count(*), array_agg(DISTINCT dead.queue_id) FILTER (WHERE NOT dead.is_last) INTO ended, queues FROM dead;
    UPDATE leases_resource AS row SET check_at = row.expires_at
    WHERE row.id = ANY (rows) AND row.lease_id IS NOT NULL AND row.expires_at > at AND row.check_at <= at;
    IF queues IS NOT NULL THEN
        PERFORM task_ring(queues);
    END IF;
    RETURN ended;
END
$$;

-- The reaper's part of the queues: up to p_limit claims that are due.
CREATE FUNCTION task_reap_due(p_limit integer, OUT looked_at integer, OUT reaped integer) LANGUAGE plpgsql AS $$
DECLARE
    now_at timestamptz := leasehub_now();
    due bigint[] := ARRAY(
        SELECT r.id FROM leases_resource AS r
        WHERE r.resource_type = 'task' AND r.lease_id IS NOT NULL AND r.check_at <= now_at
        ORDER BY r.check_at LIMIT p_limit
    );
BEGIN
    looked_at := cardinality(due);
    reaped := CASE WHEN looked_at > 0 THEN task_reap(due) ELSE 0 END;
END
$$;

-- Grants the claims on tasks that the caller has locked, set-based.
CREATE FUNCTION task_grant(
    p_key bigint, p_principal bigint, p_organization bigint, p_queue_id bigint, p_queue text, p_holder text,
    p_ttl_ms bigint, p_tasks uuid[]
) RETURNS TABLE (
    outcome text, task_id uuid, attempt integer, lease_id uuid, fencing_token bigint, expires_at timestamptz,
    at timestamptz, payload text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now_at timestamptz := leasehub_now();
BEGIN
    RETURN QUERY
    WITH taken AS (
        UPDATE leases_task AS task SET state = 'leased', attempts = task.attempts + 1
        WHERE task.id = ANY (p_tasks)
        RETURNING task.id, task_public_id(task.id) AS resource_id, task.priority, task.place, task.attempts
    ), leased AS (
        INSERT INTO leases_resource AS r (
            organization_id, resource_type, resource_id, queue_id, last_token, lease_id, principal_id, holder,
            acquired_at, heartbeat_at, expires_at, check_at, ttl_ms
        )
        SELECT
            p_organization, 'task', taken.resource_id, p_queue_id, floor(extract(epoch FROM now_at) * 1000)::bigint,
            leasehub_new_id(now_at), p_principal, p_holder, now_at, now_at,
            now_at + p_ttl_ms * interval '1 millisecond', now_at + p_ttl_ms * interval '1 millisecond', p_ttl_ms
        FROM taken
        ON CONFLICT (organization_id, resource_type, resource_id) DO UPDATE SET
            last_token = greatest(r.last_token + 1, excluded.last_token), lease_id = excluded.lease_id,
            principal_id = excluded.principal_id, holder = excluded.holder, acquired_at = excluded.acquired_at,
            heartbeat_at = excluded.heartbeat_at, expires_at = excluded.expires_at, check_at = excluded.check_at,
            ttl_ms = excluded.ttl_ms, queue_id = excluded.queue_id, lifetime_ends_at = NULL
        RETURNING r.resource_id, r.lease_id, r.last_token, r.expires_at
    ), journaled AS (
        INSERT INTO events_event (
            event_id, organization_id, type, at, actor_id, key_id, resource_type, resource_id,
            lease_id, fencing_token, principal_id, holder, data
        )
        SELECT
            gen_random_uuid(), p_organization, 'task.claimed', now_at, p_principal, p_key,
            'task', leased.resource_id, leased.lease_id, leased.last_token, p_principal, p_holder,
            jsonb_build_object(
                'queue', p_queue, 'attempt', taken.attempts, 'ttl_seconds', p_ttl_ms / 1000,
                'expires_at', leasehub_iso(leased.expires_at)
            )
        FROM leased JOIN taken ON taken.resource_id = leased.resource_id
    )
    SELECT
        'claimed', taken.id, taken.attempts::integer, leased.lease_id, leased.last_token, leased.expires_at,
        now_at, content.payload::text
    FROM taken JOIN leased ON leased.resource_id = taken.resource_id
    LEFT JOIN leases_taskcontent AS content ON content.task_id = taken.id
    ORDER BY taken.priority DESC, taken.place;
END
$$;

-- Before a claim: ends up to 20 claims of the queue that ran out and makes claimable what was delayed until now, so
-- that nothing waits for the reaper. Answers whether that was all there was.
CREATE FUNCTION queue_look(p_queue bigint, p_at timestamptz, p_since timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    due bigint[] := ARRAY(
        SELECT r.id FROM leases_resource AS r
        WHERE r.queue_id = p_queue AND r.lease_id IS NOT NULL AND r.check_at <= p_at AND r.check_at > p_since
        ORDER BY r.check_at LIMIT 20
    );
    delayed uuid[] := ARRAY(
        SELECT task.id FROM leases_task AS task
        WHERE task.queue_id = p_queue AND task.state = 'ready' AND task.ready_at <= p_at AND task.ready_at > p_since
        ORDER BY task.ready_at LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED
    );
    whole boolean := cardinality(due) < 20 AND cardinality(delayed) < 100;
BEGIN
    IF cardinality(due) > 0 THEN
        whole := task_reap(due) = cardinality(due) AND whole;
    END IF;
    IF cardinality(delayed) > 0 THEN
        UPDATE leases_task AS task SET ready_at = NULL WHERE task.id = ANY (delayed);
    END IF;
    RETURN whole;
END
$$;

-- Claims up to p_count tasks of a queue: the highest priority first, then the oldest. One row for each claim; one row
-- 'nothing' or 'unauthenticated'.
--
-- ``p_since``: what was due until then has been looked at by an earlier call; ``looked_until`` answers how far that is
-- so after this one, or null. Without it this call trusts no mark: it looks from the very beginning, also in the lanes.
CREATE FUNCTION task_claim(
    p_key bigint, p_queue text, p_holder text, p_ttl_ms bigint, p_count integer, p_since timestamptz
) RETURNS TABLE (
    outcome text, task_id uuid, attempt integer, lease_id uuid, fencing_token bigint, expires_at timestamptz,
    at timestamptz, payload text, looked_until timestamptz
) LANGUAGE plpgsql
-- One plan for all calls, made once in a session: planning takes longer than claiming. It must be right for a million
-- tasks, also when it is made while the table is empty.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    owner record;
    lane record;
    row leases_lane;
    task_place bigint;
    task_key text;
    chosen uuid[] := '{}';
    has_number boolean;
    now_at timestamptz := leasehub_now();
    whole boolean := p_since IS NULL OR p_since > now_at;
BEGIN
    IF whole THEN
        p_since := '-infinity';
    END IF;
    SELECT
        known.principal_id, known.organization_id, queue.id AS queue_id,
        EXISTS (
            SELECT FROM leases_resource AS r
            WHERE r.queue_id = queue.id AND r.lease_id IS NOT NULL AND r.check_at <= now_at AND r.check_at > p_since
        ) OR EXISTS (
            SELECT FROM leases_task AS task
            WHERE task.queue_id = queue.id AND task.state = 'ready' AND task.ready_at <= now_at
              AND task.ready_at > p_since
        ) AS is_due
    INTO owner
    FROM leasehub_key_owner(p_key) AS known
    LEFT JOIN leases_queue AS queue ON queue.organization_id = known.organization_id AND queue.name = p_queue;
    at := now_at;
    IF NOT FOUND THEN
        outcome := 'unauthenticated';
        RETURN NEXT;
        RETURN;
    END IF;
    IF NOT owner.is_due OR queue_look(owner.queue_id, now_at, p_since) THEN
        looked_until := now_at;
    END IF;

    FOR lane IN
        SELECT
            l.id, l.priority, CASE WHEN whole THEN 0 ELSE l.low_water END AS start, l.low_water,
            (
                SELECT task.place FROM leases_task AS task
                WHERE task.queue_id = l.queue_id AND task.out_of_turn AND task.priority = l.priority
                  AND task.state = 'ready' AND task.ready_at IS NULL
                ORDER BY task.place LIMIT 1
            ) AS other
        FROM leases_lane AS l WHERE l.queue_id = owner.queue_id ORDER BY l.priority DESC
    LOOP
        IF p_count > 1 OR lane.other IS NOT NULL THEN
            SELECT * INTO row FROM leases_lane AS l WHERE l.id = lane.id;
            chosen := chosen || lane_take(row, p_count - cardinality(chosen), lane.start);
            EXIT WHEN cardinality(chosen) >= p_count;
            CONTINUE;
        END IF;
        -- One task, all in turn: the way that nearly every claim takes, in as few statements as can be.
        has_number := pg_current_xact_id_if_assigned() IS NOT NULL;
        UPDATE leases_task AS task SET state = 'leased', attempts = task.attempts + 1
        WHERE task.id = (
            SELECT next.id FROM leases_task AS next
            WHERE next.queue_id = owner.queue_id AND NOT next.out_of_turn AND next.priority = lane.priority
              AND next.state = 'ready' AND next.ready_at IS NULL AND next.place >= lane.start
            ORDER BY next.place LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
        )
        RETURNING task.id, task.place, task.attempts, (
            SELECT content.payload FROM leases_taskcontent AS content WHERE content.task_id = task.id
        )::text
        INTO task_id, task_place, attempt, payload;
        CONTINUE WHEN task_id IS NULL;
        IF task_place - lane.low_water >= 256 AND NOT has_number THEN
            PERFORM lane_advance(lane.id, task_place);
        END IF;
        -- Nobody but the owner of the task's lock touches its free row, so this clock is read after the lock.
        at := leasehub_now();
        outcome := 'claimed';
        lease_id := leasehub_new_id(at);
        expires_at := at + p_ttl_ms * interval '1 millisecond';
        task_key := task_public_id(task_id);
        INSERT INTO leases_resource AS r (
            organization_id, resource_type, resource_id, queue_id, last_token, lease_id, principal_id, holder,
            acquired_at, heartbeat_at, expires_at, check_at, ttl_ms
        ) VALUES (
            owner.organization_id, 'task', task_key, owner.queue_id, floor(extract(epoch FROM at) * 1000)::bigint,
            task_claim.lease_id, owner.principal_id, p_holder, at, at, task_claim.expires_at, task_claim.expires_at,
            p_ttl_ms
        )
        ON CONFLICT (organization_id, resource_type, resource_id) DO UPDATE SET
            last_token = greatest(r.last_token + 1, excluded.last_token), lease_id = excluded.lease_id,
            principal_id = excluded.principal_id, holder = excluded.holder, acquired_at = excluded.acquired_at,
            heartbeat_at = excluded.heartbeat_at, expires_at = excluded.expires_at, check_at = excluded.check_at,
            ttl_ms = excluded.ttl_ms, queue_id = excluded.queue_id, lifetime_ends_at = NULL
        RETURNING r.last_token INTO fencing_token;
        INSERT INTO events_event (
            event_id, organization_id, type, at, actor_id, key_id, resource_type, resource_id,
            lease_id, fencing_token, principal_id, holder, data
        ) VALUES (
            gen_random_uuid(), owner.organization_id, 'task.claimed', at, owner.principal_id, p_key,
            'task', task_key, task_claim.lease_id, task_claim.fencing_token, owner.principal_id, p_holder,
            jsonb_build_object(
                'queue', p_queue, 'attempt', attempt, 'ttl_seconds', p_ttl_ms / 1000,
                'expires_at', leasehub_iso(task_claim.expires_at)
            )
        );
        RETURN NEXT;
        RETURN;
    END LOOP;
    IF chosen = '{}' THEN
        outcome := 'nothing';
        RETURN NEXT;
        RETURN;
    END IF;
    RETURN QUERY SELECT claim.*, task_claim.looked_until FROM task_grant(
        p_key, owner.principal_id, owner.organization_id, owner.queue_id, p_queue, p_holder, p_ttl_ms, chosen
    ) AS claim;
END
$$;

-- Locks a task and the lease on it for one who names a token, and judges the claim.
-- outcome: mine; stale (mine, with another token), expired, lifetime_over, not_found (or not mine), unauthenticated.
CREATE FUNCTION task_lock(
    p_key bigint, p_task uuid, p_token bigint,
    OUT outcome text, OUT at timestamptz, OUT principal_id bigint, OUT task leases_task, OUT claim leases_resource
) LANGUAGE plpgsql AS $$
DECLARE
    owner record;
BEGIN
    SELECT * INTO owner FROM leasehub_key_owner(p_key);
    IF NOT FOUND THEN
        outcome := 'unauthenticated';
        RETURN;
    END IF;
    principal_id := owner.principal_id;
    SELECT * INTO task FROM leases_task AS row WHERE row.id = p_task FOR NO KEY UPDATE;
    IF FOUND THEN
        SELECT * INTO claim FROM leases_resource AS row
        WHERE row.organization_id = owner.organization_id AND row.resource_type = 'task'
          AND row.resource_id = task_public_id(p_task)
          AND row.lease_id IS NOT NULL AND row.principal_id = owner.principal_id
        FOR NO KEY UPDATE;
    END IF;
    IF NOT FOUND THEN
        outcome := 'not_found';
        RETURN;
    END IF;
    at := leasehub_now();
    outcome := CASE
        WHEN claim.last_token <> p_token THEN 'stale'
        WHEN claim.expires_at > at THEN 'mine'
        WHEN claim.lifetime_ends_at <= claim.expires_at THEN 'lifetime_over'
        ELSE 'expired'
    END;
END
$$;

-- The heartbeat of a claim that is named by its task.
CREATE FUNCTION task_heartbeat(
    p_key bigint, p_task uuid, p_token bigint, p_ttl_ms bigint,
    OUT outcome text, OUT lease_id uuid, OUT fencing_token bigint, OUT expires_at timestamptz,
    OUT at timestamptz, OUT previous jsonb
) LANGUAGE plpgsql AS $$
DECLARE
    owner record;
    claim uuid;
BEGIN
    SELECT * INTO owner FROM leasehub_key_owner(p_key);
    IF NOT FOUND THEN
        outcome := 'unauthenticated';
        RETURN;
    END IF;
    SELECT row.lease_id INTO claim FROM leases_resource AS row
    WHERE row.organization_id = owner.organization_id AND row.resource_type = 'task'
      AND row.resource_id = task_public_id(p_task);
    IF claim IS NULL THEN
        outcome := 'not_found';
        RETURN;
    END IF;
    SELECT beat.* INTO outcome, lease_id, fencing_token, expires_at, at, previous
    FROM lease_heartbeat(p_key, claim, p_token, p_ttl_ms) AS beat;
END
$$;

-- Ends a claim that task_lock() has locked: the task goes on to p_state, the resource is free, one event says so.
CREATE FUNCTION task_end(
    p_task leases_task, p_claim leases_resource, p_at timestamptz, p_actor bigint, p_key bigint,
    p_event text, p_state text, p_ready_at timestamptz, p_data jsonb
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE leases_task AS task SET
        state = p_state, ready_at = p_ready_at, out_of_turn = true,
        finished_at = CASE WHEN p_state IN ('done', 'dead') THEN p_at END
    WHERE task.id = p_task.id;
    UPDATE leases_resource AS row SET
        lease_id = NULL, principal_id = NULL, holder = NULL, purpose = NULL, payload = NULL, acquired_at = NULL,
        heartbeat_at = NULL, expires_at = NULL, check_at = NULL, ttl_ms = NULL, lifetime_ends_at = NULL
    WHERE row.id = p_claim.id;
    INSERT INTO events_event (
        event_id, organization_id, type, at, actor_id, key_id, resource_type, resource_id,
        lease_id, fencing_token, principal_id, holder, data
    )
    SELECT
        gen_random_uuid(), p_claim.organization_id, p_event, p_at, p_actor, p_key,
        'task', p_claim.resource_id, p_claim.lease_id, p_claim.last_token, p_claim.principal_id, p_claim.holder,
        jsonb_strip_nulls(p_data || jsonb_build_object(
            'queue', queue.name, 'attempt', p_task.attempts, 'task_state', p_state,
            'ready_at', leasehub_iso(p_ready_at)
        ))
    FROM leases_queue AS queue WHERE queue.id = p_task.queue_id;
    IF p_state = 'ready' AND p_ready_at IS NULL THEN
        PERFORM task_ring(ARRAY[p_task.queue_id]);
    END IF;
END
$$;

-- outcome: completed, or those of task_lock().
CREATE FUNCTION task_complete(
    p_key bigint, p_task uuid, p_token bigint, p_result text,
    OUT outcome text, OUT at timestamptz, OUT ended_at timestamptz, OUT state text, OUT ready_at timestamptz,
    OUT lease_id uuid
) LANGUAGE plpgsql AS $$
DECLARE
    l record;
BEGIN
    SELECT * INTO l FROM task_lock(p_key, p_task, p_token);
    outcome := l.outcome;
    at := l.at;
    IF l.outcome <> 'mine' THEN
        ended_at := (l.claim).expires_at;
        RETURN;
    END IF;
    PERFORM task_end(l.task, l.claim, at, l.principal_id, p_key, 'task.completed', 'done', NULL, '{}');
    IF p_result IS NOT NULL THEN
        INSERT INTO leases_taskcontent AS content (task_id, result) VALUES ((l.task).id, p_result::jsonb)
        ON CONFLICT (task_id) DO UPDATE SET result = excluded.result;
    END IF;
    outcome := 'completed';
    state := 'done';
    lease_id := (l.claim).lease_id;
END
$$;

-- outcome: failed (see state: ready or dead), or those of task_lock(). Without a pause the queue's back-off counts.
CREATE FUNCTION task_fail(
    p_key bigint, p_task uuid, p_token bigint, p_error text, p_pause_ms bigint, p_final boolean,
    OUT outcome text, OUT at timestamptz, OUT ended_at timestamptz, OUT state text, OUT ready_at timestamptz,
    OUT lease_id uuid
) LANGUAGE plpgsql AS $$
DECLARE
    l record;
    is_last boolean;
BEGIN
    SELECT * INTO l FROM task_lock(p_key, p_task, p_token);
    outcome := l.outcome;
    at := l.at;
    IF l.outcome <> 'mine' THEN
        ended_at := (l.claim).expires_at;
        RETURN;
    END IF;
    is_last := p_final OR (l.task).attempts >= (l.task).max_attempts;
    state := CASE WHEN is_last THEN 'dead' ELSE 'ready' END;
    IF NOT is_last THEN
        IF p_pause_ms IS NULL THEN
            -- Half fixed, half by chance: those that failed together do not come back together.
            SELECT (1000 * (0.5 + random() / 2) * least(
                queue.backoff_max_seconds, queue.backoff_base_seconds * 2.0 ^ least((l.task).attempts - 1, 30)
            ))::bigint INTO p_pause_ms
            FROM leases_queue AS queue WHERE queue.id = (l.task).queue_id;
        END IF;
        ready_at := CASE WHEN p_pause_ms > 0 THEN at + p_pause_ms * interval '1 millisecond' END;
    END IF;
    PERFORM task_end(
        l.task, l.claim, at, l.principal_id, p_key, CASE WHEN is_last THEN 'task.dead' ELSE 'task.failed' END,
        state, ready_at, jsonb_build_object('error', left(p_error, 500), 'ended_by', 'failed')
    );
    INSERT INTO leases_taskcontent AS content (task_id, error) VALUES ((l.task).id, p_error)
    ON CONFLICT (task_id) DO UPDATE SET error = excluded.error;
    outcome := 'failed';
    lease_id := (l.claim).lease_id;
END
$$;

-- Gives a claim back unfinished. outcome: returned (a claim that ran out and was not reaped yet too), or those of
-- task_lock(). A task whose attempts are used up is dead then.
CREATE FUNCTION task_return(
    p_key bigint, p_task uuid, p_token bigint,
    OUT outcome text, OUT at timestamptz, OUT ended_at timestamptz, OUT state text, OUT ready_at timestamptz,
    OUT lease_id uuid
) LANGUAGE plpgsql AS $$
DECLARE
    l record;
    is_last boolean;
BEGIN
    SELECT * INTO l FROM task_lock(p_key, p_task, p_token);
    outcome := l.outcome;
    at := l.at;
    ended_at := (l.claim).expires_at;
    IF l.outcome NOT IN ('mine', 'expired', 'lifetime_over') THEN
        RETURN;
    END IF;
    is_last := (l.task).attempts >= (l.task).max_attempts;
    state := CASE WHEN is_last THEN 'dead' ELSE 'ready' END;
    PERFORM task_end(
        l.task, l.claim, at, l.principal_id, p_key, CASE WHEN is_last THEN 'task.dead' ELSE 'task.returned' END,
        state, NULL, jsonb_build_object(
            'was_expired', l.outcome <> 'mine', 'acquired_at', leasehub_iso((l.claim).acquired_at), 'ended_by', 'released'
        )
    );
    outcome := 'returned';
    lease_id := (l.claim).lease_id;
END
$$;
