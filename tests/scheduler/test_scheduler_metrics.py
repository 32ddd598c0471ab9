"""What an instance counts about itself, in the default registry: above all, that it runs nothing, and why."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from prometheus_client import REGISTRY, generate_latest
from psycopg.conninfo import conninfo_to_dict
from test_single_instance import outcome, run, until

from holdfast.scheduler import Execution, ScheduledAction, Scheduler
from holdfast.scheduler.store import Taken


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"holdfast_scheduler_{name}", labels) or 0.0


def growth(name: str, **labels: str) -> Callable[[], float]:
    """By how much it has grown since."""
    before = value(name, **labels)
    return lambda: value(name, **labels) - before


async def works(execution: Execution) -> None: ...


async def fails(execution: Execution) -> None:
    raise RuntimeError("no")


async def hangs(execution: Execution) -> None:
    await asyncio.Event().wait()


HANDLERS: dict[str, Any] = {"works": works, "fails": fails, "hangs": hangs}


@contextmanager
def closed(url: str, server_url: str) -> Iterator[None]:
    """The database throws everybody out and lets nobody in."""
    name = conninfo_to_dict(url)["dbname"]
    with psycopg.connect(server_url, autocommit=True) as server:
        server.execute(f"alter database {name} with allow_connections false")  # type: ignore[arg-type]
        server.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,))
        yield
        server.execute(f"alter database {name} with allow_connections true")  # type: ignore[arg-type]


def test_a_database_that_cannot_be_asked_is_counted_warned_of_and_nothing_runs(
    url: str, holdfast_postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []

    async def note(execution: Execution) -> None:
        ran.append(execution.run.id)

    async def main() -> None:
        async with Scheduler(url, dispatchers={"note": note}, poll_interval=0.1) as scheduler:
            fields: Any = {"schedule_type": "interval", "interval_seconds": 1, "misfire": "run_all"}
            action = await scheduler.add(ScheduledAction(action_type="note", **fields))
            assert action.id is not None
            await until(lambda: ran)
            errors = {place: growth("database_errors_total", place=place) for place in ("claim", "lock", "listen")}
            with closed(url, holdfast_postgres_url):
                await until(errors["claim"])  # nothing is being claimed any more
                before, claims = list(ran), growth("claims_total", action_type="note")
                assert not await scheduler._try_acquire_action_lock(action.id)
                due_again = time.monotonic() + 1
                await until(lambda: time.monotonic() > due_again)
                await until(growth("database_errors_total", place="claim"))
                assert ran == before and claims() == 0
                assert not scheduler.health().healthy and errors["lock"]() == 1
            await until(lambda: len(ran) > len(before) + 1)
            assert scheduler.health().healthy and errors["listen"]() >= 1

    run(main())
    assert "action=claim_failed" in caplog.text


def test_attempts_are_counted_by_outcome() -> None:
    async def main() -> None:
        async with Scheduler(dispatchers=HANDLERS) as scheduler:
            ended = {
                (kind, as_what): growth("ended_total", action_type=kind, outcome=as_what)
                for kind, as_what in (
                    ("works", "completed"), ("fails", "retried"), ("fails", "failed"), ("hangs", "timeout"),
                    ("hangs", "handed_back"),
                )
            }  # fmt: skip
            claims, late = growth("claims_total", action_type="fails"), growth("start_delay_seconds_count")
            running = value("running")
            await outcome(scheduler, action_type="works")
            await outcome(scheduler, action_type="fails", max_retries=2, retry_delay_seconds=0)
            await outcome(scheduler, action_type="hangs", timeout_seconds=0.05)
            action = await scheduler.add(ScheduledAction(action_type="hangs", recovery="at_least_once"))
            assert action.id is not None
            await scheduler.trigger(action.id)
            await until(lambda: scheduler.health().running)
            assert value("running") == running + 1
            await scheduler.stop(0)
            assert {what: grew() for what, grew in ended.items()} == {
                ("works", "completed"): 1, ("fails", "retried"): 2, ("fails", "failed"): 1, ("hangs", "timeout"): 1,
                ("hangs", "handed_back"): 1,
            }  # fmt: skip
            assert claims() == 3 and late() == 4, "how late a retry is says nothing"
            assert value("running") == running

    run(main())


@pytest.mark.parametrize("where", ["memory", "postgres"])
def test_what_ends_without_an_attempt_is_counted_too(request: pytest.FixtureRequest, where: str) -> None:
    """An occurrence that comes while the last run has not ended, and a run whose instance is gone."""
    async_db = None if where == "memory" else request.getfixturevalue("url")

    async def main() -> None:
        skipped = growth("ended_total", action_type="hangs", outcome="skipped")
        failed = growth("ended_total", action_type="hangs", outcome="failed")
        async with Scheduler(async_db, dispatchers=HANDLERS, lease=1, poll_interval=0.05) as scheduler:
            fields: Any = {"schedule_type": "interval", "interval_seconds": 1}
            await scheduler.add(ScheduledAction(action_type="hangs", **fields))
            await until(lambda: skipped() >= 1)
            scheduler._leases.renew = lambda: asyncio.sleep(0)  # type: ignore[method-assign,assignment]
            await until(lambda: failed() >= 1)
            await scheduler.stop(0)

    run(main())


def test_endings_that_come_too_late_and_claims_that_were_lost_are_counted(
    url: str, db: psycopg.Connection[Any]
) -> None:
    gate = asyncio.Event()

    async def waits(execution: Execution) -> None:
        await gate.wait()

    async def taken_by_another(lease: float, counted: Callable[[], float], after: Callable[[], None]) -> None:
        async with Scheduler(url, dispatchers={"waits": waits}, lease=lease) as scheduler:
            action = await scheduler.add(ScheduledAction(action_type="waits"))
            assert action.id is not None
            await scheduler.trigger(action.id)
            await until(lambda: scheduler.health().running)
            db.execute("update holdfast.scheduled_run set attempt = attempt + 1 where state = 'running'")
            after()
            await until(lambda: counted() == 1)
            db.execute("delete from holdfast.scheduled_action")

    async def main() -> None:
        await taken_by_another(3, growth("claims_lost_total"), lambda: None)
        await taken_by_another(60, growth("endings_refused_total"), gate.set)

    run(main())


def test_a_claim_that_became_known_after_its_lease_had_ended_is_not_begun(url: str) -> None:
    """The process stood still between the commit and its answer: by now the run may be another's."""
    ran: list[int] = []

    async def note(execution: Execution) -> None:
        ran.append(execution.run.attempt)

    async def main() -> None:
        scheduler = Scheduler(url, dispatchers={"note": note}, lease=2.5, poll_interval=0.1)
        lost, claim_due, stood_still = growth("claims_lost_total"), scheduler._store.claim_due, False

        async def stand_still_after(*arguments: Any) -> Taken:
            nonlocal stood_still
            taken = await claim_due(*arguments)
            if taken.claims and not stood_still:
                stood_still = True
                time.sleep(2.6)  # noqa: ASYNC251  the whole process, as SIGSTOP does it
            return taken

        scheduler._store.claim_due = stand_still_after  # type: ignore[method-assign]
        async with scheduler:
            action = await scheduler.add(ScheduledAction(action_type="note", recovery="at_least_once"))
            assert action.id is not None
            await scheduler.trigger(action.id)
            await until(lambda: ran)
        assert ran == [2] and lost() == 1

    run(main())


def test_labels_are_bounded_by_the_dispatchers_that_there_are() -> None:
    handlers = dict(HANDLERS)

    async def main() -> None:
        async with Scheduler(dispatchers=handlers) as scheduler:
            claims = growth("claims_total", action_type="unknown")
            action = await scheduler.add(ScheduledAction(action_type="works", name="user zebra"))
            assert action.id is not None
            del handlers["works"]  # as on an instance that has another version of the application
            await scheduler.trigger(action.id)
            await until(claims)

    run(main())
    assert b"zebra" not in generate_latest()  # letters: any digits may be those of a time


def test_without_prometheus_nothing_is_counted_and_all_goes_on() -> None:
    program = (
        "import sys, asyncio; sys.modules['prometheus_client'] = None\n"
        "from holdfast.scheduler import ScheduledAction, Scheduler\n"
        "async def main():\n"
        "    ran = asyncio.Event()\n"
        "    async def note(execution): ran.set()\n"
        "    async with Scheduler(dispatchers={'note': note}) as scheduler:\n"
        "        action = await scheduler.add(ScheduledAction(action_type='note'))\n"
        "        await scheduler.trigger(action.id)\n"
        "        await ran.wait()\n"
        "    assert scheduler.statistics.completed == 1\n"
        "asyncio.run(main())"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)
