"""JSON in and out through the C half of the standard library's json, whose Python half imports re and costs
a heartbeat half of its whole time."""

import _json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BLANKS = " \t\n\r"


class _Reading:
    """What the C scanner asks its decoder for."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int

    @staticmethod
    def parse_constant(name: str) -> object:
        raise ValueError(f"{name} is not JSON")


_scan = _json.make_scanner(_Reading)  # type: ignore[arg-type]


def parse(text: str) -> "Any":
    """The value in the text; ValueError when it is not exactly one JSON value."""
    start = len(text) - len(text.lstrip(BLANKS))
    try:
        value, end = _scan(text, start)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (StopIteration, SystemError, ValueError):
        # The C half alone cannot say what is wrong: without json it does not even raise a proper error.
        return _reading_whole(text)
    return value if not text[end:].strip(BLANKS) else _reading_whole(text)


def _reading_whole(text: str) -> "Any":
    import json

    return json.loads(text, parse_constant=_Reading.parse_constant)


def _unknown(value: object) -> object:
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


# Markers, default, encoder of strings, indent, separators, sort_keys, skipkeys, allow_nan.
_write = _json.make_encoder({}, _unknown, _json.encode_basestring, None, ":", ",", False, False, False)


def compact(value: object) -> bytes:
    return _utf8("".join(_write(value, 0)))


def pretty(value: object) -> bytes:
    import json

    return _utf8(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2))


def _utf8(text: str) -> bytes:
    # A lone surrogate has no UTF-8; its JSON escape is the same text as Python's backslash escape.
    return text.encode("utf-8", "backslashreplace")
