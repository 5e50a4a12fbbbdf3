"""Number the reasons of routing decisions; a compiled rule returns the number, logs and metrics show the name."""

from typing import Final

NO_PREFILL_WORKER: Final = 0
TTFT_SLACK: Final = 1
ITL_SLACK: Final = 2
LEAST_COST: Final = 3
SHORTEST_FINISH: Final = 4
PROFILE_INCOMPLETE: Final = 5
LOCAL_CHUNKED: Final = 6
LOCAL_WHOLE: Final = 7
REMOTE_CHEAPER: Final = 8
FIRST_ROUND: Final = 9
TABLE: Final = 10
SHARE: Final = 11
ALWAYS_REMOTE: Final = 12
ALWAYS_LOCAL: Final = 13
COLOCATED: Final = 14
LONG_PROMPT: Final = 15
DECODE_BUSY: Final = 16
SHORT_PROMPT: Final = 17
QUEUE_FULL: Final = 18
SCORE: Final = 19
LOW_SCORE: Final = 20
DEGRADED: Final = 21
PREDICTIONS_WRONG: Final = 22

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
