"""Timestamps as milliseconds since 1970 and back, without datetime, whose import a heartbeat would feel."""

import time

from leasehub.client.failures import Internal


def epoch_ms(text: object) -> int:
    """The instant of ``2026-07-30T10:58:13.829Z``."""
    try:
        return _epoch_ms(str(text))
    except (ValueError, IndexError):
        raise Internal(f"the server sent {text!r} where a timestamp belongs") from None


def _epoch_ms(text: str) -> int:
    if text[10] != "T" or not text.endswith("Z"):
        raise ValueError(text)
    days = _days(int(text[0:4]), int(text[5:7]), int(text[8:10]))
    seconds = ((days * 24 + int(text[11:13])) * 60 + int(text[14:16])) * 60 + int(text[17:19])
    return seconds * 1000 + int((text[20:-1] + "000")[:3])


def _days(year: int, month: int, day: int) -> int:
    # Years that begin in March put the leap day last: 153 days in each five months from there.
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


def iso(ms: int) -> str:
    t = time.gmtime(ms // 1000)
    return f"{t[0]:04}-{t[1]:02}-{t[2]:02}T{t[3]:02}:{t[4]:02}:{t[5]:02}.{ms % 1000:03}Z"
