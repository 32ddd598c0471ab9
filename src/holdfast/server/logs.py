"""Logs: one JSON object a line, with ``action`` to look for, and no secret in them."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final

_ALWAYS_THERE: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}
_SECRETS: Final = (
    (re.compile(r"hf_[A-Za-z0-9_-]{20,}"), "hf_…"),
    (re.compile(r"(?i)(bearer\s+)[^\s\"']+"), r"\1…"),
    (re.compile(r"(?i)([a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s/]*@"), r"\1:…@"),
    (re.compile(r"(?i)(password\s*=\s*)('[^']*'|\S+)"), r"\1…"),
)


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": moment,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            **{name: value for name, value in vars(record).items() if name not in _ALWAYS_THERE},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return redacted(json.dumps(line, default=str, ensure_ascii=False))


def redacted(text: str) -> str:
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def configure(level: int = logging.INFO) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for chatty in ("uvicorn.error", "alembic", "httpx", "httpcore"):  # httpx would tell the webhook's address
        logging.getLogger(chatty).setLevel(logging.WARNING)
