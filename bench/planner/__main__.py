"""Print the planner's figures as one table: medians, what was aimed at, and the machine.

Simulator events per second on one core, whole plans (three seeds, ten layouts simulated in full) from 8 to 256 GPUs,
the integer program alone at 64, a first plan in a fresh process with its peak memory, and, by ``policies.py``, what
decisions and queue orders cost in plain Python. Processor seconds stand beside the clock: they say more on a busy
machine. ``--quick`` leaves out the largest sizes, ``--tiny`` only shows that it runs. Exit status 1: an aim is missed.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.paper.cells import CELLS, SETTINGS, Length, costs_of, sample_at
from bench.paper.layouts import large_request
from bench.paper.page import machine

from weft_planner.evaluation.shortlist import BEST, prune
from weft_planner.plan.solve import solve
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.programs.search import LayoutSearch
from weft_planner.programs.solver import Solver
from weft_planner.simulation import PolicyChoice, simulate

PLAN_S = {8: None, 16: None, 32: 5.0, 64: None, 128: None, 256: 30.0}
EVENTS_PER_S = 1e6
PROGRAM_S = 1.0
COLD_S = 10.0
MEMORY_MIB = 1024.0
COLD = """
import resource, time
began = time.perf_counter()
from bench.paper.layouts import large_request
from weft_planner.plan.solve import solve
solve(large_request({gpus}))
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A figure: its median, least and most over runs, and the aim it is held against (None: there is none)."""

    name: str
    unit: str
    values: tuple[float, ...]
    aim: float | None = None
    at_least: bool = False
    cpu: float | None = None

    @property
    def met(self) -> bool:
        """Return whether the median reaches the aim."""
        if self.aim is None:
            return True
        return median(self.values) >= self.aim if self.at_least else median(self.values) <= self.aim

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        aim = "-" if self.aim is None else f"{sign} {self.aim:g}{'' if self.met else ' MISSED'}"
        cpu = "-" if self.cpu is None else f"{self.cpu:.2f} s"
        spread = f"{min(self.values):.3g} to {max(self.values):.3g}"
        return f"| {self.name} | {median(self.values):.3g} {self.unit} | {spread} | {cpu} | {aim} |"


def simulator(runs: int, seconds: float) -> list[Row]:
    """Measure events per processor second of three cells under Weft's rule, near their goodput."""
    found = []
    rates = {"Llama-3.1-70B gaia": 1.6, "Qwen3-32B toolbench": 8.0, "Mixtral-8x7B dureader": 8.0}
    for cell in CELLS:
        rate = rates.get(str(cell))
        if rate is None:
            continue
        sample = sample_at(cell, Length(seconds, 10, (1,)), rate, 1)
        costs = costs_of(cell, SETTINGS[0])

        def run() -> int:
            return simulate(sample, cell.layout, costs, PolicyChoice(), (cell.slo,), options=SETTINGS[0].options).events  # noqa: B023

        run()
        speeds = []
        for _ in range(runs):
            cpu = time.process_time()
            events = run()
            speeds.append(events / (time.process_time() - cpu) / 1e6)
        found.append(Row(f"simulator, {cell} at {rate:g}/s", "M events/s", tuple(speeds), EVENTS_PER_S / 1e6, True))
    return found


def plans(sizes: Sequence[int], runs: int) -> list[Row]:
    """Measure whole plans with everything loaded."""
    with Solver() as solver:
        solve(large_request(8), solver=solver)

        def plan(gpus: int) -> Callable[[], object]:
            return lambda: solve(large_request(gpus), solver=solver)

        return [_timed(f"plan, {gpus} GPUs", plan(gpus), runs, PLAN_S.get(gpus)) for gpus in sizes]


def program(gpus: int, runs: int) -> Row:
    """Measure the integer program alone: the best six layouts of form A, tables at hand."""
    with Solver() as solver:
        search = LayoutSearch(solver)
        space = prune(prepare_inputs(large_request(gpus)), search)
        if space is None:
            raise RuntimeError(f"no layout of {gpus} GPUs keeps every limit; the bench's request must have one")
        limits, sides = space.limits, space.sides

        def six_best() -> object:
            return search.pairs(sides["prefill"], sides["decode"], limits=limits, objective="latency", count=BEST)

        return _timed(f"integer program, {gpus} GPUs", six_best, runs, PROGRAM_S)


def _timed(name: str, call: Callable[[], object], runs: int, aim: float | None) -> Row:
    clocks, cpus = [], []
    for _ in range(runs):
        clock, cpu = time.perf_counter(), time.process_time()
        call()
        clocks.append(time.perf_counter() - clock)
        cpus.append(time.process_time() - cpu)
    return Row(name, "s", tuple(clocks), aim, cpu=median(cpus))


def cold(gpus: int, runs: int) -> list[Row]:
    """Measure a first plan in a fresh process: imports, compiled simulator from its cache, plan; and its memory."""
    found = []
    for _ in range(runs):
        done = subprocess.run(
            [sys.executable, "-c", COLD.format(gpus=gpus)], check=True, capture_output=True, text=True, timeout=600
        )
        found.append([float(word) for word in done.stdout.split()])
    return [
        Row(f"first plan of a process, {gpus} GPUs", "s", tuple(one[0] for one in found), COLD_S),
        Row(f"peak memory of that process, {gpus} GPUs", "MiB", tuple(one[1] for one in found), MEMORY_MIB),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print all tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.planner", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="up to 64 GPUs, one run each")
    size.add_argument("--tiny", action="store_true", help="8 GPUs, one run each, no decisions: to see that it runs")
    options = parser.parse_args(arguments)
    short = options.quick or options.tiny
    sizes = (8,) if options.tiny else (8, 16, 32, 64) if options.quick else tuple(PLAN_S)
    runs = 1 if short else 3
    rows = simulator(1 if options.tiny else 5, 20 if options.tiny else 180)
    rows += plans(sizes, runs)
    rows.append(program(8 if options.tiny else 64, 1 if short else 5))
    if not options.tiny:
        rows += [row for gpus in ((32,) if short else (32, 256)) for row in cold(gpus, runs)]
    print(f"Machine: {machine()}\n")
    print("| figure | median | least to most | processor | aim |\n| --- | --- | --- | --- | --- |")
    print("\n".join(map(str, rows)))
    status = int(not all(row.met for row in rows))
    if options.tiny:
        return status
    print(flush=True)
    script = Path(__file__).with_name("policies.py")
    return max(status, subprocess.run([sys.executable, str(script)], check=False, timeout=600).returncode)


if __name__ == "__main__":
    sys.exit(main())
