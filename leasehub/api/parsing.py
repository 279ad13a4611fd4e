"""Strict reading of bodies and queries: what is wrong is named, and nothing is guessed or ignored."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar
from urllib.parse import parse_qsl

import pydantic
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest
from django.http.request import RawPostDataException
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from leasehub.errors import PayloadTooLarge, UnsupportedMediaType, ValidationError

MAX_BODY_BYTES = 1024 * 1024
MAX_PAYLOAD_BYTES = 64 * 1024
MAX_PAYLOAD_DEPTH = 20
MAX_ID_LENGTH = 200
MAX_MESSAGE_LENGTH = 4000
MAX_HOLDER_LENGTH = 128
MAX_PARAMETERS = 100
MAX_WAIT_SECONDS = 25
# The largest integer that every JSON reader keeps exact.
MAX_INTEGER = 2**53 - 1


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose members each have one name: of two values readers would pick different ones."""
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = _legible(next(name for name in names if names.count(name) > 1))
        raise ValidationError(f"{twice}: is given more than once", **{twice: "is given more than once"})
    return members


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_distinct)

# C0 and C1 controls but for tab and newline, and the invisible marks that reorder text for a reader.
_FORBIDDEN = {chr(code) for code in [*range(0x20), *range(0x7F, 0xA0)]} - {"\t", "\n"} | {
    "\u061c",
    "\u200e",
    "\u200f",
    *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2066, 0x206A)),
}


def _plain(text: str) -> str:
    if not text.isprintable() and (not _FORBIDDEN.isdisjoint(text) or _has_surrogate(text)):
        raise ValueError("must not have control characters or lone surrogates")
    return text


def _single_line(text: str) -> str:
    if "\n" in text or "\t" in text:
        raise ValueError("must not have line breaks or tabs")
    if not text.strip():
        raise ValueError("must not be blank")
    return _plain(text)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _without_slash(text: str) -> str:
    """It is a part of addresses."""
    if "/" in text:
        raise ValueError("must not have a slash")
    return text


def _has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def bounded_json(value: Any) -> Any:
    """Any JSON value that both databases can store: at most 64 KiB and 20 levels, no NUL, no lone surrogate."""
    if value is None or value is True or value is False:
        return value
    try:
        size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    except (UnicodeEncodeError, RecursionError, ValueError):
        _explain_json(value, MAX_PAYLOAD_DEPTH)
        raise ValueError("must be JSON") from None
    if size > MAX_PAYLOAD_BYTES:
        raise ValueError(f"must be at most {MAX_PAYLOAD_BYTES} bytes of JSON, not {size}")
    _explain_json(value, MAX_PAYLOAD_DEPTH)
    return value


def _explain_json(value: Any, depth: int) -> None:
    if isinstance(value, str):
        if "\0" in value or _has_surrogate(value):
            raise ValueError("must not have NUL or lone surrogates in a string")
    elif isinstance(value, bool | None):
        return
    elif isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise ValueError("must not have an integer beyond 2^53")
    elif isinstance(value, float):
        if value in (float("inf"), float("-inf")):
            raise ValueError("must not have a number beyond the range of a double")
    elif depth == 0:
        raise ValueError(f"must have at most {MAX_PAYLOAD_DEPTH} levels")
    elif isinstance(value, dict):
        for key, item in value.items():
            _explain_json(key, depth)
            _explain_json(item, depth - 1)
    else:
        for item in value:
            _explain_json(item, depth - 1)


def _digits(value: Any) -> Any:
    """A query parameter that is a whole number."""
    return int(value) if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value) else value


# Longer ones are out of every range, and are said to be no integer.
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,16}")


# Narrower than fromisoformat, which takes any character between date and time.
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def _instant(value: Any) -> Any:
    """An ISO 8601 time with its zone, as every answer writes it."""
    if not isinstance(value, str):
        return value
    try:
        if not _INSTANT.fullmatch(value):
            raise ValueError
        # The zone may push the first and the last day out of the calendar.
        return datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("must be a time with its zone, like 2026-07-30T10:58:13.829Z") from None


#: What is said of each kind of fault that pydantic finds, with its bounds.
SENTENCES = {
    "extra_forbidden": "is not a known member",
    "missing": "is required",
    "string_type": "must be a string",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "string_unicode": "must not have lone surrogates",
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing_size": "must be an integer of fewer digits",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "none_required": "must be null",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "datetime_type": "must be a time with its zone, like 2026-07-30T10:58:13.829Z",
    "timezone_aware": "must be a time with its zone, like 2026-07-30T10:58:13.829Z",
}

Identifier = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID_LENGTH), AfterValidator(_single_line)]
Label = Annotated[str, StringConstraints(max_length=120), AfterValidator(_plain)]
DisplayName = Annotated[str, StringConstraints(max_length=200), AfterValidator(_plain)]
Message = Annotated[str, StringConstraints(min_length=1, max_length=MAX_MESSAGE_LENGTH), AfterValidator(_plain)]
#: Why somebody did something.
Reason = Annotated[Message, AfterValidator(_not_blank)]
QueueName = Annotated[Identifier, AfterValidator(_without_slash)]
Payload = Annotated[Any, AfterValidator(bounded_json)]
Token = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Holder = Annotated[str, StringConstraints(min_length=1, max_length=MAX_HOLDER_LENGTH), AfterValidator(_single_line)]
QueryToken = Annotated[int, Field(ge=1, le=MAX_INTEGER), BeforeValidator(_digits)]
Limit = Annotated[int, Field(ge=1, le=200), BeforeValidator(_digits)]
QueryWait = Annotated[int, Field(ge=0, le=MAX_WAIT_SECONDS), BeforeValidator(_digits)]
Instant = Annotated[AwareDatetime, BeforeValidator(_instant)]


class Body(BaseModel):
    """A request body, or a query: strict types, no unknown member."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    #: What the API's document shows: a body as somebody would send it.
    EXAMPLE: ClassVar[Mapping[str, Any]] = {}


class Page(Body):
    """The query of a list."""

    limit: Limit = 50
    after: Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID_LENGTH)] | None = None


Parsed = TypeVar("Parsed", bound=Body)


def parse_body(request: HttpRequest, model: type[Parsed]) -> Parsed:
    """Raises ValidationError, PayloadTooLarge, UnsupportedMediaType."""
    return validated(model, json_object(request))


def parse_query(request: HttpRequest, model: type[Parsed]) -> Parsed:
    """Raises ValidationError, also for a parameter that is unknown or given twice."""
    given: dict[str, Any] = {}
    for name, value in _parameters(request):
        if name in given:
            raise ValidationError("The query is malformed.", **{_legible(name): "is given more than once"})
        if _has_surrogate(value):
            raise ValidationError("The query is malformed.", **{_legible(name): "is not UTF-8"})
        given[name] = value
    return validated(model, given)


def _parameters(request: HttpRequest) -> list[tuple[str, str]]:
    """Not Django's: that one believes the body's charset, and replaces what is not UTF-8. Here it is a surrogate."""
    text = request.META.get("QUERY_STRING", "").encode("latin-1", "replace").decode("utf-8", "surrogateescape")
    try:
        return parse_qsl(text, keep_blank_values=True, errors="surrogateescape", max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise ValidationError("The query is malformed.", query="has too many parameters") from None


def refuse_surplus(request: HttpRequest, *, query: bool, body: bool) -> None:
    """Raises ValidationError for a query or a body that the operation would not read."""
    if not query and request.META.get("QUERY_STRING"):
        parse_query(request, Body)
    has_body = request.META.get("CONTENT_LENGTH") not in (None, "", "0") or "HTTP_TRANSFER_ENCODING" in request.META
    if not body and has_body:
        parse_body(request, Body)


def json_object(request: HttpRequest) -> dict[str, Any]:
    text = _body_text(request)
    if not text:
        return {}
    try:
        value, end = _decoder.raw_decode(text, _skip_space(text, 0))
        if _skip_space(text, end) != len(text):
            raise ValueError("there is more after the JSON value")
    except RecursionError:
        raise ValidationError("The body is nested too deeply.", body="is nested too deeply") from None
    except ValueError as error:
        raise ValidationError("The body is not JSON.", body=f"is not JSON: {error}"[:200]) from None
    if not isinstance(value, dict):
        raise ValidationError("The body must be a JSON object.", body="must be a JSON object")
    return value


def body_bytes(request: HttpRequest) -> bytes:
    """The whole body. Raises PayloadTooLarge, UnsupportedMediaType, ValidationError when it broke off."""
    declared = request.META.get("CONTENT_LENGTH") or "0"
    if declared.isascii() and declared.isdigit() and int(declared[:12]) > MAX_BODY_BYTES:
        raise PayloadTooLarge(f"The body is larger than {MAX_BODY_BYTES} bytes.")
    try:
        body = request.body
    except RequestDataTooBig:
        raise PayloadTooLarge(f"The body is larger than {MAX_BODY_BYTES} bytes.") from None
    except RawPostDataException:
        raise ValidationError("The body could not be read.", body="could not be read") from None
    if len(body) > MAX_BODY_BYTES:
        raise PayloadTooLarge(f"The body is larger than {MAX_BODY_BYTES} bytes.")
    if _broke_off(request, len(body)):
        raise ValidationError("The body broke off before its end.", body="broke off before its end")
    media_type = request.META.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    if body and media_type not in ("application/json", "") and not media_type.endswith("+json"):
        raise UnsupportedMediaType(f"Send JSON, as application/json, not {media_type[:100]}.")
    return body


def _body_text(request: HttpRequest) -> str:
    try:
        return body_bytes(request).decode("utf-8")
    except UnicodeDecodeError:
        raise ValidationError("The body is not UTF-8.", body="is not UTF-8") from None


def _broke_off(request: HttpRequest, received: int) -> bool:
    """Whether less arrived than was announced. What is left must not be carried out, nor be taken for no body."""
    if "HTTP_TRANSFER_ENCODING" in request.META:
        # Of chunks the length is not known, and whoever sends nothing sends none.
        return received == 0
    declared = request.META.get("CONTENT_LENGTH") or "0"
    return declared.isascii() and declared.isdigit() and received < int(declared[:12])


def _skip_space(text: str, start: int) -> int:
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    return start


def validated(model: type[Parsed], given: dict[str, Any]) -> Parsed:
    for name in given:
        if _has_surrogate(name):
            raise ValidationError("A member's name is not Unicode.", **{_legible(name): "is not a known member"})
    try:
        return model.model_validate(given)
    except pydantic.ValidationError as error:
        wrong: dict[str, str] = {}
        for problem in error.errors(include_url=False, include_input=False):
            name = ".".join(str(part) for part in problem["loc"]) or "body"
            wrong.setdefault(_legible(name), _sentence(problem["type"], problem.get("ctx", {})))
        raise ValidationError("; ".join(f"{name}: {text}" for name, text in list(wrong.items())[:5]), **wrong) from None


def _legible(name: str) -> str:
    """A member's name, which may be anything, as something that can be written back."""
    return name[:MAX_ID_LENGTH].encode("utf-8", "backslashreplace").decode()


def _sentence(kind: str, bounds: Mapping[str, Any]) -> str:
    if kind == "value_error":
        return str(bounds["error"])
    if kind.endswith("too_short") and bounds["min_length"] == 1:
        return "must not be empty"
    return SENTENCES.get(kind, "is not valid").format_map(bounds)
