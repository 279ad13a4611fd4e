"""leasehub worker: one more worker of the server, as for a host whose slots run commands."""

import os

from leasehub.cli import flags, management
from leasehub.client.failures import Usage

MOST_THREADS = 512


def worker(arguments: list[str]) -> int:
    """Does not return: this process becomes the worker."""
    given = flags.read("worker", arguments, values=("queues", "threads"), switches=("no-beat",))
    words = ["worker"]
    if "queues" in given:
        queues = [name.strip() for name in given["queues"].split(",")]
        if not all(queues):
            raise Usage("--queues must be names with commas between, such as host-a,host-b")
        words.append(f"--queues={','.join(queues)}")
    if "threads" in given:
        words.append(f"--threads={flags.whole('threads', given['threads'], least=1, most=MOST_THREADS)}")
    if "no-beat" in given:
        words.append("--no-beat")
    command = management.command(*words)
    known = management.environment()
    # Celery says on stdout that it stops.
    os.dup2(2, 1)
    os.execve(command[0], command, known)
