"""Name the places of the flat feature vectors that every routing rule reads.

A rule is a plain function in the subset of Python that numba compiles: it reads a task, the bound decode worker
and ``k`` prefill workers as flat sequences of floats and returns ``(choice, reason)``. The live router fills the
vectors with its snapshot (``weft_core.policies.live``), the simulator with its state; both call the same function.
Times are seconds, lengths tokens; NaN says "not known".
"""

# One task.
TASK_HISTORY = 0  # tokens whose KV exists on the bound decode worker
TASK_INCREMENT = 1  # tokens to prefill
TASK_WAITED = 2  # since the round reached the router
TASK_TTFT_SLO = 3
TASK_ITL_SLO = 4
TASK_ROUND = 5  # 0 is the session's first
TASK_DECODE = 6  # expected tokens of the answer; NaN when not known
TASK_RATE = 7  # observed rounds per second of the whole service (PPD's QPS)
TASK_UNIFORM = 8  # a random number in [0, 1), drawn by the caller
TASK_PRIORITY = 9  # 0 is the ordinary class, higher is more important
TASK_SIZE = 10

# The bound decode worker.
LOCAL_QUEUE_S = 0  # sum of T_pre over its queued and running local prefills, each run whole
LOCAL_PREFILL_S = 1  # T_pre of this task on it, run whole
LOCAL_CHUNKED_QUEUE_S = 2  # until its local queue is done when run in SLO-sized chunks; infinite when it cannot
LOCAL_CHUNKED_S = 3  # this task in SLO-sized chunks after that; infinite when no chunk keeps the ITL SLO
LOCAL_WINDOWED_ITL = 4  # mean of the statistics window; NaN: no sample
LOCAL_BATCH = 5  # sequences decoding now
LOCAL_CONTEXT = 6  # their tokens in total
LOCAL_STEP_S = 7  # one decode step of that batch
LOCAL_KV_FREE = 8  # tokens
LOCAL_QUEUED = 9  # its queued and running local prefills
LOCAL_SIZE = 10

# One prefill worker: ``remote`` holds REMOTE_SIZE figures for each, one worker after the other.
REMOTE_QUEUE_S = 0  # sum of T_pre over its queued and running prefills
REMOTE_PREFILL_S = 1  # T_pre of this task on it
REMOTE_READ_S = 2  # T_kv of the history, decode worker -> prefill worker
REMOTE_BACK_S = 3  # T_kv of the increment, prefill worker -> decode worker
REMOTE_WINDOWED_TTFT = 4  # mean of the statistics window; NaN: no sample
REMOTE_QUEUED = 5  # queued and running prefills
REMOTE_CACHED = 6  # tokens of this prompt in its prefix cache
REMOTE_KV_USE = 7  # share of its KV capacity in use
REMOTE_IDLE_S = 8  # since it was last chosen
REMOTE_RATE = 9  # bytes per second of its link to the decode worker
REMOTE_SIZE = 10

LOCAL = -1
"""The choice "on the bound decode worker"; 0 .. k - 1 are the prefill workers."""
