"""Holdfast's entries in a client's settings: what they look like, how they are put in and taken out. Pure.

Ours are known by a mark: a header on HTTP hooks, a comment behind commands. Whatever has no mark is somebody else's.
"""

from __future__ import annotations

from shlex import quote
from typing import Any, Final

ROUTES: Final = {
    "SessionStart": "session-start",
    "SessionEnd": "session-end",
    "UserPromptSubmit": "user-prompt-submit",
    "Stop": "stop",
    "Notification": "notification",
    "PreToolUse": "pre-tool-use",
    "PostToolUse": "post-tool-use",
    "PermissionRequest": "permission-request",
}
WITHOUT_ROUTE: Final = ("PostToolUseFailure", "PostToolBatch", "StopFailure")
"""Without these nobody would tell that a call failed, was refused, or that the agent's service did not answer."""
EVENTS: Final = (*ROUTES, *WITHOUT_ROUTE)
COMMAND_ONLY: Final = frozenset({"SessionStart"})
"""The client takes no HTTP hook for these."""
MATCHED: Final = frozenset({"PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest"})
"""Events of tools: a matcher says which."""

MARK_HEADER: Final = "Holdfast-Hook"
MARK_COMMENT: Final = "# holdfast hooks"
TIMEOUT: Final = 30
"""Seconds: more than a hook waits for its agent's lock."""

Settings = dict[str, Any]


def installed(settings: Settings, *, url: str, token: str | None, shim: str) -> Settings:
    """The settings with our hooks in them. Without a token none is written: then every event goes by the shim."""
    new = removed(settings)
    hooks = dict(new.get("hooks") or {})
    for event in EVENTS:
        if token is None or event in COMMAND_ONLY:
            hook = _command(shim, url)
        else:
            route = f"hook/{ROUTES[event]}" if event in ROUTES else "hook"
            hook = _http(f"{url.rstrip('/')}/{route}", token)
        entry = {"matcher": "*", "hooks": [hook]} if event in MATCHED else {"hooks": [hook]}
        hooks[event] = [*hooks.get(event, []), entry]
    return {**new, "hooks": hooks}


def removed(settings: Settings) -> Settings:
    """The settings without our hooks; what that leaves empty goes as well, and nothing else."""
    hooks = settings.get("hooks")
    if not isinstance(hooks, dict):
        return dict(settings)
    kept: dict[str, Any] = {}
    for event, entries in hooks.items():
        left = _without_ours(entries)
        if left or left == entries:
            kept[event] = left
    if kept or not hooks:
        return {**settings, "hooks": kept}
    return {name: value for name, value in settings.items() if name != "hooks"}


def found(settings: Settings) -> dict[str, str]:
    """For each event that has a hook of ours: where it goes."""
    hooks = settings.get("hooks")
    if not isinstance(hooks, dict):
        return {}
    return {
        event: str(hook.get("url") or "the shim")
        for event, entries in hooks.items()
        for entry in (entries if isinstance(entries, list) else [])
        for hook in _hooks_of(entry)
        if is_ours(hook)
    }


def is_ours(hook: Any) -> bool:
    if not isinstance(hook, dict):
        return False
    headers = hook.get("headers")
    marked = isinstance(headers, dict) and MARK_HEADER in headers
    return marked or str(hook.get("command", "")).rstrip().endswith(MARK_COMMENT)


def _without_ours(entries: Any) -> Any:
    if not isinstance(entries, list):
        return entries
    left = []
    for entry in entries:
        hooks = _hooks_of(entry)
        theirs = [hook for hook in hooks if not is_ours(hook)]
        if len(theirs) == len(hooks):
            left.append(entry)
        elif theirs:
            left.append({**entry, "hooks": theirs})
    return left


def _hooks_of(entry: Any) -> list[Any]:
    hooks = entry.get("hooks") if isinstance(entry, dict) else None
    return hooks if isinstance(hooks, list) else []


def _http(url: str, token: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}", MARK_HEADER: "1"}
    return {"type": "http", "url": url, "timeout": TIMEOUT, "headers": headers}


def _command(shim: str, url: str) -> dict[str, Any]:
    return {"type": "command", "command": f"{shim} --url {quote(url)} {MARK_COMMENT}", "timeout": TIMEOUT}
