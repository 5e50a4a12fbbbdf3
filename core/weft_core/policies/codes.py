"""Number the rules; the numbers are kept for good, because compiled code and stored results hold them."""

WEFT = 0
AMPD = 1
REMOTE_JSQ = 2
PPD = 3
FIXED_X = 4
ALWAYS_REMOTE = 5
ALWAYS_LOCAL = 6
COLOCATED = 7
THRESHOLD = 8
WEIGHTED_SCORE = 9
LATENCY_COST = 10

KV_HEADROOM = 0
PREFIX_AWARE = 1
KV_AWARE = 2
LEAST_REQUESTS = 3
ROUND_ROBIN = 4

FCFS = 0
AMPD_WINDOW = 1
MOORE_HODGSON = 2
EDF = 3
