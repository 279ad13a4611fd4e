"""The part of a Celery worker that runs the commands of pools (docs: THREAT_MODEL.md).

A thread of every worker process looks at the process's own Celery queues twice a second, so that no message is
needed. Each command runs below a supervisor process of its own (pools.supervisor), which ends with this process.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from celery.signals import worker_ready, worker_shutdown, worker_shutting_down
from django.db import connections

from pools import nudges, runs
from pools.models import CommandRun
from pools.runs import Outcome, Report
from pools.supervisor import legible

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
ANNOUNCE_SECONDS = 5.0
ORPHANS_SECONDS = 5.0
#: Beyond its own limits a supervisor that does not answer is killed.
SUPERVISOR_GRACE_SECONDS = 15.0
#: How long a stopping worker waits for its supervisors.
STOP_SECONDS = 8.0
REPORT_TRIES = 20
SUPERVISOR = Path(__file__).with_name("supervisor.py")
MARKER = "POOL_COMMAND_RUN"
INHERITED = ("PATH", "HOME", "LANG")
MAX_ANSWER_BYTES = 1024 * 1024


@dataclass
class Active:
    run: CommandRun
    stopping: threading.Event = field(default_factory=threading.Event)
    #: Why it is being stopped.
    reason: str = ""
    process: "subprocess.Popen[bytes] | None" = None
    thread: threading.Thread | None = None

    def stop(self, reason: str) -> None:
        """Tells the supervisor, by closing its stdin, that the command is not wanted any more."""
        self.reason = self.reason or reason
        self.stopping.set()
        process = self.process
        if process is not None and process.stdin is not None:
            close(process.stdin)


class CommandWorker(threading.Thread):
    def __init__(self, queues: Sequence[str], *, limit: int) -> None:
        super().__init__(name="pool-commands", daemon=True)
        self.worker_name = own_name()
        self._queues = list(queues)
        self._limit = limit
        self._active: dict[int, Active] = {}
        self._ending = threading.Event()
        self._announced = self._healed = float("-inf")

    def run(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception:
                # The database is away, or worse: the commands go on, and the next look is soon.
                logger.exception("looking for commands failed")
                connections.close_all()
        connections.close_all()

    def look(self) -> None:
        """One round: say that this worker lives, keep leases alive, stop what is not wanted, begin what waits."""
        now = time.monotonic()
        if now - self._announced >= ANNOUNCE_SECONDS:
            runs.announce(worker_name=self.worker_name, queues=self._queues)
            self._announced = now
        if now - self._healed >= ORPHANS_SECONDS:
            heal_orphans(self.worker_name)
            self._healed = now
        runs.keep_leases_alive(queues=self._queues)
        self._stop_unwanted()
        self._begin()

    def _stop_unwanted(self) -> None:
        active = dict(self._active)
        if not active:
            return
        unwanted = set(runs.to_be_stopped(worker_name=self.worker_name))
        unwanted |= set(active) - runs.still_mine(worker_name=self.worker_name, runs=list(active))
        for number in unwanted & set(active):
            # Also what has just ended by itself: stopping that does nothing.
            active[number].stop("the lease has ended")

    def _begin(self) -> None:
        while len(self._active) < self._limit and not self._ending.is_set():
            nudging = any(active.run.purpose == CommandRun.Purpose.NUDGE for active in self._active.values())
            run = runs.claim(worker_name=self.worker_name, queues=self._queues, nudges=not nudging)
            if run is None:
                return
            active = Active(run)
            self._active[run.pk] = active
            active.thread = threading.Thread(target=self._carry_out, args=(active,), name=f"run-{run.pk}", daemon=True)
            active.thread.start()

    def _carry_out(self, active: Active) -> None:
        try:
            report = carried_out(active)
            self._tell(active.run, report)
        except Exception:
            logger.exception("command run %s failed", active.run.pk)
        finally:
            self._active.pop(active.run.pk, None)
            connections.close_all()

    def _tell(self, run: CommandRun, report: Report) -> None:
        """Records the end; the database may be away for a while."""
        for attempt in range(REPORT_TRIES):
            try:
                runs.finish(run=run.pk, worker_name=self.worker_name, report=report)
                return
            except Exception:
                logger.exception("reporting command run %s failed", run.pk)
                connections.close_all()
                time.sleep(min(5.0, 0.2 * 2**attempt))

    def end(self) -> None:
        """Stops: what runs is interrupted, and says so."""
        self._ending.set()
        for active in list(self._active.values()):
            active.stop("the worker stops")
        until = time.monotonic() + STOP_SECONDS
        for active in list(self._active.values()):
            if active.thread is not None:
                active.thread.join(max(0.0, until - time.monotonic()))
        if self.is_alive() and threading.current_thread() is not self:
            self.join(2 * LOOK_SECONDS)
        try:
            runs.withdraw(worker_name=self.worker_name)
        except Exception:
            # It grows old by itself.
            logger.warning("the worker could not take its name off the list", exc_info=True)


def carried_out(active: Active) -> Report:
    """Runs the steps one after another, until one fails or the run is not wanted any more."""
    results: list[dict[str, Any]] = []
    for step in active.run.steps:
        action = step["action"]
        if active.stopping.is_set():
            return Report(Outcome.INTERRUPTED, action, active.reason, results)
        answer = supervised(active, step)
        results.append({"action": action, **{name: value for name, value in answer.items() if name != "left_behind"}})
        if active.stopping.is_set():
            return Report(Outcome.INTERRUPTED, action, active.reason, results)
        error = failure(action, answer)
        if error:
            return Report(Outcome.FAILED, action, error, results)
    return Report(Outcome.PASSED, results=results)


def failure(action: str, answer: dict[str, Any]) -> str:
    """What a step's failure is called; empty when it passed."""
    if answer["ended"] == "exited" and answer["exit_status"] == 0:
        return ""
    if answer["ended"] == "cannot_start":
        how = f"cannot start: {answer['problem']}"
    elif answer["ended"] == "timed_out":
        how = "took longer than its limit"
    elif answer["ended"] != "exited":
        how = answer["problem"] or answer["ended"]
    elif answer["signal"] is not None:
        how = f"killed by signal {answer['signal']}"
    else:
        how = f"exit {answer['exit_status']}"
    what = "health check failed" if action == "health" else "reset failed" if action != "nudge" else "nudge failed"
    return legible(f"{what} ({action} command {how})".encode("utf-8", "replace"))[:1000]


def supervised(active: Active, step: dict[str, Any]) -> dict[str, Any]:
    """Runs one step below a supervisor and returns its answer."""
    run = active.run
    wanted = {
        "argv": arguments(step, run),
        "cwd": run.cwd or ".",
        "env": environment(step, run),
        "input": nudges.payload_line(run) if step["action"] == "nudge" else None,
        "timeout_ms": run.step_timeout_ms,
    }
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUPERVISOR)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=inherited(),
        start_new_session=True,
    )
    active.process = process
    assert process.stdin is not None and process.stdout is not None
    try:
        write(process.stdin, json.dumps(wanted).encode() + b"\n")
        if active.stopping.is_set():
            close(process.stdin)
        answer = read_answer(process, run.step_timeout_ms / 1000 + SUPERVISOR_GRACE_SECONDS)
    finally:
        active.process = None
        close(process.stdin)
        process.stdout.close()
        process.kill()
        process.wait()
    if answer is None:
        # Killed by what it ran, perhaps: then nobody else has cleaned up.
        killed = kill_marked({run.run_id.hex})
        return {
            "ended": "unsupervised",
            "problem": f"its supervisor ended first ({killed} processes killed)",
            "exit_status": None,
            "signal": None,
            "took_ms": None,
            "output": "",
            "omitted_bytes": 0,
        }
    return answer


def read_answer(process: "subprocess.Popen[bytes]", timeout_seconds: float) -> dict[str, Any] | None:
    """The supervisor's one line; None when it ended without, or does not answer."""
    assert process.stdout is not None
    timer = threading.Timer(timeout_seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        text = process.stdout.read(MAX_ANSWER_BYTES)
    finally:
        timer.cancel()
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def arguments(step: dict[str, Any], run: CommandRun) -> list[str]:
    """``sh -c '<command> "$1"' pool-<action> <slot id>``.

    The id is not appended to what ends in a separator: it would be run as a command of its own.
    """
    command = step["command"].rstrip()
    slot_id = run.environment.get("POOL_SLOT_ID", "")
    if step["action"] != "nudge" and not ends_in_separator(command):
        command += ' "$1"'
    return ["sh", "-c", command, f"pool-{step['action']}", slot_id]


def ends_in_separator(command: str) -> bool:
    return command.endswith((";", "&")) and not command.endswith("&&")


def environment(step: dict[str, Any], run: CommandRun) -> dict[str, str]:
    """Nothing of the server's own but PATH, HOME and LANG."""
    return {**inherited(), **run.environment, "POOL_ACTION": step["action"], MARKER: run.run_id.hex}


def inherited() -> dict[str, str]:
    given = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **given}


def heal_orphans(worker_name: str) -> int:
    """Ends the runs of this host's workers that are gone, and every process that they left. How many."""
    host = worker_name.rpartition(":")[0].rpartition(":")[0] + ":"
    gone = {name: run for name, run in runs.running_by(host) if not is_alive(name)}
    if not gone:
        return 0
    kill_marked({run for name, run in runs.running_by(host) if name in gone})
    return runs.give_up_orphans(
        worker_names=list(gone), report=Report(Outcome.LOST, error="the worker ended before the command did")
    )


def kill_marked(run_ids: set[str]) -> int:
    """Kills the processes that were started for these runs, and their supervisors' other children. How many."""
    wanted = {f"{MARKER}={run_id}".encode() for run_id in run_ids}
    killed = 0
    for _ in range(5):
        found = [int(name) for name in os.listdir("/proc") if name.isdigit() and wanted & marks(name)]
        if not found:
            break
        for pid in found:
            try:
                os.kill(pid, 9)
                killed += 1
            except (ProcessLookupError, PermissionError):
                continue
        time.sleep(0.05)
    return killed


def marks(pid: str) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def own_name() -> str:
    """Host and boot, process and its start: a number that another process gets later is not taken for this one."""
    return f"{host_name()}:{os.getpid()}:{started(os.getpid())}"


def host_name() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()[:80]}/{boot.read_text().strip()[:8] if boot.exists() else '-'}"


def is_alive(worker_name: str) -> bool:
    """Whether the process of this host that had this name still runs."""
    _, pid, start = worker_name.rsplit(":", 2)
    return started(int(pid)) == start


def started(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == b"Z" else fields[19].decode()


def write(stream: IO[bytes], text: bytes) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (BrokenPipeError, ValueError):
        # It ended first: its answer, or its absence, says why.
        return


def close(stream: IO[bytes]) -> None:
    try:
        stream.close()
    except (BrokenPipeError, ValueError):
        return


_running: list[CommandWorker] = []


def begin(sender: Any = None, **told: Any) -> None:
    """Celery's worker is ready: so is this part of it, for the same queues."""
    queues = list(sender.app.amqp.queues.consume_from)
    concurrency = int(getattr(sender.pool, "limit", 0) or 4)
    # Two threads' worth is left to the scans: the reaper never waits for a command.
    _running.append(CommandWorker(queues, limit=max(1, concurrency - 2)))
    _running[-1].start()


def stop(**told: Any) -> None:
    """The worker was told to stop. This is a signal handler: what may wait is done beside it."""
    for worker in _running:
        threading.Thread(target=worker.end, name="end-pool-commands", daemon=True).start()


def wait_for_all(**told: Any) -> None:
    """The worker has stopped: nothing of it is to be left."""
    while _running:
        _running.pop().end()


worker_ready.connect(begin, dispatch_uid="pools.begin")
worker_shutting_down.connect(stop, dispatch_uid="pools.stop")
worker_shutdown.connect(wait_for_all, dispatch_uid="pools.wait")
