"""Number the reasons of routing decisions; a compiled rule returns the number, logs and metrics show the name."""

NO_PREFILL_WORKER = 0
TTFT_SLACK = 1
ITL_SLACK = 2
LEAST_COST = 3
SHORTEST_FINISH = 4
PROFILE_INCOMPLETE = 5
LOCAL_CHUNKED = 6
LOCAL_WHOLE = 7
REMOTE_CHEAPER = 8
FIRST_ROUND = 9
TABLE = 10
SHARE = 11
ALWAYS_REMOTE = 12
ALWAYS_LOCAL = 13
COLOCATED = 14
LONG_PROMPT = 15
DECODE_BUSY = 16
SHORT_PROMPT = 17
QUEUE_FULL = 18
SCORE = 19
LOW_SCORE = 20
DEGRADED = 21
PREDICTIONS_WRONG = 22

REASONS: tuple[str, ...] = (
    "no-prefill-worker",
    "ttft-slack",
    "itl-slack",
    "least-cost",
    "shortest-finish",
    "profile-incomplete",
    "local-chunked",
    "local-whole",
    "remote-cheaper",
    "first-round",
    "table",
    "share",
    "always-remote",
    "always-local",
    "colocated",
    "long-prompt",
    "decode-busy",
    "short-prompt",
    "queue-full",
    "score",
    "low-score",
    "degraded",
    "predictions-wrong",
)
"""Names in the order of their numbers."""

MEANINGS: tuple[str, ...] = (
    "there is no prefill worker to send it to",
    "a prefill worker's recent TTFT has slack (Algorithm 1, lines 1-3)",
    "the decode worker's recent ITL has slack (Algorithm 1, lines 4-5)",
    "the option with the least predicted cost",
    "the prefill worker that should finish it first",
    "a prediction is missing, so the prefill worker with the shortest queue was taken",
    "on the decode worker in chunks sized by the ITL SLO, at the least cost",
    "on the decode worker in one piece, at the least cost",
    "a prefill worker, at the least cost",
    "a session's first round always goes to a prefill worker",
    "the offline table has it run on the decode worker",
    "the drawn share of later rounds that runs on the decode worker",
    "every prefill goes to a prefill worker",
    "every prefill runs on the decode worker",
    "prefill and decode share their workers",
    "the prompt is long and prefill workers have room",
    "the decode worker is busy",
    "the prompt is short",
    "the prefill workers' queue is too long",
    "the weighted score is high enough for a prefill worker",
    "the weighted score is too low for a prefill worker",
    "a low-priority task keeps off busy prefill workers",
    "predicted times proved wrong lately, so the prefill worker with the shortest queue was taken",
)
