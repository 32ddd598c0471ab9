"""``holdfast schedule …``: scheduled actions of a PostgreSQL database, and an instance that runs them."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ..errors import InvalidOption
from .db import URL_VARIABLE

_NO_LIMIT: Final = float("inf")

if TYPE_CHECKING:
    from ..scheduler import ScheduledAction, ScheduledRun, Scheduler


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--url", help=f"postgresql://… (default: {URL_VARIABLE})")
    common.add_argument("--namespace", type=int, default=2, help="which deployment's, in a shared database (default 2)")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_add(actions.add_parser("add", parents=[common], help="add an action; prints its id"))
    shown = actions.add_parser("list", parents=[common], help="the actions")
    shown.add_argument("--json", action="store_true", help="one JSON object on each line, with all fields")
    for name, text in (
        ("runs", "the newest runs of an action"),
        ("pause", "begin no more runs"),
        ("resume", "go on from now"),
        ("trigger", "run now; 1 if its last run has not ended"),
        ("rm", "delete an action and its runs"),
    ):
        one = actions.add_parser(name, parents=[common], help=text)
        one.add_argument("id", type=int)
        if name == "runs":
            one.add_argument("--limit", type=int, default=20)
            one.add_argument("--json", action="store_true", help="one JSON object on each line, with all fields")
        if name == "trigger":
            one.add_argument("--payload", metavar="JSON", help="what its run is given")
    fire = actions.add_parser("fire", parents=[common], help="run what waits for an event; 1 if nothing begins")
    fire.add_argument("event")
    fire.add_argument("--payload", metavar="JSON", help="what the runs are given")
    _add_worker(actions.add_parser("worker", parents=[common], help="run actions until it is told to stop"))


def _add_add(add: argparse.ArgumentParser) -> None:
    add.add_argument("name")
    add.add_argument("--type", dest="action_type", default="run_task", help="its dispatcher (default run_task)")
    add.add_argument("--task", help="for run_task: a registered name or package.module:function")
    add.add_argument("--config", default="{}", help="action_config, as JSON")
    when = add.add_mutually_exclusive_group()
    when.add_argument("--cron", dest="cron_expression", metavar="'M H D M W'")
    when.add_argument("--every", dest="interval_seconds", type=float, metavar="SECONDS")
    when.add_argument("--at", dest="run_at", type=_moment, metavar="TIME", help="once: 2030-01-31T12:00:00+01:00")
    add.add_argument("--event", help="run when this event is fired")
    add.add_argument("--timezone", help="for --cron, such as Europe/Berlin (default UTC)")
    add.add_argument("--start", dest="start_at", type=_moment, metavar="TIME")
    add.add_argument("--end", dest="end_at", type=_moment, metavar="TIME")
    add.add_argument("--max-executions", type=int)
    add.add_argument("--timeout", dest="timeout_seconds", type=_limit, metavar="SECONDS", help="or none (default 3600)")
    add.add_argument("--max-retries", type=int)
    add.add_argument("--retry-delay", dest="retry_delay_seconds", type=float, metavar="SECONDS")
    add.add_argument("--jitter", dest="jitter_seconds", type=float, metavar="SECONDS")
    add.add_argument("--misfire", choices=("skip", "run_once", "run_all"))
    add.add_argument("--recovery", choices=("at_most_once", "at_least_once"))
    add.add_argument("--allow-concurrent", action="store_true", default=None)


def _add_worker(worker: argparse.ArgumentParser) -> None:
    worker.add_argument("--import", dest="modules", action="append", default=[], metavar="MODULE",
        help="import this first: it registers tasks and dispatchers; may be given several times")  # fmt: skip
    worker.add_argument("--tasks-from", action="append", metavar="MODULE", help="only these may be named by a path")
    worker.add_argument("--max-running", type=int, default=50, metavar="N", help="runs at once (default 50)")
    worker.add_argument("--lease", type=float, default=30.0, metavar="SECONDS")
    worker.add_argument("--grace", type=float, default=30.0, metavar="SECONDS", help="for runs to end at shutdown")


def run(given: argparse.Namespace) -> int:
    url = given.url or os.environ.get(URL_VARIABLE)
    if not url:
        raise InvalidOption(f"which database? give --url, or set {URL_VARIABLE}")
    return asyncio.run(_work(given, url) if given.action == "worker" else _ask(given, url))


async def _ask(given: argparse.Namespace, url: str) -> int:
    from ..scheduler import Scheduler

    scheduler = Scheduler(url, namespace=given.namespace)
    try:
        return await _answer(scheduler, given)
    finally:
        await scheduler.stop()


async def _answer(scheduler: Scheduler, given: argparse.Namespace) -> int:
    match given.action:
        case "add":
            print((await scheduler.add(_action_of(given))).id)
        case "list":
            after = 0
            while page := await scheduler.actions(after=after, limit=1000):
                after = page[-1].id or 0
                _show(page, ("id", "name", "action_type", "schedule_type", "status", "next_run_at"), given.json)
        case "runs":
            runs = await scheduler.runs(given.id, limit=given.limit)
            _show(runs, ("id", "scheduled_for", "trigger", "state", "attempt", "duration_seconds", "error"), given.json)
        case "trigger":
            return _begun([await scheduler.trigger(given.id, _json("payload", given.payload))])
        case "fire":
            return _begun(await scheduler.fire(given.event, _json("payload", given.payload)))
        case "rm":
            await scheduler.remove(given.id)
        case "pause" | "resume":
            await (scheduler.pause if given.action == "pause" else scheduler.resume)(given.id)
    return 0


def _action_of(given: argparse.Namespace) -> ScheduledAction:
    from ..scheduler import InvalidField, ScheduledAction
    from ..scheduler.actions import GIVEN_FIELDS

    config = _json("action_config", given.config)
    if not isinstance(config, dict):
        raise InvalidField("action_config", "give an object")
    fields = {name: value for name, value in vars(given).items() if name in GIVEN_FIELDS}
    said: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if given.timeout_seconds == _NO_LIMIT:
        said["timeout_seconds"] = None
    kinds = {"cron_expression": "cron", "interval_seconds": "interval", "run_at": "once"}
    kind: Any = next((kind for name, kind in kinds.items() if name in said), "event")
    if given.task:
        config = {**config, "task": given.task}
    return ScheduledAction(**said, schedule_type=kind, action_config=config)


def _limit(text: str) -> float:
    return _NO_LIMIT if text == "none" else float(text)


def _json(field: str, text: str | None) -> Any:
    from ..scheduler import InvalidField

    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise InvalidField(field, f"is not JSON: {error}") from None


def _begun(runs: Sequence[ScheduledRun]) -> int:
    for run in runs:
        print(f"run {run.id} of action {run.action_id}: {run.error or run.state}")
    return 0 if any(not run.state.final for run in runs) else 1


def _show(records: Iterable[Any], columns: tuple[str, ...], as_json: bool) -> None:
    for record in records:
        fields = asdict(record)
        if as_json:
            print(json.dumps(fields, default=str))
        else:
            print("\t".join("-" if fields[name] is None else str(fields[name]) for name in columns))


async def _work(given: argparse.Namespace, url: str) -> int:
    from ..scheduler import Scheduler, limit_tasks_to

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    sys.path.insert(0, os.getcwd())  # as `python -m` does: the application's modules are where it is started
    for module in given.modules:
        import_module(module)
    if given.tasks_from is not None:
        limit_tasks_to(given.tasks_from)
    scheduler = Scheduler(url, namespace=given.namespace, lease=given.lease, max_running=given.max_running)
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    await scheduler.start()
    print(f"instance {scheduler.instance} is at work", flush=True)
    await told.wait()
    await scheduler.stop(given.grace)
    return 0


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2030-01-31T12:00:00+01:00") from None
    return moment.astimezone()  # without an offset: of this machine's zone
