"""Leases for a child of a test: what it offers on its release is offered for long, though the machine stand still."""

import os

from holdfast import Engine
from holdfast.engines.postgres.lease import backend
from holdfast.testing import open_engine

URL = "PATIENT_LEASES_URL"


def engine() -> Engine:
    backend.WINDOW = 30  # type: ignore[misc]
    return open_engine(os.environ[URL])
