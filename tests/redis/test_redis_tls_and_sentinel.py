"""Addresses that take more than a socket: TLS, and a master that Sentinels know."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis.asyncio.sentinel
import redis.sentinel
from own_server import OwnServer
from sight import free_port, wait_until

from holdfast import AsyncLocks, BackendUnavailable, Locks
from holdfast.embedded._programs import redis_server
from holdfast.engines.redis import RedisEngine

OPENSSL = shutil.which("openssl")


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A port that speaks TLS, and the certificate of its server."""
    if OPENSSL is None:
        pytest.skip("openssl is not installed")
    port, key, certificate = free_port(), tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    settings = {
        "tls-port": str(port),
        "tls-cert-file": str(certificate),
        "tls-key-file": str(key),
        "tls-ca-cert-file": str(certificate),
        "tls-auth-clients": "no",
    }
    try:
        server = OwnServer(tmp_path / "server", **settings)
        server.start()
    except AssertionError as refusal:
        pytest.skip(f"this build of Redis has no TLS: {str(refusal).strip().splitlines()[-1]}")
    try:
        yield port, certificate
    finally:
        server.stop()


def test_locks_over_tls_for_threads_and_tasks(secure: tuple[int, Path], key: str) -> None:
    port, certificate = secure
    url = f"rediss://localhost:{port}?ssl_ca_certs={certificate}"
    with Locks.from_url(url, ttl=20) as locks, locks.hold(key, note="x" * 40_000) as held:
        held.extend()
        assert locks.holders()[0].note == "x" * 40_000  # more than one record

    async def main() -> None:
        async with AsyncLocks.from_url(url) as tasks:
            await asyncio.gather(*(_hold(tasks, f"{key}-{number % 5}") for number in range(40)))
        client = redis.asyncio.Redis.from_url(url)
        async with AsyncLocks(RedisEngine.from_client(client)) as tasks:
            await _hold(tasks, key)
        await client.aclose()

    asyncio.run(main())


async def _hold(locks: AsyncLocks, key: str) -> None:
    async with locks.hold(key):
        await asyncio.sleep(0)


def test_a_certificate_that_nobody_vouches_for_is_refused(secure: tuple[int, Path]) -> None:
    with pytest.raises(BackendUnavailable, match="cannot be reached"):
        with Locks.from_url(f"rediss://localhost:{secure[0]}") as locks:
            locks.hold("k").__enter__()


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[int]:
    """The port of a Sentinel that knows a master by the name of ``locks``."""
    with OwnServer(tmp_path / "master") as master:
        port, conf = free_port(), tmp_path / "sentinel.conf"
        conf.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor locks 127.0.0.1 {master.port} 1\n"
        )
        with open(os.devnull, "wb") as nothing:
            process = subprocess.Popen([str(redis_server()), str(conf), "--sentinel"], stdout=nothing, stderr=nothing)
        try:

            def answers() -> bool:
                try:
                    with redis.Redis(port=port) as client:
                        return bool(client.ping())
                except redis.RedisError:
                    return False

            wait_until(answers, "no Sentinel")
            yield port
        finally:
            process.kill()
            process.wait()


def test_a_client_that_asks_sentinels_lends_them(sentinel: int, key: str) -> None:
    asked = redis.sentinel.Sentinel([("127.0.0.1", sentinel)])
    with Locks(RedisEngine.from_client(asked.master_for("locks"))) as locks, locks.hold(key) as held:
        assert held.fence > 0

    async def main() -> None:
        asked = redis.asyncio.sentinel.Sentinel([("127.0.0.1", sentinel)])
        async with AsyncLocks(RedisEngine.from_client(asked.master_for("locks"))) as locks, locks.hold(key) as held:
            assert held.fence > 0

    asyncio.run(main())


def test_sentinels_that_know_no_such_master_are_an_outage(sentinel: int) -> None:
    asked = redis.sentinel.Sentinel([("127.0.0.1", sentinel)])
    with pytest.raises(BackendUnavailable, match="cannot be reached"):
        with Locks(RedisEngine.from_client(asked.master_for("others"))) as locks:
            locks.hold("k").__enter__()
