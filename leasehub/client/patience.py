"""How long to wait for something that others have."""

import time

from leasehub.client.clock import boot_clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading

FOR_EVER = float("inf")


class Patience:
    """So many seconds from now, or as long as it takes when None. ``stopped``, where there is one, ends it at once:
    another thread may set it."""

    def __init__(self, seconds: float | None, stopped: "threading.Event | None" = None) -> None:
        self.seconds = seconds
        self.stopped = stopped
        self._give_up = FOR_EVER if seconds is None else boot_clock() + seconds

    def stop(self) -> None:
        if self.stopped is not None:
            self.stopped.set()

    def left(self) -> float:
        """In seconds; 0 or less when it is over."""
        if self.stopped is not None and self.stopped.is_set():
            return 0.0
        return self._give_up - boot_clock()

    def sleep(self, seconds: float) -> bool:
        """Sleeps so long, or as long as there is left; False, at once, when nothing is left."""
        left = self.left()
        if left <= 0:
            return False
        seconds = min(seconds, max(0.05, left))
        if self.stopped is None:
            time.sleep(seconds)
            return True
        return not self.stopped.wait(seconds)
