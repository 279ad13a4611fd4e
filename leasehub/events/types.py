"""Every type of event."""

TYPES = (
    "lease.acquired",
    "lease.released",
    "lease.reaped",
    "lease.taken_over",
    "lease.force_released",
    "lease.transferred",
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
