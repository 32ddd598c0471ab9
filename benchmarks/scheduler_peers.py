"""The same 200 actions every second, as ``procrastinate`` and APScheduler 3 are told them."""

from __future__ import annotations

import asyncio
import logging
import sys
import time

ACTIONS = 200

BEGUN: list[tuple[str, float, float]] = []
"""Which action, for which moment, began when."""


async def procrastinate(url: str, seconds: float) -> None:
    import procrastinate as peer

    app = peer.App(connector=peer.PsycopgConnector(conninfo=url))
    for number in range(ACTIONS):

        async def tick(timestamp: int, number: int = number) -> None:
            BEGUN.append((str(number), float(timestamp), time.time()))

        task = app.task(name=f"tick{number}", pass_context=False)(tick)
        app.periodic(cron="* * * * * *")(task)
    async with app.open_async():
        worker = asyncio.create_task(app.run_worker_async(concurrency=200, install_signal_handlers=False))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        worker.cancel()
        await asyncio.wait([worker])


def prepare_procrastinate(url: str) -> None:
    import procrastinate as peer

    app = peer.App(connector=peer.SyncPsycopgConnector(conninfo=url))
    with app.open():
        app.schema_manager.apply_schema()


def apscheduler_tick(number: int) -> None:
    now = time.time()
    BEGUN.append((str(number), float(int(now)), now))  # it does not say for which moment


def apscheduler(url: str) -> None:
    """Every process has the same job store, as its users often have it."""
    import psycopg
    import sqlalchemy
    from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
    from apscheduler.schedulers.background import BackgroundScheduler

    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # it complains about what is being counted
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    scheduler = BackgroundScheduler(
        jobstores={"default": SQLAlchemyJobStore(engine=engine)},
        timezone="UTC",
        job_defaults={"misfire_grace_time": 30},
    )
    scheduler.start(paused=True)
    print("ready", flush=True)
    sys.stdin.readline()
    scheduler.resume()
    sys.stdin.readline()
    scheduler.shutdown(wait=False)


def prepare_apscheduler(url: str, start: float) -> None:
    from datetime import UTC, datetime

    import psycopg
    import sqlalchemy
    from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
    from apscheduler.schedulers.background import BackgroundScheduler

    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    scheduler = BackgroundScheduler(jobstores={"default": SQLAlchemyJobStore(engine=engine)}, timezone="UTC")
    scheduler.start(paused=True)
    begin = datetime.fromtimestamp(start, UTC)
    for number in range(ACTIONS):
        scheduler.add_job(
            "benchmarks.scheduler_peers:apscheduler_tick", "interval", seconds=1, start_date=begin, args=[number],
            id=str(number), misfire_grace_time=30,
        )  # fmt: skip
    scheduler.shutdown()
    engine.dispose()
