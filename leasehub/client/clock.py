"""The clock that deadlines are counted on."""

import time


def boot_clock() -> float:
    """Seconds on a clock that nobody sets and that goes on counting while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
