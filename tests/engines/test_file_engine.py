"""What happens to lock files in production. FAULTS: unlinked, replaced, linked, no descriptors left, folder gone."""

import fcntl
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import BackendUnavailable, Locks, NotAcquired, Unsupported
from holdfast.engines.file import descriptors, grip, sweep
from holdfast.engines.file.engine import HANDOVERS
from holdfast.testing import PATIENCE, Child
from waiting import wait_until


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[Locks]:
    with Locks.from_url(tmp_path.as_uri()) as locks:
        yield locks


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    child = Child(tmp_path.as_uri())
    yield child
    child.end()


def lock_file(folder: Path) -> Path:
    return next(folder.glob("*.lock"))


class Waiter:
    """A thread that waits for a lock and keeps it until told."""

    def __init__(self, locks: Locks, key: str, wait: float = PATIENCE) -> None:
        self.inside, self.finish, self.error = threading.Event(), threading.Event(), None
        self.thread = threading.Thread(target=self._run, args=(locks, key, wait), daemon=True)
        self.thread.start()

    def _run(self, locks: Locks, key: str, wait: float) -> None:
        try:
            with locks.hold(key, wait=wait):
                self.inside.set()
                self.finish.wait(PATIENCE)
        except Exception as error:
            self.error = error

    def end(self) -> None:
        self.finish.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


def all_threads_stopped(pid: int) -> bool:
    states = [stat.read_text().rpartition(") ")[2][0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def kernel_waiters(path: Path) -> int:
    inode = str(path.stat().st_ino)
    return sum(inode in line and "->" in line for line in Path("/proc/locks").read_text().splitlines())


@pytest.mark.parametrize("recreate", [False, True])
def test_one_holder_although_the_lock_file_is_unlinked_while_held(
    locks: Locks, child: Child, tmp_path: Path, recreate: bool
) -> None:
    with locks.hold("a"):
        for path in tmp_path.iterdir():
            path.unlink()
            if recreate:
                path.touch()
        assert child.ask("try", "a") == "busy"
        child.send("hold", "a")
        time.sleep(0.05)
    assert child.answer().startswith("held")
    assert child.ask("release") == "released"
    with locks.hold("a", wait=0):
        pass


def test_a_waiter_notices_that_its_lock_file_was_replaced(
    locks: Locks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grip, "_HAS_ABSTRACT_SOCKETS", False)  # it is the inode that is on trial here
    with locks.hold("a"):
        pass
    path = lock_file(tmp_path)
    old = os.open(path, os.O_RDWR)
    fcntl.flock(old, fcntl.LOCK_EX)
    waiter = Waiter(locks, "a")
    wait_until(lambda: kernel_waiters(path), "the waiter never reached flock")
    path.unlink()
    new = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(new, fcntl.LOCK_EX)
    os.close(old)
    wait_until(lambda: kernel_waiters(path), "the waiter did not come over to the new file")
    assert not waiter.inside.is_set()
    os.close(new)
    assert waiter.inside.wait(PATIENCE)
    waiter.end()


def test_an_unrelated_open_and_close_changes_nothing(locks: Locks, child: Child, tmp_path: Path) -> None:
    with locks.hold("a"):
        os.close(os.open(lock_file(tmp_path), os.O_RDWR))
        lock_file(tmp_path).read_bytes()
        assert child.ask("try", "a") == "busy"


def test_a_grant_that_nobody_waits_for_any_more_is_given_back(locks: Locks, child: Child) -> None:
    gc.collect()  # or what others have left would go meanwhile
    before = descriptors.count()
    assert child.ask("hold", "a").startswith("held")
    waiter = Waiter(locks, "a", wait=0.05)
    waiter.end()
    assert isinstance(waiter.error, NotAcquired)
    assert "process" in str(waiter.error) and str(child.pid) in str(waiter.error)
    assert child.ask("release") == "released"
    wait_until(lambda: descriptors.count() == before, "the thread in flock kept its files")
    assert child.ask("try", "a") == "free"


def test_a_late_waiter_takes_over_the_thread_that_is_left_in_flock(locks: Locks, child: Child) -> None:
    assert child.ask("hold", "a").startswith("held")
    Waiter(locks, "a", wait=0.02).end()
    threads = threading.active_count()
    waiter = Waiter(locks, "a")
    wait_until(lambda: [h.waiting for h in locks.holders()] == [1], "the late waiter was never seen")
    assert threading.active_count() <= threads + 1
    assert child.ask("release") == "released"
    assert waiter.inside.wait(PATIENCE)
    waiter.end()


def test_a_crowd_in_one_process_does_not_starve_another(locks: Locks, child: Child, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_bytes(bytes(8))

    def grants() -> int:
        return int.from_bytes(counter.read_bytes(), "big")

    child.send("crowd", "a", str(counter))  # four threads that take it again as soon as they have released it
    wait_until(grants, "the other process never began")
    overtaken = []
    for _ in range(20):
        before = grants()
        with locks.hold("a", wait=PATIENCE):
            overtaken.append(grants() - before)
    child.kill()
    # Its share of hand-overs, twice: when we come in the middle of one, and when the kernel lets it in once more.
    assert sorted(overtaken)[len(overtaken) // 2] <= 2 * (HANDOVERS + 1), overtaken


def test_a_waiter_that_is_paused_does_not_hold_up_the_others(locks: Locks, child: Child, tmp_path: Path) -> None:
    block = locks.hold("a")
    block.__enter__()
    child.send("hold", "a")
    wait_until(lambda: kernel_waiters(lock_file(tmp_path)), "the child never waited")
    os.kill(child.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: all_threads_stopped(child.pid), "the child was not stopped")
        block.__exit__(None, None, None)
        with locks.hold("a", wait=PATIENCE):
            pass
    finally:
        os.kill(child.pid, signal.SIGCONT)
    assert child.answer().startswith("held")
    child.ask("release")


def test_holders_are_seen_across_processes_with_note_and_waiters(locks: Locks, child: Child) -> None:
    assert child.ask("hold", "a").startswith("held")
    waiters = [Waiter(locks, "a"), Waiter(locks, "a")]
    wait_until(lambda: [h.waiting for h in locks.holders()] == [2], "two waiters were never seen")
    holder = locks.holders()[0]
    assert (holder.key, holder.pid, holder.here) == ("key:a", child.pid, False)
    assert holder.fence is not None
    with pytest.raises(Unsupported, match=f"process {child.pid}"):
        locks.evict("a")
    child.ask("release")
    for waiter in waiters:
        waiter.end()
    assert locks.holders() == []


def test_fences_grow_across_processes_and_through_a_lost_file(locks: Locks, child: Child, tmp_path: Path) -> None:
    fences = []
    for _ in range(3):
        with locks.hold("a") as held:
            fences.append(held.fence)
        fences.append(int(child.ask("hold", "a").split()[1]))
        child.ask("release")
        lock_file(tmp_path).unlink()
    lock_file_content = "9" * 19 + "\n"
    with locks.hold("a"):
        pass
    lock_file(tmp_path).write_text(f"{int(lock_file_content):020d}\n")
    with locks.hold("a") as held:
        fences.append(held.fence)  # the clock is behind the file: the file counts
    assert fences == sorted(set(fences))
    assert fences[-1] == int(lock_file_content) + 1


def test_a_file_full_of_nonsense_does_not_matter(locks: Locks, tmp_path: Path) -> None:
    with locks.hold("a"):
        pass
    lock_file(tmp_path).write_bytes(b"\xff\x00" * 5000)
    with locks.hold("a") as held:
        assert held.fence > 0
        assert [holder.key for holder in locks.holders()] == ["key:a"]


def test_the_folder_may_be_removed_between_two_locks(locks: Locks, tmp_path: Path) -> None:
    with locks.hold("a"):
        pass
    for path in tmp_path.iterdir():
        path.unlink()
    tmp_path.rmdir()
    with locks.hold("a"):
        assert lock_file(tmp_path).exists()


def test_a_link_in_place_of_a_lock_file_is_refused(locks: Locks, tmp_path: Path) -> None:
    with locks.hold("a"):
        pass
    path, precious = lock_file(tmp_path), tmp_path / "precious.txt"
    precious.write_text("do not write here")
    path.unlink()
    path.symlink_to(precious)
    with pytest.raises(BackendUnavailable, match="key:a"):
        locks.hold("a").__enter__()
    assert precious.read_text() == "do not write here"
    path.unlink()
    with locks.hold("a"):
        pass


def test_no_descriptors_left_is_a_typed_error_and_leaves_nothing(tmp_path: Path) -> None:
    script = f"""
import resource
from contextlib import ExitStack
from holdfast import BackendUnavailable, Locks
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
locks = Locks.from_url("{tmp_path.as_uri()}")
for attempt in range(3):
    with ExitStack() as stack:
        try:
            for number in range(100):
                stack.enter_context(locks.hold(1, number))
        except BackendUnavailable as error:
            assert error.key is not None and "open files" in str(error), error
            held = number
        else:
            raise SystemExit("no error")
    assert not locks.holders()
print(held)
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert int(output) > 20


def test_old_files_are_swept_and_used_ones_are_not(locks: Locks, tmp_path: Path, child: Child) -> None:
    for key in ("old", "new", "held"):
        with locks.hold(key):
            pass
    long_ago = time.time() - 2 * sweep.UNUSED_SECONDS
    block = locks.hold("held")
    block.__enter__()
    for path in tmp_path.glob("*.lock"):
        if "new" not in path.name:
            os.utime(path, (long_ago, long_ago))
    folder = locks._client.engine._folder  # type: ignore[attr-defined]
    assert sweep.sweep(folder.path, folder.id) == 1
    assert sorted(path.name.split("-")[0] for path in tmp_path.glob("*.lock")) == ["key_held", "key_new"]
    assert child.ask("try", "held") == "busy"
    block.__exit__(None, None, None)
    with locks.hold("old"):
        pass


def test_names_are_safe_on_any_file_system(locks: Locks, tmp_path: Path) -> None:
    keys = ["A", "a", "é", "e\u0301", "../../escape", "x" * 508, "a/b", ".", "con"]
    for key in keys:
        with locks.hold(key):
            pass
    names = [path.name for path in tmp_path.iterdir()]
    assert len({name.lower() for name in names}) == len(keys)
    assert all(len(name) < 150 and name.isascii() and "/" not in name for name in names)


def test_a_lone_waiter_does_not_poll(locks: Locks, child: Child) -> None:
    assert child.ask("hold", "a").startswith("held")
    spent = []
    for _ in range(4):
        before = time.process_time()
        with pytest.raises(NotAcquired):
            locks.hold("a", wait=0.5).__enter__()
        spent.append(time.process_time() - before)
    assert min(spent) < 0.01  # the collector, and others' threads, come and go; the figure itself is in benchmarks/
    child.ask("release")


def test_a_try_is_not_fooled_by_programs_that_are_being_started(locks: Locks) -> None:
    stop = threading.Event()

    def start_programs() -> None:
        while not stop.is_set():
            subprocess.run(["true"], check=True)

    threads = [threading.Thread(target=start_programs) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            with locks.try_hold("k") as held:
                assert held is not None  # nobody else ever takes it
    finally:
        stop.set()
        for thread in threads:
            thread.join()
