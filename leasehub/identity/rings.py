"""What a key may do."""

OBSERVE = 1
ACT = 2
OPERATE = 3

NAMES = {OBSERVE: "RING-1 (observe)", ACT: "RING-2 (act)", OPERATE: "RING-3 (operate)"}
