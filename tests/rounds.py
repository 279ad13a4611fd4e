"""How much of the costly proofs to run: a little by default, all of it with LEASEHUB_TEST_ROUNDS=full."""

import os

FULL = os.environ.get("LEASEHUB_TEST_ROUNDS") == "full"


def rounds(default: int, *, full: int) -> int:
    return full if FULL else default
