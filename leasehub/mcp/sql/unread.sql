-- What a reader may not have been told of yet: its floor, the ids above it that it has read, and what is new, oldest
-- first. Mostly no row at all; one without a floor for a reader that is new; one without news when the floor has fallen
-- far behind.
--
-- Every part goes by an index that the journal has anyway: what the reaper and operators ended, what became of handoffs
-- and requests, takeovers, grants that wait to be fetched. The condition of event_by_rare_type is repeated word for
-- word, because SQLite takes a partial index only then; and a plus keeps both databases from the timeline's index, in
-- which the organization's whole past is.
WITH reader AS (SELECT floor, seen FROM mcp_reader WHERE key_id = :key AND holder = :holder),
news (kind, id) AS (
    SELECT 'event', id FROM events_event
    WHERE type IN ('lease.reaped', 'task.dead') AND organization_id = :organization
        AND id > (SELECT floor FROM reader) AND principal_id = :principal AND holder = :holder
        AND (type = 'lease.reaped' OR actor_id IS NULL)
    UNION ALL
    SELECT 'event', id FROM events_event
    WHERE NOT (events_event.type IN ('lease.acquired', 'lease.released', 'lease.reaped', 'task.queued', 'task.claimed', 'task.completed', 'pool.queued', 'pool.granted', 'pool.released'))
        AND id > (SELECT floor FROM reader) AND +organization_id = :organization AND (
        (type IN ('lease.force_released', 'pool.dropped', 'pool.grant_failed')
            AND principal_id = :principal AND holder = :holder)
        OR (type IN ('handoff.accepted', 'handoff.rejected', 'handoff.expired', 'handoff.completed')
            AND principal_id = :principal)
        OR (type IN ('handoff.created', 'handoff.withdrawn') AND addressee_id = :principal)
        OR (type = 'lease.taken_over' AND NOT (principal_id = :principal AND holder = :holder)
            AND EXISTS (
                SELECT 1 FROM events_event AS start WHERE start.lease_id = events_event.previous_lease_id
                    AND start.principal_id = :principal AND start.holder = :holder))
    ) AND type IN (
        'lease.force_released', 'pool.dropped', 'pool.grant_failed', 'handoff.accepted', 'handoff.rejected',
        'handoff.expired', 'handoff.completed', 'handoff.created', 'handoff.withdrawn', 'lease.taken_over')
    UNION ALL
    SELECT 'request', id FROM pools_request
    WHERE state = 'ready' AND fetched_at IS NULL AND principal_id = :principal
        AND holder = :holder
)
SELECT reader.floor, CAST(reader.seen AS text), news.kind, news.id, feed.low_water
FROM (SELECT 1) AS always
    LEFT JOIN reader ON 1 = 1
    LEFT JOIN news ON 1 = 1
    LEFT JOIN (SELECT low_water FROM events_feed WHERE organization_id = :organization) AS feed ON 1 = 1
WHERE reader.floor IS NULL OR news.id IS NOT NULL OR feed.low_water - reader.floor > 5000
ORDER BY news.kind, news.id LIMIT 200
