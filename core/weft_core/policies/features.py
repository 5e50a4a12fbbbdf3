"""Name the places of the flat feature vectors that every routing rule reads.

A rule is a plain function in the subset of Python that numba compiles: it reads a task, the bound decode worker
and ``k`` prefill workers as flat sequences of floats and returns ``(choice, reason)``. The live router fills the
vectors with its snapshot (``weft_core.policies.live``), the simulator with its state; both call the same function.
Times are seconds, lengths tokens; NaN says "not known".
"""

from typing import Final

# One task.
TASK_HISTORY: Final = 0  # tokens whose KV exists on the bound decode worker
TASK_INCREMENT: Final = 1  # tokens to prefill
TASK_WAITED: Final = 2  # since the round reached the router
TASK_TTFT_SLO: Final = 3
TASK_ITL_SLO: Final = 4
TASK_ROUND: Final = 5  # 0 is the session's first
TASK_DECODE: Final = 6  # expected tokens of the answer; NaN when not known
TASK_RATE: Final = 7  # observed rounds per second of the whole service (PPD's QPS)
TASK_UNIFORM: Final = 8  # a random number in [0, 1), drawn by the caller
TASK_PRIORITY: Final = 9  # 0 is the ordinary class, higher is more important
TASK_SIZE: Final = 10

# The bound decode worker.
LOCAL_QUEUE_S: Final = 0  # sum of T_pre over its queued and running local prefills, each run whole
LOCAL_PREFILL_S: Final = 1  # T_pre of this task on it, run whole
LOCAL_CHUNKED_QUEUE_S: Final = 2  # until its local queue is done when run in SLO-sized chunks; infinite when it cannot
LOCAL_CHUNKED_S: Final = 3  # this task in SLO-sized chunks after that; infinite when no chunk keeps the ITL SLO
LOCAL_WINDOWED_ITL: Final = 4  # mean of the statistics window; NaN: no sample
LOCAL_BATCH: Final = 5  # sequences decoding now
LOCAL_CONTEXT: Final = 6  # their tokens in total
LOCAL_STEP_S: Final = 7  # one decode step of that batch
LOCAL_KV_FREE: Final = 8  # tokens
LOCAL_QUEUED: Final = 9  # its queued and running local prefills
LOCAL_SIZE: Final = 10

# One prefill worker: ``remote`` holds REMOTE_SIZE figures for each, one worker after the other.
REMOTE_QUEUE_S: Final = 0  # sum of T_pre over its queued and running prefills
REMOTE_PREFILL_S: Final = 1  # T_pre of this task on it
REMOTE_READ_S: Final = 2  # T_kv of the history, decode worker -> prefill worker
REMOTE_BACK_S: Final = 3  # T_kv of the increment, prefill worker -> decode worker
REMOTE_WINDOWED_TTFT: Final = 4  # mean of the statistics window; NaN: no sample
REMOTE_QUEUED: Final = 5  # queued and running prefills
REMOTE_CACHED: Final = 6  # tokens of this prompt in its prefix cache
REMOTE_KV_USE: Final = 7  # share of its KV capacity in use
REMOTE_IDLE_S: Final = 8  # since it was last chosen
REMOTE_RATE: Final = 9  # bytes per second of its link to the decode worker
REMOTE_SIZE: Final = 10

LOCAL: Final = -1
"""The choice "on the bound decode worker"; 0 .. k - 1 are the prefill workers."""
