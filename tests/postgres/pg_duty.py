"""A test's own hand on a lock connection."""

from threading import get_ident

from eyes import wait_until

from holdfast.engines.postgres.connection import LockConnection


def take_duty(connection: LockConnection) -> None:
    """This thread is at work on the connection from now on; to be ended with ``end_duty`` or ``drive_soon``.

    Not before nobody else is: the courier looks at it ten times a second. And by name, or it would take over.
    """

    def take() -> bool:
        with connection.hub.mutex:
            if connection.duty:
                return False
            connection.duty, connection.served_by = True, get_ident()
            return True

    wait_until(take, "somebody else is at work on the connection")
