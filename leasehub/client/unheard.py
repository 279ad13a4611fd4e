"""What a call that was interrupted gets all the same."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from leasehub.client.acquiring import Once, release
from leasehub.client.failures import Failure
from leasehub.client.wire import Connection, Members


@contextmanager
def giving_back(once: Once) -> Iterator[None]:
    """When it is interrupted amid a call, the leases that the call gets all the same are given back: in a thread that
    the process waits for at its end, since the server may take a while to answer."""
    try:
        yield
    except Failure:
        raise
    except BaseException:
        unheard = once.unheard()
        if unheard is not None:
            connection = once.connection.another()
            threading.Thread(target=_give_back, args=(unheard, connection), name="giving back").start()
        raise


def _give_back(unheard: Callable[[], Members], connection: Connection) -> None:
    # What cannot be given back runs out by itself.
    with suppress(Failure):
        answer = unheard()
        leases = answer.get("leases", [answer] if answer else [])
        for lease in leases:
            with suppress(Failure):
                release(connection, lease["lease_id"], lease["fencing_token"])
    connection.close()
