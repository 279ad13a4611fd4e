-- The way that most requests take: a slot is free and nobody is before. pools/promotion.py says the same in Python,
-- which is how it is done on SQLite, with commands, and for several slots at once.

-- Grants one free slot to a new request, in one call, and so in a transaction of its own that is short; no row when
-- there is none, when somebody might be before, or when the pool is not declared as ``p_declaration`` says any more.
-- Locks the pool's row, then the resource's.
--
-- Looks at the first 64 free slots alone: a selector that means few of many is better served by its index.
CREATE FUNCTION pool_grant_at_once(
    p_organization bigint, p_pool bigint, p_name text, p_declaration jsonb, p_request uuid, p_principal bigint,
    p_key bigint, p_holder text, p_session text, p_mode text, p_no_wait boolean, p_ttl_seconds bigint, p_selector jsonb,
    p_selector_key text, p_paths text[], p_values text[]
) RETURNS TABLE (
    request bigint, ticket bigint, created_at timestamptz, slot bigint, slot_id text, id_value jsonb, kind text,
    attributes jsonb, lease_id uuid, fencing_token bigint, expires_at timestamptz, at timestamptz
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    free pools_slot;
    granted record;
    named jsonb := jsonb_build_object(
        'request_id', 'req_' || replace(p_request::text, '-', ''), 'session', p_session, 'mode', p_mode
    );
BEGIN
    SELECT pool.last_ticket + 1 INTO ticket FROM pools_pool AS pool
    WHERE pool.id = p_pool AND pool.declaration = p_declaration FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- After the lock, never before.
    created_at := leasehub_now();
    IF EXISTS (
        SELECT FROM pools_request AS waiting
        WHERE waiting.pool_id = p_pool AND waiting.state = 'queued' AND waiting.selector_key = p_selector_key
    ) OR EXISTS (
        SELECT FROM pools_request AS waiting
        WHERE waiting.pool_id = p_pool AND waiting.state = 'queued' AND waiting.count > 1
    ) THEN
        RETURN;
    END IF;
    SELECT looked_at.* INTO free FROM (
        SELECT * FROM pools_slot AS one
        WHERE one.pool_id = p_pool AND one.is_declared AND NOT one.is_draining AND NOT one.is_broken
          AND NOT one.is_busy AND one.lease_id IS NULL
        ORDER BY one.failures, one.place LIMIT 64
    ) AS looked_at
    WHERE NOT EXISTS (
        SELECT FROM unnest(p_paths, p_values) AS wanted (path, value)
        WHERE NOT EXISTS (
            SELECT FROM pools_slotlabel AS label
            WHERE label.slot_id = looked_at.id AND label.path = wanted.path AND label.value = wanted.value
        )
    )
    ORDER BY looked_at.failures, looked_at.place LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO granted FROM lease_grant(
        p_organization, 'slot', p_name || '/' || free.slot_id, p_principal, p_holder, p_ttl_seconds * 1000, named,
        'pool.granted', NULL, NULL,
        named || jsonb_build_object(
            'slot_id', free.id_value, 'ticket', ticket, 'count', 1, 'state', 'ready'
        )
    );
    IF granted.outcome <> 'granted' THEN
        RETURN;
    END IF;
    UPDATE pools_pool AS pool SET last_ticket = pool_grant_at_once.ticket WHERE pool.id = p_pool;
    INSERT INTO pools_request (
        request_id, pool_id, ticket, principal_id, key_id, holder, session, mode, no_wait, ttl_seconds, count, selector,
        selector_key, state, failures, reason, error, created_at, seen_at, ready_at, fetched_at
    ) VALUES (
        p_request, p_pool, pool_grant_at_once.ticket, p_principal, p_key, p_holder, p_session, p_mode, p_no_wait,
        p_ttl_seconds, 1, p_selector, p_selector_key, 'ready', 0, '', '', created_at, created_at, created_at, created_at
    ) RETURNING id INTO request;
    UPDATE pools_slot AS one SET
        lease_id = granted.lease_id, granted_at = granted.at, request_id = request, is_clean = true
    WHERE one.id = free.id;
    RETURN QUERY SELECT
        request, ticket, created_at, free.id, free.slot_id::text, free.id_value, free.kind::text, free.attributes,
        granted.lease_id, granted.fencing_token, granted.expires_at, granted.at;
END
$$;
