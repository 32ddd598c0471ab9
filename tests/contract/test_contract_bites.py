"""The suite itself is on trial: it must pass a sound engine of one's own, and fail every broken one."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import schema

LEASES = """
import pytest
from holdfast.testing import (
    AsyncBetweenProcesses, AsyncDetaching, AsyncEngineContract, AsyncInOrderOfArrival, AsyncLeases, BetweenProcesses,
    Detaching, EngineContract, InOrderOfArrival, Leases,
)

class Own:
    @pytest.fixture
    def target(self):
        return "broken_leases:{engine}"

class TestOwn(Own, EngineContract, BetweenProcesses, InOrderOfArrival, Detaching, Leases): ...
class TestOwnAsync(
    Own, AsyncEngineContract, AsyncBetweenProcesses, AsyncInOrderOfArrival, AsyncDetaching, AsyncLeases
): ...
"""

SUITE = """
import pytest
from holdfast.testing import (
    AsyncDetaching, AsyncEngineContract, AsyncInOrderOfArrival, Detaching, EngineContract, InOrderOfArrival,
)

class Own:
    @pytest.fixture
    def target(self):
        return "broken_engines:{engine}"

class TestOwn(Own, EngineContract, InOrderOfArrival, Detaching): ...
class TestOwnAsync(Own, AsyncEngineContract, AsyncInOrderOfArrival, AsyncDetaching): ...
"""


def run_suite(
    engine: str, folder: Path, *options: str, patience: str = "20", text: str = SUITE, database: str = ""
) -> tuple[int, str]:
    suite = folder / f"test_{engine}.py"
    suite.write_text(text.format(engine=engine))
    here = str(Path(__file__).parent)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        *options,
        str(suite),
    ]
    outcome = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": here, "HOLDFAST_TEST_PATIENCE": patience, "HOLDFAST_TEST_DATABASE_URL": database},
        cwd=folder,
    )
    return outcome.returncode, outcome.stdout


def test_a_sound_engine_of_ones_own_passes(tmp_path: Path) -> None:
    code, output = run_suite("Sound", tmp_path)
    assert code == 0, output


@pytest.mark.parametrize(
    ("engine", "found_out_by"),
    [
        ("LetsEverybodyIn", "test_a_held_lock_is_busy_until_its_block_ends"),
        ("NeverReleases", "test_an_error_in_the_body_comes_out_and_the_lock_is_free"),
        ("ForgetsCancelledWaiters", "test_a_cancellation_at_any_await_point_leaves_nothing"),
        ("StartsItsDeadlineAgain", "test_a_wait_ends_at_its_deadline"),
        ("SameFenceForAll", "test_the_fence_grows_with_every_grant"),
        ("ReleasesWhoeverHolds", "test_a_lost_lock_is_raised_at_exit_and_the_successor_keeps_its_own"),
        ("EvictsInSilence", "test_a_lost_lock_is_raised_at_exit_and_the_successor_keeps_its_own"),
        ("DeclaresWhatItHasNot", "test_a_lease_can_be_extended_and_never_adds_up"),
        ("ForgetsToDeclare", "test_every_declared_capability_is_tested"),
    ],
)
def test_a_broken_engine_is_found_out(engine: str, found_out_by: str, tmp_path: Path) -> None:
    code, output = run_suite(engine, tmp_path, "-x", "-k", found_out_by, patience="2")
    assert code == 1, output
    assert found_out_by in output


LEASE_BREAKERS = [
    ("releases_any_token", "test_a_paused_holder_finds_out_and_touches_nobody"),
    ("extensions_add_up", "test_a_thousand_extensions_do_not_add_up"),
    ("never_renews", "test_a_body_longer_than_its_lease_keeps_its_lock"),
    ("fences_fall", "test_a_detached_lock_runs_out"),
    ("gives_away_what_is_held", "test_a_killed_holders_lock_is_free_when_its_lease_is_over_and_not_before"),
]


@pytest.mark.parametrize(("engine", "found_out_by"), LEASE_BREAKERS)
def test_a_broken_lease_is_found_out(
    engine: str, found_out_by: str, tmp_path: Path, holdfast_postgres_url: str
) -> None:
    schema.upgrade(holdfast_postgres_url)
    options = {"text": LEASES, "database": holdfast_postgres_url}
    code, output = run_suite(engine, tmp_path, "-x", "-k", found_out_by, patience="3", **options)
    assert code == 1, output
    assert found_out_by in output
    code, output = run_suite("sound", tmp_path, "-x", "-k", found_out_by, patience="20", **options)
    assert code == 0, output
