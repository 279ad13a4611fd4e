"""leasehub up: the embedded server, as a supervisor of its web server and its worker."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

from leasehub.cli import descendants, flags
from leasehub.cli.output import emit, say, tell
from leasehub.cli.signals import ENDING, Signals
from leasehub.client.failures import Failure, Refused, Unreachable, Usage
from leasehub.client.wire import Connection, Members

READY_SECONDS = 60.0
STOP_SECONDS = 8.0
# By its path: of a module's name granian makes a path in the folder one happens to be in, and imports from there.
WSGI = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "wsgi.py")
FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 10.0
# A child that has lived this long is started at once when it dies.
SETTLED_SECONDS = 60.0
# A child that dies so often before the server was ever ready will not get better by itself.
DEATHS_BEFORE_READY = 3

ENDED_BY_SIGNAL = "ended by {} before the server was ready"


class Child:
    """A process of the server, in a process group of its own, started again whenever it dies."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.command = command
        self.deaths = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._backoff = FIRST_BACKOFF
        self._started_at = self._start_at = 0.0

    def start_when_due(self, environment: dict[str, str]) -> bool:
        if self.process is not None or time.monotonic() < self._start_at:
            return False
        self.process = start(self.command, environment, stdout=2)
        self._started_at = time.monotonic()
        return True

    def look(self) -> None:
        """Notices its death and sets the time of its next start."""
        if self.process is None or self.process.poll() is None:
            return
        lived = time.monotonic() - self._started_at
        self._backoff = FIRST_BACKOFF if lived > SETTLED_SECONDS else self._backoff
        say(f"{self.name} {_how(self.process.returncode)}; it is started again in {self._backoff:g} s")
        # Its own children must be gone before they are started a second time.
        self.kill()
        self.process = None
        self.deaths += 1
        self._start_at = time.monotonic() + self._backoff
        self._backoff = min(self._backoff * 2, LONGEST_BACKOFF)

    def ask_to_end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def kill(self) -> None:
        if self.process is not None:
            descendants.send(signal.SIGKILL, group=self.process.pid, pids=set())
            self.process.wait()

    @property
    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None


class Undertaker:
    """A process that outlives this one by a moment, to kill the process groups that it was told of.

    The kernel kills the children themselves; this is for their children.
    """

    def __init__(self) -> None:
        listening, self._telling = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._telling)
            _bury_when_told(listening)
        os.close(listening)

    def remember(self, children: list[Child]) -> None:
        groups = [str(child.process.pid) for child in children if child.process is not None]
        self._tell(f"{' '.join(groups)}\n")

    def dismiss(self) -> None:
        self._tell("\n")
        os.close(self._telling)
        os.waitpid(self._pid, 0)

    def _tell(self, line: str) -> None:
        # Without it the server runs on: its children still die with this process.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._telling, line.encode())


def _bury_when_told(listening: int) -> None:
    """Never returns: this is another process."""
    try:
        os.setpgid(0, 0)
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        last = ""
        with open(listening) as lines:
            for line in lines:
                last = line
        for group in last.split():
            descendants.send(signal.SIGKILL, group=int(group), pids=set())
    finally:
        os._exit(0)


def up(arguments: list[str]) -> int:
    given = flags.read("up", arguments, values=("data", "host", "port"))
    data = os.path.abspath(given.get("data") or os.environ.get("LEASEHUB_DATA") or ".leasehub")
    host, port = (
        given.get("host") or "127.0.0.1",
        flags.whole("port", given.get("port", "8787"), least=1, most=65535),
    )
    web = _web_command(host, port, data)
    signals = Signals()
    lock = _lock(data)
    try:
        _probe(host, port)
        environment = {
            **os.environ,
            "LEASEHUB_DATA": data,
            "DJANGO_SETTINGS_MODULE": "leasehub.settings",
            # The processes of the server look after their parents then.
            "LEASEHUB_SUPERVISED": "1",
        }
        server = _address(host, port)
        facts = _bootstrap(server, environment, signals)
        if facts is None:
            return _interrupted(signals)
        children = [Child("the web server", web), Child("the worker", _python("django", "worker"))]
        return _serve(children, facts, Connection(server, None, timeout=2.0), environment, signals)
    finally:
        os.close(lock)


def _web_command(host: str, port: int, data: str) -> list[str]:
    workers = _sized("LEASEHUB_WEB_WORKERS", "1", most=64)
    threads = _sized("LEASEHUB_WEB_THREADS", "8", most=512)
    options = {
        "interface": "wsgi",
        "http": "1",
        "host": host,
        "port": port,
        "workers": workers,
        "blocking-threads": threads,
        # A thread keeps its database connection: the next busy minute should find it.
        "blocking-threads-idle-timeout": 600,
        # Counts open connections, idle ones too, so it must be far above the number of threads.
        "backpressure": 1024,
        "backlog": 1024,
        "workers-kill-timeout": 4,
        "respawn-interval": FIRST_BACKOFF,
        "log-level": "error",
        # Otherwise granian looks for modules in the folder one happens to be in.
        "working-dir": data,
    }
    switches = ["--no-ws", "--no-access-log", "--respawn-failed-workers"]
    flat = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return _python("granian", *flat, *switches, f"{WSGI}:application")


def _sized(name: str, default: str, *, most: int) -> int:
    text = os.environ.get(name) or default
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most):
        raise Usage(f"{name} must be a whole number from 1 to {most}, not {text!r}")
    return int(text)


def _python(module: str, *arguments: str) -> list[str]:
    # -P: the folder one happens to be in is no place to import from.
    return [sys.executable, "-P", "-m", module, *arguments]


def _lock(data: str) -> int:
    """Held for as long as this process lives: two servers on one folder would get in each other's way."""
    try:
        os.makedirs(data, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(data, "up.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise Usage(f"cannot use the data folder {data}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise Refused("ALREADY_RUNNING", f"another `leasehub up` runs on {data}", {}) from None
    return lock


def _probe(host: str, port: int) -> None:
    """Finds out before anything is started whether the address can be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise Usage(f"--host {host}: {error.strerror or error}") from None
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            wrong = f"cannot listen on {host} port {port}: {error.strerror}"
            raise Usage(f"{wrong}; --port N chooses another port, --host another address") from None


def start(
    command: list[str], environment: dict[str, str], *, stdout: int, stderr: int | None = None
) -> "subprocess.Popen[bytes]":
    parent = os.getpid()
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        process_group=0,
        preexec_fn=lambda: descendants.die_with(parent),
    )


def _bootstrap(server: str, environment: dict[str, str], signals: Signals) -> Members | None:
    """Makes the database ready and, the first time, an organization with a key; None when a signal came."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        command = _python("django", "bootstrap", "--url", server)
        child = start(command, environment, stdout=output.fileno(), stderr=errors.fileno())
        while child.poll() is None and not signals.received:
            signals.wait(0.05)
        if signals.received:
            descendants.send(signal.SIGKILL, group=child.pid, pids=set())
            child.wait()
            return None
        output.seek(0)
        errors.seek(0)
        told = errors.read().decode("utf-8", "replace").strip()
        if child.returncode:
            raise setup_failure(child.returncode, told)
        if told:
            tell(told)
        facts: Members = json.loads(output.read().splitlines()[-1])
        return facts


def setup_failure(status: int, told: str) -> Failure:
    last = told.splitlines()[-1] if told else f"it {_how(status)}"
    # A wrong setting ends Django in a traceback whose last line is the sentence that names it.
    name, _, sentence = last.partition(": ")
    if name.endswith("ImproperlyConfigured"):
        return Usage(sentence)
    if status == 2:
        return Usage(last)
    tell(told)
    return Failure(f"the server could not be set up: {last}")


def _serve(
    children: list[Child],
    facts: Members,
    connection: Connection,
    environment: dict[str, str],
    signals: Signals,
) -> int:
    undertaker = Undertaker()
    try:
        ready_by = time.monotonic() + READY_SECONDS
        ready = False
        while not signals.received:
            started = [child.start_when_due(environment) for child in children]
            if any(started):
                undertaker.remember(children)
            if not ready and _is_ready(connection):
                ready = True
                _announce(facts)
            if not ready:
                _check_patience(children, ready_by)
            signals.wait(0.25 if ready else 0.05)
            for child in children:
                child.look()
    finally:
        _stop(children, signals)
        undertaker.dismiss()
    return 0 if ready else _interrupted(signals)


def _is_ready(connection: Connection) -> bool:
    try:
        return connection.probe("/readyz") == 200
    except Unreachable:
        return False
    finally:
        connection.close()


def _check_patience(children: list[Child], ready_by: float) -> None:
    for child in children:
        if child.deaths >= DEATHS_BEFORE_READY:
            raise Failure(f"{child.name} does not start; what it said stands above")
    if time.monotonic() > ready_by:
        raise Failure(f"the server was not ready after {READY_SECONDS:g} s; what it said stands above")


def _announce(facts: Members) -> None:
    tell("\n".join([f"LeaseHub is ready at {facts['url']}; Ctrl-C stops it.", *_what_next(facts)]))
    names = ("url", "organization", "principal", "credentials", "admin_user", "first_run")
    emit({"ok": True, "code": "ready", **{name: facts.get(name) for name in names}})


def _what_next(facts: Members) -> list[str]:
    credentials = facts.get("credentials")
    if credentials is None:
        lines = [
            "This database was set up elsewhere, and that is where its credentials are.",
            f"Admin: {facts['url']}/admin/. API: {facts['url']}/v1/docs",
        ]
        where = [f"  export LEASEHUB_URL={facts['url']} LEASEHUB_TOKEN=lh_…"]
    else:
        lines = [
            f"The key and the admin's password are in {credentials}, for your eyes only.",
            f"Admin: {facts['url']}/admin/ (user {facts['admin_user']}). API: {facts['url']}/v1/docs",
        ]
        is_found = os.path.basename(os.path.dirname(str(credentials))) == ".leasehub"
        where = [] if is_found else [f"  export LEASEHUB_CREDENTIALS={credentials}"]
    return [
        *lines,
        "In another terminal, here:",
        *where,
        "  leasehub lease acquire --kind demo --ttl 5",
        "  leasehub run --resource deploy/checkout-service -- sleep 60",
    ]


def _stop(children: list[Child], signals: Signals) -> None:
    """All at once and within STOP_SECONDS; a second signal does not wait."""
    for child in children:
        child.ask_to_end()
    give_up = time.monotonic() + STOP_SECONDS
    before = len(signals.received)
    while time.monotonic() < give_up and len(signals.received) == before:
        if all(child.has_ended for child in children):
            break
        signals.wait(0.05)
    for child in children:
        child.kill()


def _interrupted(signals: Signals) -> int:
    number = signals.received[0]
    message = ENDED_BY_SIGNAL.format(signal.Signals(number).name)
    emit({"ok": False, "code": "interrupted", "message": message})
    return 128 + number


def _address(host: str, port: int) -> str:
    """Who listens on every address is spoken to at the one of this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _how(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
