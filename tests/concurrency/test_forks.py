"""What a forked process may do with a database that its parent had open."""

import os

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from tests.queues.workers import forked

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.processes,
    pytest.mark.skipif("sqlite" not in connection.settings_dict["ENGINE"], reason="SQLite's locks are the process's"),
]


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def connect() -> None:
    connection.copy().ensure_connection()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_it_opens_none_that_its_parent_has_open() -> None:
    connection.ensure_connection()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            connect()
        except ImproperlyConfigured:
            status = 0
        finally:
            os._exit(status)
    assert ended(pid) == 0


def test_it_opens_one_that_its_parent_has_closed() -> None:
    connection.ensure_connection()
    assert ended(forked(connect)) == 0
