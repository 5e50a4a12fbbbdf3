"""The offline table of policy ``ppd``, learned from the simulator; made by ``make ppd-table``, do not edit.

Per cell: the share by which TTFT falls, and that by which the time per output token rises, from x = 0 to x = 1;
meta-llama/Llama-3.1-8B-Instruct, 1P_3D on H100, 1458 runs.
"""

CELLS: tuple[tuple[str, float, float], ...] = (
    ("short.decode-heavy.low", 0.577, 0.001),
    ("short.decode-heavy.medium", 0.546, 0.009),
    ("short.decode-heavy.high", 0.575, 0.026),
    ("short.balanced.low", 0.592, 0.002),
    ("short.balanced.medium", 0.551, 0.016),
    ("short.balanced.high", 0.640, 0.050),
    ("short.prefill-heavy.low", 0.453, 0.007),
    ("short.prefill-heavy.medium", 0.503, 0.071),
    ("short.prefill-heavy.high", 0.898, 0.242),
    ("middle.decode-heavy.low", 0.818, 0.002),
    ("middle.decode-heavy.medium", 0.820, 0.012),
    ("middle.decode-heavy.high", 0.974, 0.039),
    ("middle.balanced.low", 0.809, 0.003),
    ("middle.balanced.medium", 0.830, 0.020),
    ("middle.balanced.high", 0.987, 0.108),
    ("middle.prefill-heavy.low", 0.653, 0.012),
    ("middle.prefill-heavy.medium", 0.826, 0.078),
    ("middle.prefill-heavy.high", 0.986, 0.359),
    ("long.decode-heavy.low", 0.966, 0.004),
    ("long.decode-heavy.medium", 0.996, 0.086),
    ("long.decode-heavy.high", 0.998, 0.372),
    ("long.balanced.low", 0.965, 0.003),
    ("long.balanced.medium", 0.997, 0.212),
    ("long.balanced.high", 0.999, 0.372),
    ("long.prefill-heavy.low", 0.933, 0.026),
    ("long.prefill-heavy.medium", 0.993, 0.413),
    ("long.prefill-heavy.high", 0.997, 0.526),
)
