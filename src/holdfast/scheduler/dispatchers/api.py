"""``call_api``: one HTTP request, its answer recorded.

Config: ``url``, ``method`` (GET), ``headers``, ``params``, ``json`` or ``body``, ``timeout`` (seconds, 30), ``retries``
(of safe methods, 2), ``max_response_bytes`` (64 KiB). The run's idempotency key goes along as ``Idempotency-Key``. An
answer from 400 on is a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ..execution import Execution

if TYPE_CHECKING:
    import httpx

_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_TRANSIENT: Final = (429, 502, 503, 504)
_FIRST_PAUSE: Final = 0.2
_MAX_RECORDED: Final = 64 * 1024


async def call_api(execution: Execution) -> dict[str, Any]:
    return await request(execution, execution.action.action_config)


async def request(execution: Execution, config: Mapping[str, Any]) -> dict[str, Any]:
    import httpx  # when it is first needed: it takes longer to load than the scheduler

    method = str(config.get("method", "GET")).upper()
    url = config.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ValueError("action_config: url begins with http:// or https://")
    # A request that may have been carried out is not sent again, unless it changes nothing.
    retries = _whole(config, "retries", 2) if method in _SAFE else 0
    headers = {"Idempotency-Key": execution.idempotency_key, **config.get("headers", {})}
    limit = float(config.get("timeout", 30))
    async with httpx.AsyncClient(timeout=limit, headers=headers) as client:
        for tries_left in range(retries, -1, -1):
            try:
                async with asyncio.timeout(limit):  # for all of it: httpx's own begins anew with every byte
                    answer = await _send(client, method, url, config)
            except (httpx.TransportError, TimeoutError) as error:
                if not tries_left:
                    return {"error": f"{method} {url}: {type(error).__name__}: {error}"}
            else:
                if answer["status"] not in _TRANSIENT or not tries_left:
                    return answer
            await asyncio.sleep(_FIRST_PAUSE * 2 ** (retries - tries_left))
    raise AssertionError("unreachable")


async def _send(client: httpx.AsyncClient, method: str, url: str, config: Mapping[str, Any]) -> dict[str, Any]:
    limit = min(_whole(config, "max_response_bytes", _MAX_RECORDED), _MAX_RECORDED)
    sent = {
        name: config[key]
        for name, key in (("params", "params"), ("json", "json"), ("content", "body"))
        if key in config
    }
    async with client.stream(method, url, **sent) as response:
        body = bytearray()
        async for piece in response.aiter_bytes(8192):
            body += piece
            if len(body) > limit:  # the rest is neither read nor kept
                break
        answer: dict[str, Any] = {
            "status": response.status_code,
            "content_type": response.headers.get("content-type"),
            "body": bytes(body[:limit]).decode(response.encoding or "utf-8", "replace").replace("\x00", "�"),
            "truncated": len(body) > limit,
        }
    if response.status_code >= 400:
        answer["error"] = f"{method} {url}: {response.status_code} {response.reason_phrase}"
    return answer


def _whole(config: Mapping[str, Any], name: str, default: int) -> int:
    value = config.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"action_config: {name} is a whole number from 0")
    return value
