"""Every type of event."""

TYPES = (
    "lease.acquired",
    "lease.released",
    "lease.reaped",
    "lease.taken_over",
    "lease.force_released",
    "lease.transferred",
    "handoff.created",
    "handoff.accepted",
    "handoff.rejected",
    "handoff.withdrawn",
    "handoff.expired",
    "handoff.completed",
    "checkpoint.saved",
    "pool.declared",
    "pool.queued",
    "pool.granted",
    "pool.ready",
    "pool.released",
    "pool.grant_failed",
    "pool.dropped",
    "pool.slot_broken",
    "pool.slot_drained",
    "pool.slot_undrained",
    "pool.slot_repaired",
)

# Found quickly by walking back from the newest event; of every other type a server may have a handful in a million.
COMMON_TYPES = (
    "lease.acquired",
    "lease.released",
    "lease.reaped",
    "task.queued",
    "task.claimed",
    "task.completed",
    "pool.queued",
    "pool.granted",
    "pool.released",
)
