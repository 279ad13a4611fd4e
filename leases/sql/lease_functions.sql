-- The hot verbs, one round trip each: check the key, lock the row, read the clock, decide, write, journal.
-- leases/engines/portable.py says the same in Python for SQLite; both pass the same tests.
--
-- A session keeps a function's plans. Made while the tables are as good as empty, they would read all of what comes
-- later: without sequential scans they are right for any number of rows.

CREATE FUNCTION leasehub_iso(at timestamptz) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
$$;

-- Whom a key speaks for; no row when it is revoked or expired or its principal retired. No lock: a revocation
-- that commits while this call runs holds at the next one.
CREATE FUNCTION leasehub_key_owner(p_key bigint, OUT principal_id bigint, OUT organization_id bigint)
RETURNS SETOF record LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT principal.id, principal.organization_id
    FROM identity_apikey AS key
    JOIN identity_principal AS principal ON principal.id = key.principal_id
    WHERE key.id = p_key
      AND key.revoked_at IS NULL
      AND (key.expires_at IS NULL OR key.expires_at > (SELECT leasehub_now()))
      AND principal.retired_at IS NULL
$$;

-- Why a key's own lease was not found.
CREATE FUNCTION lease_unseen(p_key bigint) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM leasehub_key_owner(p_key)) THEN 'not_found' ELSE 'unauthenticated' END
$$;

CREATE FUNCTION lease_previous(r leases_resource) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'lease_id', 'lease_' || replace(r.lease_id::text, '-', ''),
        'holder', r.holder,
        'acquired_at', leasehub_iso(r.acquired_at),
        'heartbeat_at', leasehub_iso(r.heartbeat_at),
        'expires_at', leasehub_iso(r.expires_at)
    )
$$;

-- outcome: acquired, reacquired, taken_over; held, held_by_self (refused); unauthenticated.
CREATE FUNCTION lease_acquire(
    p_key bigint, p_type text, p_id text, p_holder text, p_ttl_ms bigint, p_reacquire boolean,
    p_purpose text, p_payload jsonb, p_lifetime_ms bigint,
    OUT outcome text, OUT lease_id uuid, OUT fencing_token bigint, OUT expires_at timestamptz,
    OUT at timestamptz, OUT previous jsonb
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    caller record;
    r leases_resource;
    of_self boolean;
    ends_at timestamptz;
BEGIN
    -- A refusal reads and locks nothing: many contenders on one key cost no more than reads.
    SELECT owner.principal_id, owner.organization_id,
        row.id AS row_id, row.expires_at AS taken_until, row.principal_id AS held_by, row.holder AS held_as
    INTO caller
    FROM leasehub_key_owner(p_key) AS owner
    LEFT JOIN leases_resource AS row
        ON row.organization_id = owner.organization_id AND row.resource_type = p_type AND row.resource_id = p_id;
    IF NOT FOUND THEN
        outcome := 'unauthenticated';
        RETURN;
    END IF;
    at := leasehub_now();
    IF caller.taken_until > at THEN
        of_self := caller.held_by = caller.principal_id AND caller.held_as = p_holder;
        IF NOT (of_self AND p_reacquire) THEN
            outcome := CASE WHEN of_self THEN 'held_by_self' ELSE 'held' END;
            expires_at := caller.taken_until;
            RETURN;
        END IF;
    END IF;

    outcome := 'acquired';
    LOOP
        IF caller.row_id IS NOT NULL AND r.id IS NULL THEN
            SELECT * INTO r FROM leases_resource
            WHERE organization_id = caller.organization_id AND resource_type = p_type AND resource_id = p_id
            FOR UPDATE;
            IF NOT FOUND THEN
                -- Pruned before it was locked.
                caller.row_id := NULL;
            END IF;
            -- After the lock, never before: the wait may have outlived the lease that was waited for.
            at := leasehub_now();
            IF r.lease_id IS NOT NULL THEN
                IF r.expires_at <= at THEN
                    outcome := 'taken_over';
                ELSE
                    of_self := r.principal_id = caller.principal_id AND r.holder = p_holder;
                    IF NOT (of_self AND p_reacquire) THEN
                        outcome := CASE WHEN of_self THEN 'held_by_self' ELSE 'held' END;
                        expires_at := r.expires_at;
                        RETURN;
                    END IF;
                    outcome := 'reacquired';
                END IF;
                previous := lease_previous(r);
            END IF;
        END IF;

        lease_id := gen_random_uuid();
        fencing_token := greatest(r.last_token + 1, floor(extract(epoch FROM at) * 1000)::bigint);
        ends_at := at + p_lifetime_ms * interval '1 millisecond';
        expires_at := least(at + p_ttl_ms * interval '1 millisecond', ends_at);
        IF r.id IS NOT NULL THEN
            UPDATE leases_resource AS row SET
                last_token = lease_acquire.fencing_token, lease_id = lease_acquire.lease_id,
                principal_id = caller.principal_id, holder = p_holder, purpose = p_purpose, payload = p_payload,
                acquired_at = at, heartbeat_at = at, expires_at = lease_acquire.expires_at,
                check_at = lease_acquire.expires_at, ttl_ms = p_ttl_ms,
                lifetime_ends_at = ends_at
            WHERE row.id = r.id;
            EXIT;
        END IF;
        -- Held from its first moment, and locked: nobody else sees it before this transaction ends.
        INSERT INTO leases_resource (
            organization_id, resource_type, resource_id, last_token, lease_id, principal_id, holder, purpose, payload,
            acquired_at, heartbeat_at, expires_at, check_at, ttl_ms, lifetime_ends_at
        ) VALUES (
            caller.organization_id, p_type, p_id, lease_acquire.fencing_token, lease_acquire.lease_id,
            caller.principal_id, p_holder, p_purpose, p_payload,
            at, at, lease_acquire.expires_at, lease_acquire.expires_at, p_ttl_ms, ends_at
        )
        ON CONFLICT (organization_id, resource_type, resource_id) DO NOTHING
        RETURNING id INTO r.id;
        IF r.id IS NULL THEN
            -- Another one's came first.
            caller.row_id := 0;
        ELSE
            -- Unless it waited, for another one's that was taken back: then the clock counts from here (ADR 8).
            EXIT WHEN leasehub_now() < at + interval '10 milliseconds';
            at := leasehub_now();
        END IF;
    END LOOP;
    INSERT INTO events_event (
        event_id, organization_id, type, at, actor_id, key_id, resource_type, resource_id,
        lease_id, previous_lease_id, fencing_token, principal_id, holder, data
    ) VALUES (
        gen_random_uuid(), caller.organization_id,
        CASE outcome WHEN 'taken_over' THEN 'lease.taken_over' ELSE 'lease.acquired' END,
        at, caller.principal_id, p_key, p_type, p_id,
        lease_id, r.lease_id, fencing_token, caller.principal_id, p_holder,
        jsonb_strip_nulls(jsonb_build_object(
            'ttl_seconds', p_ttl_ms / 1000,
            'expires_at', leasehub_iso(expires_at),
            'purpose', p_purpose,
            'lifetime_ends_at', leasehub_iso(ends_at),
            'previous', previous
        ))
    );
END
$$;

-- For the owner of a type, whose own rows are locked: a lease on one of its resources. outcome: granted; held (until
-- expires_at, also by a lease that ran out unreaped: the owner ends that one first).
CREATE FUNCTION lease_grant(
    p_organization bigint, p_type text, p_id text, p_principal bigint, p_holder text, p_ttl_ms bigint,
    p_payload jsonb, p_event text, p_actor bigint, p_key bigint, p_data jsonb,
    OUT outcome text, OUT lease_id uuid, OUT fencing_token bigint, OUT expires_at timestamptz,
    OUT at timestamptz, OUT previous jsonb
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    r leases_resource;
BEGIN
    LOOP
        SELECT * INTO r FROM leases_resource
        WHERE organization_id = p_organization AND resource_type = p_type AND resource_id = p_id
        FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO leases_resource (organization_id, resource_type, resource_id, last_token)
        VALUES (p_organization, p_type, p_id, 0)
        ON CONFLICT (organization_id, resource_type, resource_id) DO NOTHING
        RETURNING * INTO r;
        EXIT WHEN FOUND;
    END LOOP;
    at := leasehub_now();
    IF r.lease_id IS NOT NULL THEN
        outcome := 'held';
        expires_at := r.expires_at;
        RETURN;
    END IF;
    outcome := 'granted';
    lease_id := gen_random_uuid();
    fencing_token := greatest(r.last_token + 1, floor(extract(epoch FROM at) * 1000)::bigint);
    expires_at := at + p_ttl_ms * interval '1 millisecond';
    UPDATE leases_resource AS row SET
        last_token = lease_grant.fencing_token, lease_id = lease_grant.lease_id, principal_id = p_principal,
        holder = p_holder, payload = p_payload, acquired_at = at, heartbeat_at = at,
        expires_at = lease_grant.expires_at, check_at = lease_grant.expires_at, ttl_ms = p_ttl_ms
    WHERE row.id = r.id;
    INSERT INTO events_event (
        event_id, organization_id, type, at, actor_id, key_id, resource_type, resource_id,
        lease_id, fencing_token, principal_id, holder, data
    ) VALUES (
        gen_random_uuid(), p_organization, p_event, at, p_actor, p_key, p_type, p_id,
        lease_id, fencing_token, p_principal, p_holder,
        jsonb_build_object('ttl_seconds', p_ttl_ms / 1000, 'expires_at', leasehub_iso(expires_at)) || p_data
    );
END
$$;

-- outcome: refreshed; stale (another token), expired, lifetime_over, not_found, unauthenticated.
CREATE FUNCTION lease_heartbeat(
    p_key bigint, p_lease uuid, p_token bigint, p_ttl_ms bigint,
    OUT outcome text, OUT lease_id uuid, OUT fencing_token bigint, OUT expires_at timestamptz,
    OUT at timestamptz, OUT previous jsonb
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    r leases_resource;
BEGIN
    lease_id := p_lease;
    SELECT row.* INTO r
    FROM leasehub_key_owner(p_key) AS owner
    JOIN leases_resource AS row
        ON row.organization_id = owner.organization_id AND row.principal_id = owner.principal_id
    WHERE row.lease_id = p_lease
    FOR UPDATE OF row;
    IF NOT FOUND THEN
        outcome := lease_unseen(p_key);
        RETURN;
    END IF;
    at := leasehub_now();
    expires_at := r.expires_at;
    IF r.last_token <> p_token THEN
        outcome := 'stale';
        RETURN;
    END IF;
    fencing_token := p_token;
    IF r.expires_at <= at THEN
        outcome := CASE WHEN r.lifetime_ends_at <= r.expires_at THEN 'lifetime_over' ELSE 'expired' END;
        RETURN;
    END IF;
    outcome := 'refreshed';
    p_ttl_ms := coalesce(p_ttl_ms, r.ttl_ms);
    expires_at := least(at + p_ttl_ms * interval '1 millisecond', r.lifetime_ends_at);
    -- check_at moves only when the lease became shorter: a beat that extends stays a HOT update.
    UPDATE leases_resource AS row SET
        heartbeat_at = at, expires_at = lease_heartbeat.expires_at, ttl_ms = p_ttl_ms,
        check_at = least(row.check_at, lease_heartbeat.expires_at)
    WHERE row.id = r.id;
END
$$;

-- One beat for each pair, the rows locked in the order of their ids, each clock read after its own lock.
CREATE FUNCTION lease_heartbeats(p_key bigint, p_leases uuid[], p_tokens bigint[])
RETURNS TABLE (
    outcome text, lease_id uuid, fencing_token bigint, expires_at timestamptz, at timestamptz, previous jsonb
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT pair.lease, pair.token
        FROM unnest(p_leases, p_tokens) AS pair (lease, token)
        LEFT JOIN leases_resource AS row ON row.lease_id = pair.lease
        ORDER BY row.id NULLS FIRST
    LOOP
        RETURN QUERY SELECT beat.* FROM lease_heartbeat(p_key, given.lease, given.token, NULL) AS beat;
    END LOOP;
END
$$;

-- outcome: owned (another app's rows must be locked first: nothing is done, see leases/owners.py); released,
-- released_expired (only tidying); stale (another token), not_found, unauthenticated.
CREATE FUNCTION lease_release(
    p_key bigint, p_lease uuid, p_token bigint, p_owned text[],
    OUT outcome text, OUT lease_id uuid, OUT fencing_token bigint, OUT expires_at timestamptz,
    OUT at timestamptz, OUT previous jsonb
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    r leases_resource;
BEGIN
    lease_id := p_lease;
    SELECT row.* INTO r
    FROM leasehub_key_owner(p_key) AS owner
    JOIN leases_resource AS row
        ON row.organization_id = owner.organization_id AND row.principal_id = owner.principal_id
    WHERE row.lease_id = p_lease
    FOR UPDATE OF row;
    IF NOT FOUND THEN
        outcome := lease_unseen(p_key);
        RETURN;
    END IF;
    IF r.resource_type = ANY (p_owned) THEN
        outcome := 'owned';
        RETURN;
    END IF;
    at := leasehub_now();
    IF p_token IS NOT NULL AND r.last_token <> p_token THEN
        outcome := 'stale';
        RETURN;
    END IF;
    fencing_token := r.last_token;
    expires_at := r.expires_at;
    outcome := CASE WHEN r.expires_at > at THEN 'released' ELSE 'released_expired' END;
    UPDATE leases_resource AS row SET
        lease_id = NULL, principal_id = NULL, holder = NULL, purpose = NULL, payload = NULL, acquired_at = NULL,
        heartbeat_at = NULL, expires_at = NULL, check_at = NULL, ttl_ms = NULL, lifetime_ends_at = NULL
    WHERE row.id = r.id;
    INSERT INTO events_event (
        event_id, organization_id, type, at, actor_id, key_id, resource_type, resource_id,
        lease_id, fencing_token, principal_id, holder, data
    ) VALUES (
        gen_random_uuid(), r.organization_id, 'lease.released', at, r.principal_id, p_key,
        r.resource_type, r.resource_id, r.lease_id, r.last_token, r.principal_id, r.holder,
        jsonb_build_object('was_expired', outcome = 'released_expired', 'acquired_at', leasehub_iso(r.acquired_at))
    );
END
$$;

-- Ends up to p_limit leases that ran out and pushes check_at of those that turn out alive. Rows that another
-- process has locked are skipped: whoever locked them decides, or the next scan comes back to them. Leases of owned
-- types are left to leases.services.
CREATE FUNCTION lease_reap_due(
    p_limit integer, p_owned text[], OUT looked_at integer, OUT reaped integer
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    ids bigint[];
    now_at timestamptz := leasehub_now();
BEGIN
    SELECT coalesce(array_agg(due.id), '{}') INTO ids FROM (
        SELECT row.id FROM leases_resource AS row
        WHERE row.lease_id IS NOT NULL AND row.check_at <= now_at AND row.resource_type <> ALL (p_owned)
        ORDER BY row.check_at
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    ) AS due;
    looked_at := coalesce(cardinality(ids), 0);
    reaped := 0;
    IF looked_at = 0 THEN
        RETURN;
    END IF;
    now_at := leasehub_now();
    WITH dead AS (
        SELECT * FROM leases_resource AS row WHERE row.id = ANY (ids) AND row.expires_at <= now_at
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
            gen_random_uuid(), dead.organization_id, 'lease.reaped', now_at, dead.resource_type, dead.resource_id,
            dead.lease_id, dead.last_token, dead.principal_id, dead.holder,
            jsonb_build_object(
                'acquired_at', leasehub_iso(dead.acquired_at),
                'heartbeat_at', leasehub_iso(dead.heartbeat_at),
                'expired_at', leasehub_iso(dead.expires_at),
                'lifetime_over', coalesce(dead.lifetime_ends_at <= dead.expires_at, false)
            )
        FROM dead ORDER BY dead.id
        RETURNING 1
    )
    SELECT count(*) INTO reaped FROM journaled;
    UPDATE leases_resource AS row SET check_at = row.expires_at
    WHERE row.id = ANY (ids) AND row.lease_id IS NOT NULL AND row.expires_at > now_at;
END
$$;
