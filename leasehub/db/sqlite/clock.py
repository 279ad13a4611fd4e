"""The time of the machine that holds the SQLite file, in whole milliseconds."""

import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now() -> datetime:
    return _EPOCH + timedelta(milliseconds=time.time_ns() // 1_000_000)
