"""Look each later round up in an offline table, as PPD does (Algorithm 1 of PPD, section 5).

The table has a cell per context class (tokens of history), in/out class (new tokens against expected answer) and QPS
bin. A cell holds what was measured offline for x = 1 against x = 0: the share by which TTFT falls and by which TPOT
rises. Online: turn 1 is remote; else local when w_ttft x fall - w_tpot x rise > 0 (phase 1, lines 4-7, done here so
that weights can change without a new table). An answer of unknown length counts as balanced, an unknown rate as low.

The built-in table holds the paper's Table 1 for 1P_3D in every class (TTFT falls 57.8, 65.2, 73.3 % at low, medium,
high rates) and, for the rise of TPOT, which the paper gives for prefill-heavy rounds only (7 to 12 %), 2 % where few
tokens come in and 7, 9, 12 % where many do. Class borders are ours: the paper prints none but the rates it groups by.
Measure your own: ``weft simulate`` with ``fixed-x`` 0 and 1 gives the figures of one cell.

Hand-worked example (test_policy_ppd.py): history 2,000, 3,000 tokens in, 100 out, 6 rounds/s: cell (1, 2, 1) falls
65.2 %, rises 9 %: local at weights 1 and 1, remote at w_tpot 8 (0.652 - 0.72 < 0).
"""

from collections.abc import Sequence

from weft_core.policies.finish import stay_or_offload
from weft_core.policies.inputs import RoutingInputs, TaskFigures
from weft_core.policies.policy import Parameter, RoutingPolicy
from weft_core.policies.reasons import FIRST_ROUND, reason

TABLE = reason("table", "the offline table has it run on the decode worker")

CLASSES = 3
"""Of each of the three axes."""
W_TTFT = 0
W_TPOT = 1
CONTEXT_SHORT = 2
CONTEXT_LONG = 3
RATIO_DECODE = 4
RATIO_PREFILL = 5
RATE_LOW = 6
RATE_HIGH = 7
TTFT_FALL = 8
"""27 cells, the rate changing fastest, then the in/out class, then the context class."""
TPOT_RISE = TTFT_FALL + CLASSES**3

CONTEXTS = ("short", "middle", "long")
SHAPES = ("decode-heavy", "balanced", "prefill-heavy")
RATES = ("low", "medium", "high")
_FALL = (0.578, 0.652, 0.733)
_RISE = ((0.02, 0.02, 0.02), (0.02, 0.02, 0.02), (0.07, 0.09, 0.12))
_CELLS = [
    (f"{context}.{shape}.{rate}", fall, rise)
    for context in CONTEXTS
    for shape, rises in zip(SHAPES, _RISE, strict=True)
    for rate, fall, rise in zip(RATES, _FALL, rises, strict=True)
]
PARAMETERS = (
    Parameter("w_ttft", 1.0, 0.0, 100.0, "weight", "of the fall of TTFT"),
    Parameter("w_tpot", 1.0, 0.0, 100.0, "weight", "of the rise of TPOT"),
    Parameter("context_short", 1024, 1, 1e7, "tokens", "history below this is a short context"),
    Parameter("context_long", 8192, 1, 1e7, "tokens", "history from this on is a long context"),
    Parameter("ratio_decode", 0.5, 0.0, 1e6, "in / out", "new tokens per answer token; below is decode-heavy"),
    Parameter("ratio_prefill", 2.0, 0.0, 1e6, "in / out", "from this on it is prefill-heavy"),
    Parameter("rate_low", 3.0, 0.0, 1e6, "rounds/s", "of the whole service; below is low"),
    Parameter("rate_high", 10.0, 0.0, 1e6, "rounds/s", "from this on is high"),
    *(
        Parameter(f"ttft_fall.{name}", fall, -10, 1, "share", "(TTFT at x=0 - TTFT at x=1) / TTFT at x=0")
        for name, fall, _ in _CELLS
    ),
    *(
        Parameter(f"tpot_rise.{name}", rise, -1, 100, "share", "(TPOT at x=1 - TPOT at x=0) / TPOT at x=0")
        for name, _, rise in _CELLS
    ),
)  # fmt: skip


def band(value: float, low: float, high: float) -> int:
    """Return 0 below ``low``, 2 from ``high`` on, else 1."""
    if value < low:
        return 0
    return 2 if value >= high else 1


def cell(task: TaskFigures, params: Sequence[float]) -> int:
    """Return the place of a task's cell in the table."""
    context = band(task.history, params[CONTEXT_SHORT], params[CONTEXT_LONG])
    shape = 1
    if task.answer == task.answer:
        shape = band(task.increment / max(task.answer, 1.0), params[RATIO_DECODE], params[RATIO_PREFILL])
    load = 0 if task.rate != task.rate else band(task.rate, params[RATE_LOW], params[RATE_HIGH])
    return (context * CLASSES + shape) * CLASSES + load


def route_ppd(inputs: RoutingInputs) -> tuple[int, int]:
    """Decide by the table (phase 2); remote rounds go to the worker that should finish first."""
    params = inputs.params
    if inputs.task.round < 1:
        return stay_or_offload(inputs, False, FIRST_ROUND, FIRST_ROUND)
    at = cell(inputs.task, params)
    score = params[W_TTFT] * params[TTFT_FALL + at] - params[W_TPOT] * params[TPOT_RISE + at]
    return stay_or_offload(inputs, score > 0, TABLE, TABLE)


POLICY = RoutingPolicy(
    "ppd", "an offline table per context, shape and rate", "PPD, Algorithm 1, section 5", route_ppd, PARAMETERS,
    reads_rate=True,
)  # fmt: skip
