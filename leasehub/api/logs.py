"""Log lines carry the request's id and never a secret."""

import json
import logging
import re
from contextvars import ContextVar

from leasehub.db import clock
from leasehub.db.sqlite import clock as process_clock

request_id: ContextVar[str] = ContextVar("request_id", default="-")

SECRET = re.compile(r"lh_[0-9A-Za-z]{8}_[0-9A-Za-z]{49}")


class RequestId(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id.get()
        return True


class RedactSecrets(logging.Filter):
    """Replaces API keys in the message, its arguments and the traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if SECRET.search(text):
            record.msg, record.args = SECRET.sub("lh_…", text), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = SECRET.sub("lh_…", record.exc_text)
        return True


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": clock.iso(process_clock.now()),
            "level": record.levelname,
            "logger": record.name,
            "request_id": getattr(record, "request_id", "-"),
            "message": record.getMessage(),
        }
        if record.exc_text:
            line["traceback"] = record.exc_text
        return json.dumps(line, ensure_ascii=False)
