"""Number the rules; the numbers are kept for good, because compiled code and stored results hold them."""

from typing import Final

WEFT: Final = 0
AMPD: Final = 1
REMOTE_JSQ: Final = 2
PPD: Final = 3
FIXED_X: Final = 4
ALWAYS_REMOTE: Final = 5
ALWAYS_LOCAL: Final = 6
COLOCATED: Final = 7
THRESHOLD: Final = 8
WEIGHTED_SCORE: Final = 9
LATENCY_COST: Final = 10

KV_HEADROOM: Final = 0
PREFIX_AWARE: Final = 1
KV_AWARE: Final = 2
LEAST_REQUESTS: Final = 3
ROUND_ROBIN: Final = 4

FCFS: Final = 0
AMPD_WINDOW: Final = 1
MOORE_HODGSON: Final = 2
EDF: Final = 3
