"""Every type of event."""

TYPES = (
    "lease.acquired",
    "lease.released",
    "lease.reaped",
    "lease.taken_over",
    "lease.force_released",
    "lease.transferred",
)
