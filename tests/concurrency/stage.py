"""Steps operations, each on a connection of its own, through their yield points in every order.

The yield points are the start, every reading of the clock (which is where a decision is made: after the lock, and
in acquire also before it) and the commit. On PostgreSQL an operation waits at them inside the database, at an advisory
lock that ``leasehub_now()`` takes while the test runs, so the functions under test are the real ones; on SQLite it
waits in Python. An operation that waits for another one's lock is not stepped until that one has let go.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper

from leasehub.db.sqlite import clock as sqlite_clock
from leasehub.db.sqlite.writer_lock import WriterLock
from leasehub.errors import DomainError
from tests.concurrency.fixtures import hurry
from tests.concurrency.frozen import plain_connection

Operation = Callable[[], Any]
GATES = 24
MAX_ORDERS = 5000
SETTLE_SECONDS = 20


@dataclass
class Play:
    """One run: who was stepped when, who could have been, and what each operation gave."""

    steps: list[int] = field(default_factory=list)
    choices: list[list[int]] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)


class Player:
    """A thread with a connection that carries out one operation after another."""

    def __init__(self, stage: "Stage") -> None:
        self.stage = stage
        self.operations: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self.finished = True
        self.result: Any = None
        self.gate = threading.Semaphore(0)
        self.parked = False
        self.waits_to_write = False
        self.pid = 0
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.ready.wait(10)

    def start(self, operation: Operation) -> None:
        self.finished = False
        self.operations.put(operation)

    def _run(self) -> None:
        hurry()
        self.stage.enter(self)
        self.ready.set()
        try:
            while (operation := self.operations.get()) is not None:
                self.result = self._carry_out(operation)
                self.finished = True
        finally:
            connection.close()

    def _carry_out(self, operation: Operation) -> Any:
        self.stage.arm(self)
        try:
            if not getattr(operation, "starts_with_the_clock", False):
                self.stage.pause(self)
            return operation()
        except DomainError as error:
            return error
        except Exception as error:
            return error
        finally:
            self.stage.disarm(self)


class Stage:
    """Common to both databases; a subclass knows how an operation waits and how that is seen."""

    def __init__(self, size: int) -> None:
        self.players = [Player(self) for _ in range(size)]

    def play(self, operations: Sequence[Operation], steps: Sequence[int] = ()) -> Play:
        """Runs the operations to their ends, taking the given steps first and then the first that can go on."""
        play = Play()
        players = self.players[: len(operations)]
        self.close_gates(players)
        for player, operation in zip(players, operations, strict=True):
            player.start(operation)
        while able := self._able(players):
            planned = len(play.steps)
            chosen = steps[planned] if planned < len(steps) else able[0]
            assert chosen in able, f"{chosen} cannot be stepped after {play.steps}"
            play.steps.append(chosen)
            play.choices.append(able)
            self.open_gate(players[chosen])
        self.open_gates()
        play.results = [player.result for player in players]
        return play

    def every_order(self, operations: Callable[[], Sequence[Operation]]) -> Iterator[Play]:
        """All runs that differ in who is stepped when. ``operations`` sets the scene for each."""
        steps: list[int] = []
        for _ in range(MAX_ORDERS):
            play = self.play(operations(), steps)
            yield play
            taken, choices = play.steps, play.choices
            while taken and taken[-1] == choices[-1][-1]:
                taken, choices = taken[:-1], choices[:-1]
            if not taken:
                return
            steps = [*taken[:-1], choices[-1][choices[-1].index(taken[-1]) + 1]]
        raise AssertionError(f"more than {MAX_ORDERS} orders")

    def _able(self, players: list[Player]) -> list[int]:
        """Who waits at a gate, once nobody is running. Empty when all have finished."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            states = self.states(players)
            if "running" not in states:
                able = [number for number, state in enumerate(states) if state == "parked"]
                if able or all(state == "finished" for state in states):
                    return able
            time.sleep(0.0002)
        raise AssertionError(f"stuck: {self.states(players)}")

    def close(self) -> None:
        self.open_gates()
        for player in self.players:
            player.operations.put(None)
        for player in self.players:
            player.thread.join(10)

    def enter(self, player: Player) -> None: ...
    def arm(self, player: Player) -> None: ...
    def disarm(self, player: Player) -> None: ...
    def pause(self, player: Player) -> None: ...
    def close_gates(self, players: list[Player]) -> None: ...
    def open_gate(self, player: Player) -> None: ...
    def open_gates(self) -> None: ...
    def states(self, players: list[Player]) -> list[str]:
        raise NotImplementedError


def _pausing_commit(stage: Stage, player: Player, wrapper: BaseDatabaseWrapper) -> None:
    commit = wrapper._commit  # type: ignore[attr-defined]

    def paused() -> None:
        stage.pause(player)
        commit()

    wrapper._commit = paused  # type: ignore[attr-defined]


class PostgresqlStage(Stage):
    def __init__(self, size: int) -> None:
        self.director = plain_connection()
        self.gates: dict[int, int] = {}
        super().__init__(size)

    def enter(self, player: Player) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            player.pid = cursor.fetchone()[0]
        _pausing_commit(self, player, connection)

    def arm(self, player: Player) -> None:
        self._set_step("0")

    def disarm(self, player: Player) -> None:
        self._set_step("")

    def _set_step(self, step: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('staged.step', %s, false)", [step])

    def pause(self, player: Player) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT staged_yield()")

    def close_gates(self, players: list[Player]) -> None:
        self.director.execute(
            "SELECT pg_advisory_lock(pid, gate) FROM unnest(%s::int[]) AS pid, generate_series(1, %s) AS gate",
            [[player.pid for player in players], GATES],
        )

    def open_gate(self, player: Player) -> None:
        self.director.execute("SELECT pg_advisory_unlock(%s, %s)", [player.pid, self.gates[player.pid]])

    def open_gates(self) -> None:
        self.director.execute("SELECT pg_advisory_unlock_all()")

    def states(self, players: list[Player]) -> list[str]:
        finished = {player.pid for player in players if player.finished}
        waiting = {
            pid: (locktype, gate)
            for pid, locktype, gate in self.director.execute(
                "SELECT pid, locktype, objid::int FROM pg_locks WHERE NOT granted AND pid = ANY (%s)",
                [[player.pid for player in players]],
            )
        }
        self.gates = {pid: gate for pid, (locktype, gate) in waiting.items() if locktype == "advisory"}
        return [
            "finished"
            if player.pid in finished
            else "running"
            if player.pid not in waiting
            else "parked"
            if player.pid in self.gates
            else "blocked"
            for player in players
        ]

    def close(self) -> None:
        super().close()
        self.director.close()


class SqliteStage(Stage):
    def __init__(self, size: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.here = threading.local()
        self.writer: Player | None = None
        self.open = False
        self._hook_clock()
        self._hook_writer_lock()
        super().__init__(size)

    def _hook_clock(self) -> None:
        now = sqlite_clock.now

        def paused() -> Any:
            if (player := getattr(self.here, "player", None)) is not None:
                self.pause(player)
            return now()

        self.patch.setattr(sqlite_clock, "now", paused)

    def _hook_writer_lock(self) -> None:
        acquire, release = WriterLock.acquire, WriterLock.release
        stage = self

        def staged_acquire(lock: WriterLock, *, timeout_seconds: float) -> None:
            player: Player | None = getattr(stage.here, "player", None)
            if player is None:
                return acquire(lock, timeout_seconds=timeout_seconds)
            player.waits_to_write = True
            acquire(lock, timeout_seconds=timeout_seconds)
            stage.writer = player
            player.waits_to_write = False
            return None

        def staged_release(lock: WriterLock) -> None:
            if getattr(stage.here, "player", None) is not None:
                stage.writer = None
            release(lock)

        self.patch.setattr(WriterLock, "acquire", staged_acquire)
        self.patch.setattr(WriterLock, "release", staged_release)

    def enter(self, player: Player) -> None:
        _pausing_commit(self, player, connection)

    def arm(self, player: Player) -> None:
        self.here.player = player

    def disarm(self, player: Player) -> None:
        self.here.player = None

    def pause(self, player: Player) -> None:
        if not self.open:
            player.parked = True
            player.gate.acquire()

    def close_gates(self, players: list[Player]) -> None:
        self.open = False

    def open_gate(self, player: Player) -> None:
        player.parked = False
        player.gate.release()

    def open_gates(self) -> None:
        self.open = True

    def states(self, players: list[Player]) -> list[str]:
        return [self._state(player) for player in players]

    def _state(self, player: Player) -> str:
        if player.finished:
            return "finished"
        if player.parked:
            return "parked"
        writer = self.writer
        held_by_other = writer is not None and writer is not player
        return "blocked" if player.waits_to_write and held_by_other else "running"

    def close(self) -> None:
        super().close()
        self.patch.undo()


def make_stage(size: int) -> Stage:
    return PostgresqlStage(size) if connection.vendor == "postgresql" else SqliteStage(size)
