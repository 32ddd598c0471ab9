"""What those see who only look: agents, one agent's story, and what changes. Takes no lock; always of one tenant."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sqlalchemy import text

from .database import Database
from .machine import State

_AGENTS: Final = """
    select a.id, a.session_id, p.path as project, a.cwd, a.model, a.source, a.transcript_path,
        a.permission_mode, a.effort, a.client_version, a.git_branch,
        a.first_seen_at, a.last_seen_at, a.ended_at, a.end_reason,
        case when a.ended_at is not null then 'ENDED' when c.state is null or c.state = 'COMPLETE' then 'IDLE'
            else c.state end as state,
        c.id as command_id, c.state as command_state, c.opened_at, c.changed_at, c.completed_at, c.waits_for,
        (select left(t.text, 2000) from holdfast.turn t where t.command_id = c.id and t.intent = 'COMMAND'
            order by t.id limit 1) as prompt,
        (select right(t.text, 2000) from holdfast.turn t where t.command_id = c.id and t.actor = 'AGENT'
            and t.intent in ('QUESTION', 'COMPLETION', 'END_OF_COMMAND') order by t.id desc limit 1) as said
    from holdfast.agent a
    left join holdfast.project p on p.id = a.project_id
    left join lateral (select * from holdfast.command c where c.agent_id = a.id order by c.id desc limit 1) c on true
    where a.tenant = :tenant
"""
_LIST: Final = text(
    f"{_AGENTS} and a.id < coalesce(cast(:before as bigint), 9223372036854775807) order by a.id desc limit :most"
)
_ONE: Final = text(f"{_AGENTS} and a.id = :id")
_TURNS: Final = text("""
    select number, actor, intent, text, tool_name, command_id, created_at from holdfast.turn
    where agent_id = :id order by number desc limit :most
""")
_EVENTS: Final = text("""
    select number, name, status, effect, late, failures, error, received_at, processed_at from holdfast.event
    where agent_id = :id order by number desc limit :most
""")
# A transaction that is still under way may have a lower number than one that is done: only what is below the oldest
# such is told, or somebody who follows along would miss it.
_CHANGES: Final = text("""
    select e.processed_in, e.id, e.agent_id, a.session_id, e.number, e.name, e.status, e.effect
    from holdfast.event e join holdfast.agent a on a.id = e.agent_id
    where (e.processed_in, e.id) > (:transaction, :id) and e.processed_in < txid_snapshot_xmin(txid_current_snapshot())
        and a.tenant = :tenant
    order by e.processed_in, e.id limit 500
""")
_STATES: Final = text("""
    select case when a.ended_at is not null then 'ENDED' else coalesce(c.state, 'IDLE') end as state, count(*)
    from holdfast.agent a left join holdfast.command c on c.agent_id = a.id and c.state <> 'COMPLETE'
    where a.tenant = :tenant group by 1
""")
_BACKLOG: Final = text("""
    select
        (select count(*) from holdfast.event e join holdfast.agent a on a.id = e.agent_id
            where e.status = 'pending' and a.tenant = :tenant) as pending,
        (select coalesce(extract(epoch from clock_timestamp() - min(e.received_at)), 0)::float8
            from holdfast.event e join holdfast.agent a on a.id = e.agent_id
            where e.status = 'pending' and a.tenant = :tenant) as oldest_seconds,
        (select count(*) from holdfast.event e join holdfast.agent a on a.id = e.agent_id
            where e.status = 'set_aside' and a.tenant = :tenant) as set_aside,
        (select count(*) from holdfast.outbox o join holdfast.agent a on a.id = o.agent_id
            where o.status = 'waiting' and a.tenant = :tenant) as messages_waiting,
        (select count(*) from holdfast.outbox o join holdfast.agent a on a.id = o.agent_id
            where o.status = 'set_aside' and a.tenant = :tenant) as messages_set_aside
""")
_NOW: Final = text("select txid_snapshot_xmin(txid_current_snapshot())")


class Position(NamedTuple):
    """How far somebody has followed along."""

    transaction: int
    id: int

    def __str__(self) -> str:
        return f"{self.transaction}-{self.id}"

    @classmethod
    def parse(cls, text: str) -> Position:
        transaction, _, id_ = text.partition("-")
        if not (transaction.isdecimal() and id_.isdecimal() and len(text) <= 38):
            raise ValueError("not a position in the stream of changes")
        return cls(min(int(transaction), 2**63 - 1), min(int(id_), 2**63 - 1))


class Figures(NamedTuple):
    """How one tenant's agents are, and what waits for being done for them."""

    agents: dict[str, int]
    """By state: those of an open command, IDLE, and ENDED."""
    pending: int
    oldest_seconds: float
    set_aside: int
    messages_waiting: int
    messages_set_aside: int


class View:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def agents(self, tenant: str, *, before: int | None, most: int) -> list[dict[str, Any]]:
        rows = await self._rows(_LIST, tenant=tenant, before=before, most=most)
        return [_agent(row) for row in rows]

    async def agent(self, tenant: str, id_: int, *, most: int) -> dict[str, Any] | None:
        found = await self._rows(_ONE, tenant=tenant, id=id_)
        if not found:
            return None
        turns = await self._rows(_TURNS, id=id_, most=most)
        events = await self._rows(_EVENTS, id=id_, most=most)
        return {**_agent(found[0]), "turns": turns[::-1], "events": events[::-1]}

    async def figures(self, tenant: str) -> Figures:
        states = dict.fromkeys([*(state.value for state in State if state is not State.COMPLETE), "ENDED"], 0)
        async with self._database.statement() as connection:
            for state, count in await connection.execute(_STATES, {"tenant": tenant}):
                states[state] = count
            backlog = (await connection.execute(_BACKLOG, {"tenant": tenant})).mappings().one()
        return Figures(states, **backlog)

    async def now(self) -> Position:
        async with self._database.statement() as connection:
            return Position((await connection.execute(_NOW)).scalar_one(), 0)

    async def changes(self, tenant: str, after: Position) -> list[tuple[Position, dict[str, Any]]]:
        """What was worked off since, in an order that nothing can be slipped into afterwards."""
        rows = await self._rows(_CHANGES, tenant=tenant, transaction=after.transaction, id=after.id)
        return [(Position(row.pop("processed_in"), row.pop("id")), row) for row in rows]

    async def _rows(self, statement: Any, **parameters: Any) -> list[dict[str, Any]]:
        async with self._database.statement() as connection:
            return [dict(row) for row in (await connection.execute(statement, parameters)).mappings()]


def _agent(row: dict[str, Any]) -> dict[str, Any]:
    command = None
    if row["command_id"] is not None:
        command = {
            "id": row["command_id"],
            "state": row["command_state"],
            "prompt": row["prompt"],
            "said": row["said"],
            "waits_for": row["waits_for"],
            "opened_at": row["opened_at"],
            "changed_at": row["changed_at"],
            "completed_at": row["completed_at"],
        }
    context = (
        "project", "cwd", "git_branch", "model", "effort", "permission_mode", "source", "client_version",
        "transcript_path",
    )  # fmt: skip
    seen = ("first_seen_at", "last_seen_at", "ended_at", "end_reason")
    return {
        "id": row["id"],
        "session_id": row["session_id"],
        "state": row["state"],
        "since": row["ended_at"] or row["completed_at"] or row["changed_at"] or row["first_seen_at"],
        "command": command,
        **{name: row[name] for name in seen},
        "context": {name: row[name] for name in context},
    }
