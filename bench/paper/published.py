"""Figures that the papers print and that the page sets ours beside; nothing here is tuned or read by the planner."""

from collections.abc import Mapping

from weft_core.parallelism import Degree

AMPD = "AMPD (arXiv 2602.14516)"
PPD = "PPD (Not All Prefills Are Equal)"

Shape = Mapping[Degree, int]
"""Replicas per tensor-parallel degree."""

SMALL: tuple[Shape, Shape] = ({4: 1}, {4: 1})
LARGE: tuple[Shape, Shape] = ({8: 2}, {8: 2})
BEST_LAYOUTS: Mapping[tuple[str, str], tuple[Shape, Shape]] = {
    ("Llama-3.1-70B", "toolbench"): SMALL,
    ("Llama-3.1-70B", "gaia"): LARGE,
    ("Llama-3.1-70B", "hotpotqa"): SMALL,
    ("Llama-3.1-70B", "dureader"): ({4: 2}, {8: 1}),
    ("Qwen3-32B", "toolbench"): SMALL,
    ("Qwen3-32B", "gaia"): LARGE,
    ("Qwen3-32B", "hotpotqa"): SMALL,
    ("Qwen3-32B", "dureader"): ({4: 2}, {4: 2}),
    ("Mixtral-8x7B", "toolbench"): SMALL,
    ("Mixtral-8x7B", "gaia"): LARGE,
    ("Mixtral-8x7B", "hotpotqa"): SMALL,
    ("Mixtral-8x7B", "dureader"): ({8: 1}, {8: 1}),
}
"""AMPD, Table 2, first row of every cell: (prefill, decode)."""

PLANNING_SECONDS: Mapping[int, float] = {8: 0.54, 16: 1.93, 32: 5.06, 64: 14.50, 128: 28.88, 256: 61.67}
"""AMPD, Figure 7, by GPUs."""

PPD_LOADS: Mapping[str, tuple[float, ...]] = {"0.5 to 2": (0.5, 1, 2), "4 to 8": (4, 6, 8), "12 to 20": (12, 16, 20)}
"""PPD, section 4: sessions per second of each column of Table 1."""
PPD_TTFT_CHANGE: Mapping[str, tuple[float, float, float]] = {
    "1P 3D": (-57.8, -65.2, -73.3),
    "2P 2D": (-47.7, -51.6, -56.2),
    "3P 1D": (-44.3, -38.1, -24.9),
}
"""PPD, Table 1: change of the second turn's TTFT in percent, from x = 0 to x = 1, by load."""
PPD_LOCAL_SHARES: Mapping[float, float] = {1.0: 95.0, 3.0: 50.0, 6.0: 20.0}
"""PPD, section 6.3, Figure 5: percent of later rounds that stay local, by w_tpot."""
