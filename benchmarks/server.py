"""The server's hook routes: what the agent's lock costs, how soon SessionEnd is answered, storms on one and 25 agents.

Servers are processes of their own; this one makes the load, over loopback, on one connection for each agent. The peer
is the same server without the agent's lock (events are still stored, numbered and worked off in order).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import psycopg

from holdfast.embedded import start_postgres
from holdfast.hooks.folders import spool_dir
from holdfast.hooks.spool import Spool

from .figure import Figure, show

AGENTS, EVENTS_EACH, ROUNDS = 50, 12, 5
SESSION_ENDS = 100
STORM = 200
CROWD = 25
SHIMS = 25


class Target(NamedTuple):
    host: str
    port: int
    token: str


class Connection:
    """Just enough HTTP: a request, its status, an empty body."""

    def __init__(self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._target, self._reader, self._writer = target, reader, writer

    @classmethod
    async def open(cls, target: Target) -> Connection:
        return cls(target, *await asyncio.open_connection(target.host, target.port))

    async def post(self, report: dict[str, Any]) -> int:
        body = json.dumps(report).encode()
        return await self._ask("POST /hook", body, f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n")

    async def look(self) -> int:
        """A request that has nothing to do with any agent's lock. The last one: its answer's body is not read."""
        return await self._ask("GET /hook/status")

    async def _ask(self, line: str, body: bytes = b"", headers: str = "") -> int:
        head = (
            f"{line} HTTP/1.1\r\nHost: {self._target.host}\r\nAuthorization: Bearer {self._target.token}\r\n{headers}"
        )
        self._writer.write(f"{head}\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        return int(answer.split(b" ", 2)[1])

    def close(self) -> None:
        self._writer.close()


def measure() -> Iterator[Figure]:
    with ExitStack() as open_things:
        folder = Path(open_things.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-")))
        postgres = open_things.enter_context(start_postgres(folder / "pg", options={"fsync": "off"}))
        servers = {
            name: open_things.enter_context(_server(name, postgres.url, folder / name))
            for name in ("locked", "unlocked", "second")
        }
        yield from _throughput(servers)
        yield from _session_end(servers["locked"], postgres.url)
        yield from _storm([servers["locked"], servers["second"]], postgres.url)
        yield from _crowd(servers["locked"], postgres.url)
        yield from _shim(servers["locked"], folder / "locked")


def _throughput(servers: dict[str, Target]) -> Iterator[Figure]:
    rates: dict[str, list[float]] = {"locked": [], "unlocked": []}
    delays: dict[str, list[float]] = {"locked": [], "unlocked": []}
    for turn in range(-1, ROUNDS):  # one round to warm up
        for name in rates:
            rate, took = asyncio.run(_load(servers[name], f"{name}-{turn}"))
            if turn >= 0:
                rates[name].append(rate)
                delays[name] += took
    locked, unlocked = median(rates["locked"]), median(rates["unlocked"])
    ratio = median(without / with_ for with_, without in zip(rates["locked"], rates["unlocked"], strict=True))
    yield Figure(f"{AGENTS} agents, events a second", locked, "/s")
    yield Figure("  without the agents' locks", unlocked, "/s")
    yield Figure("  without over with, median of rounds", ratio, "×", 1 / 0.85)
    for name, label in (("locked", "answered after"), ("unlocked", "  without the agents' locks")):
        parts = quantiles(delays[name], n=100)
        yield Figure(f"{label}, p50", parts[49] * 1000, "ms")
        yield Figure(f"{label}, p99", parts[98] * 1000, "ms")


async def _load(target: Target, prefix: str) -> tuple[float, list[float]]:
    delays: list[float] = []

    async def agent(number: int, connection: Connection) -> None:
        for n in range(EVENTS_EACH):
            began = time.perf_counter()
            status = await connection.post(_tool(f"{prefix}-{number}", n))
            delays.append(time.perf_counter() - began)
            assert status == 200, status

    async with _connections(target, AGENTS) as connections:
        began = time.perf_counter()
        await asyncio.gather(*(agent(number, connection) for number, connection in enumerate(connections)))
        return AGENTS * EVENTS_EACH / (time.perf_counter() - began), delays


def _session_end(target: Target, url: str) -> Iterator[Figure]:
    async def ends() -> list[float]:
        delays = []
        async with _connections(target, 1) as (connection,):
            await connection.post({"session_id": "ends", "hook_event_name": "SessionStart"})
            with psycopg.connect(url, autocommit=True) as db:
                db.execute("select pg_advisory_lock(1, (select id::int from holdfast.agent where session_id = 'ends'))")
                for n in range(SESSION_ENDS):
                    began = time.perf_counter()
                    status = await connection.post({"session_id": "ends", "hook_event_name": "SessionEnd", "n": n})
                    delays.append(time.perf_counter() - began)
                    assert status == 202, status
        return delays

    yield Figure("SessionEnd of a locked agent, p99", quantiles(asyncio.run(ends()), n=100)[98] * 1000, "ms", 200)


def _storm(targets: list[Target], url: str) -> Iterator[Figure]:
    async def storm() -> float:
        async with _connections(targets[0], STORM // 2) as one, _connections(targets[1], STORM // 2) as other:
            began = time.perf_counter()
            statuses = await asyncio.gather(
                *(connection.post(_tool("storm", n)) for n, connection in enumerate([*one, *other]))
            )
            assert set(statuses) == {200}, statuses
            return time.perf_counter() - began

    took = asyncio.run(storm())
    with psycopg.connect(url) as db:
        done = db.execute(
            "select number from holdfast.event e join holdfast.agent a on a.id = agent_id "
            "where session_id = 'storm' and status = 'done' order by processed_at"
        ).fetchall()
    yield Figure(f"{STORM} events at once on one agent, two servers", took, "s")
    out_of_place = sum(number != place for place, (number,) in enumerate(done, 1)) + STORM - len(done)
    yield Figure("  lost or out of order", out_of_place, "", 0)


def _crowd(target: Target, url: str) -> Iterator[Figure]:
    """As many agents as the pool has connections, each with a hook that waits for its lock; and somebody else."""
    names = [f"crowd-{number}" for number in range(CROWD)]
    taken = "select pg_advisory_lock(1, id::int) from holdfast.agent where session_id = any (%s)"
    stored = (
        "select count(*) from holdfast.event e join holdfast.agent a on a.id = agent_id "
        "where session_id = any (%s) and status = 'pending'"
    )

    async def crowd() -> tuple[float, int]:
        async with _connections(target, CROWD) as connections, _connections(target, 1) as (other,):
            both = list(zip(connections, names, strict=True))
            await asyncio.gather(
                *(one.post({"session_id": name, "hook_event_name": "SessionStart"}) for one, name in both)
            )
            with psycopg.connect(url, autocommit=True) as db:
                db.execute(taken, (names,))
                hooks = [asyncio.create_task(one.post(_tool(name, 1))) for one, name in both]
                while db.execute(stored, (names,)).fetchone() != (CROWD,):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                began = time.perf_counter()
                assert await other.look() == 200
                took = time.perf_counter() - began
            return took, sum(status != 200 for status in await asyncio.gather(*hooks))

    took, failed = asyncio.run(crowd())
    yield Figure(f"{CROWD} hooks at once on {CROWD} locked agents, not processed", failed, "", 0)
    yield Figure("  another request meanwhile", took * 1000, "ms", 1000)


def _shim(target: Target, data: Path) -> Iterator[Figure]:
    """The command that an agent waits for, from its start to its end, with the event delivered."""
    url = f"http://{target.host}:{target.port}"
    shim = [sys.executable, "-m", "holdfast.cli", "hook", "--url", url, "--data-dir", str(data)]
    took: dict[str, list[float]] = {"shim": [], "python": []}
    for n in range(-2, SHIMS):  # some to warm up
        for name, command in (("shim", shim), ("python", [sys.executable, "-c", "pass"])):
            began = time.perf_counter()
            subprocess.run(command, input=json.dumps(_tool("shim", n)).encode(), check=True)
            if n >= 0:
                took[name].append(time.perf_counter() - began)
    assert Spool(spool_dir(data, url)).empty, "all were delivered"
    over = median(ours - bare for ours, bare in zip(took["shim"], took["python"], strict=True))
    yield Figure("holdfast hook over bare Python, median", over * 1000, "ms", 100)
    yield Figure("  bare Python", median(took["python"]) * 1000, "ms")


def _tool(session: str, n: int) -> dict[str, Any]:
    tool = {"tool_name": "Bash", "tool_input": {"command": "true"}, "tool_use_id": f"toolu_{n}"}
    return {"session_id": session, "cwd": "/home/dev/shop", "hook_event_name": "PostToolUse", **tool}


@asynccontextmanager
async def _connections(target: Target, number: int) -> AsyncIterator[list[Connection]]:
    connections = [await Connection.open(target) for _ in range(number)]
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


@contextmanager
def _server(name: str, url: str, data: Path) -> Iterator[Target]:
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": url, "HOLDFAST_DATA_DIR": str(data), "HOLDFAST_PORT": "0"}
    command = [sys.executable, "-m", "benchmarks.server", "serve", name]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            host, port = process.stdout.readline().split("//")[1].strip().split(":")
            target = Target(host, int(port), (data / "token").read_text().strip())
            yield target
        finally:
            process.terminate()


def _serve(name: str) -> int:
    """One of the servers; the unlocked one lets everybody in at once."""
    if name == "unlocked":
        from holdfast.agents.processing import Processor, Waited, ignore

        @asynccontextmanager
        async def not_alone(
            self: Processor, agent_id: int, *, wait: float, note: str, waited: Waited = ignore
        ) -> AsyncIterator[None]:
            async with self._slots:
                yield

        Processor.alone_with = not_alone  # type: ignore[method-assign,assignment]
    from holdfast.server.serve import serve
    from holdfast.server.settings import load

    return serve(load())


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[2]) if sys.argv[1:2] == ["serve"] else not show(measure()))
