"""Look each later round up in an offline table, as PPD does (Algorithm 1 of PPD, section 5).

The table has a cell per context class (tokens of history), in/out class (new tokens against expected answer) and QPS
bin. A cell holds what was measured offline for x = 1 against x = 0: the share by which TTFT falls and by which TPOT
rises. Online: turn 1 is remote; else local when w_ttft x fall - w_tpot x rise > 0 (phase 1, lines 4-7, done here so
that weights can change without a new table). An answer of unknown length counts as balanced, an unknown rate as low.

The built-in table is learned from the simulator in the paper's set-up, its model included (``make ppd-table``; section
4.2 of PPD). QPS counts new conversations per second: 0.5 to 2 is low, 4 to 8 medium, 12 to 20 high (Table 1), and the
borders lie between. The other borders are ours, between the workloads of the grid: the paper prints none. Of rounds
that bring many tokens the paper keeps 95, 50 and 20 % local at w_tpot 1, 3 and 6 (section 6.3, Figure 5), this table
as many within 15 points (test_ppd_shares.py). ``weft ppd learn`` makes the table of a service.

Hand-worked example (test_policy_ppd.py): a cell that falls 65.2 % and rises 9 %: local at weights 1 and 1, remote at
w_tpot 8 (0.652 - 0.72 < 0).
"""

from collections.abc import Sequence

from weft_core.policies.finish import stay_or_offload
from weft_core.policies.inputs import RoutingInputs, TaskFigures
from weft_core.policies.policy import Parameter, RoutingPolicy
from weft_core.policies.ppd_cells import CLASSES
from weft_core.policies.ppd_table import CELLS
from weft_core.policies.reasons import FIRST_ROUND, reason

TABLE = reason("table", "the offline table has it run on the decode worker")

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

PARAMETERS = (
    Parameter("w_ttft", 1.0, 0.0, 100.0, "weight", "of the fall of TTFT"),
    Parameter("w_tpot", 1.0, 0.0, 100.0, "weight", "of the rise of TPOT"),
    Parameter("context_short", 2048, 1, 1e7, "tokens", "history below this is a short context"),
    Parameter("context_long", 8192, 1, 1e7, "tokens", "history from this on is a long context"),
    Parameter("ratio_decode", 0.5, 0.0, 1e6, "in / out", "new tokens per answer token; below is decode-heavy"),
    Parameter("ratio_prefill", 2.0, 0.0, 1e6, "in / out", "from this on it is prefill-heavy"),
    Parameter("rate_low", 3.0, 0.0, 1e6, "sessions/s", "new ones of the whole service; below is low"),
    Parameter("rate_high", 10.0, 0.0, 1e6, "sessions/s", "from this on is high"),
    *(
        Parameter(f"ttft_fall.{name}", fall, -10, 1, "share", "(TTFT at x=0 - TTFT at x=1) / TTFT at x=0")
        for name, fall, _ in CELLS
    ),
    *(
        Parameter(f"tpot_rise.{name}", rise, -1, 100, "share", "(TPOT at x=1 - TPOT at x=0) / TPOT at x=0")
        for name, _, rise in CELLS
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
