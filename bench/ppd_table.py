"""Learn the table that policy ``ppd`` ships with, as Phase 1 of PPD's Algorithm 1 does, from the simulator.

``make ppd-table`` writes it. The set-up is the paper's (section 4.2): Llama-3.1-8B, one prefill and three decode
workers of one H100 each, two-turn conversations that arrive by a Poisson process for 10 s at its QPS levels (QPS counts
conversations; 10 is left out, as in the paper's Table 1), every second turn once remote (x = 0) and once local (x = 1).
The paper's grid has two first turns; the 10,000 tokens of its Figure 1 are a third one here, so that every context
class has its workloads. Another model has another table: ``--model`` prints it.
"""

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from bench.paper.ppd import ENGINE as PAPER_ENGINE
from bench.paper.ppd import LINK, SLO, sample_of
from bench.paper.published import PPD_LOADS

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.policies.ppd_cells import CONTEXTS, SHAPES, cell_names
from weft_planner.simulation import PolicyChoice, layout_of, simulate
from weft_planner.study.ppd_table import relative_changes
from weft_planner.workload.presets import presets
from weft_planner.workload.traffic import Workload

LAYOUT = layout_of("disaggregated", prefill={1: 1}, decode={1: 3}, gpus_per_node=4)
"""1P_3D, of which the paper prints the weights' effect (section 6.3)."""
ENGINE = replace(PAPER_ENGINE, admission="oracle")
"""Sessions wait for memory and keep it: in the paper's runs queues and transfers were short, not memory (6.2)."""
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
SEEDS = (1, 2, 3)
TABLE = Path("core/weft_core/policies/ppd_table.py")
HEAD = '''"""The offline table of policy ``ppd``, learned from the simulator; made by ``make ppd-table``, do not edit.

Per cell: the share by which TTFT falls, and that by which the time per output token rises, from x = 0 to x = 1;
{model}, 1P_3D on H100, {runs} runs.
"""

CELLS: tuple[tuple[str, float, float], ...] = (
'''


def conversations() -> Mapping[tuple[str, str], Sequence[Workload]]:
    """Return the two-turn workloads of each context class and shape."""
    known = presets()
    longest = known["ppd/long-context"].body["firstPrompt"]
    found: dict[tuple[str, str], list[Workload]] = {}
    for context, shape in itertools.product(CONTEXTS, SHAPES):
        first = "short" if context == "short" else "long"
        bodies = [one.body for name, one in known.items() if name.startswith(f"ppd/{first}-{shape}-")]
        changed = {"arrivalRate": 1.0, **({"firstPrompt": longest} if context == "long" else {})}
        found[context, shape] = [Workload.model_validate({**body, **changed}) for body in bodies]
    return found


def profile(model: str) -> CostProfile:
    """Return the profile of a model of the catalogue on one GPU of the paper's.

    Raises:
        ModelDoesNotFit: it is too large for one.
    """
    return derive_profile(MODELS[model], replace(GPUS["nvidia-h100"], kv_in_node=LINK), degrees=(1,))


def changes(workloads: Sequence[Workload], rates: Sequence[float], costs: CostProfile) -> tuple[float, float]:
    """Return by which share the second turns' TTFT falls and TPOT rises from x = 0 to x = 1 (Algorithm 1, lines 3-5).

    A cell's means are over all rounds of its workloads, rates and seeds, as in the table of a service.
    """
    found = []
    for workload, rate, seed in itertools.product(workloads, rates, SEEDS):
        sample = sample_of(workload, rate, seed)
        both = [simulate(sample, LAYOUT, {"gpu": costs}, _fixed(x), SLO, options=ENGINE, seed=seed) for x in (0, 1)]
        later = np.ones(sample.rows, bool)
        later[sample.first_row] = False
        found.append([np.stack([getattr(one, name)[later] for one in both]) for name in ("ttft", "itl_mean", "gaps")])
    ttft, tpot, gaps = (np.concatenate(rows, axis=1).astype(float) for rows in zip(*found, strict=True))
    return relative_changes(ttft, tpot, gaps)


def learn(costs: CostProfile) -> Iterator[tuple[str, float, float]]:
    """Yield (cell, fall, rise) of every cell, the rate changing fastest."""
    grid, loads = conversations(), tuple(PPD_LOADS.values())
    for k, name in enumerate(cell_names()):
        context, shape, _ = name.split(".")
        yield name, *changes(grid[context, shape], loads[k % len(loads)], costs)


def _fixed(x: float) -> PolicyChoice:
    return PolicyChoice(route="fixed-x", order="fcfs", binding="least-requests", params={"x": x})


def main() -> None:
    """Write the table that is shipped, or print that of another model."""
    parser = argparse.ArgumentParser(description="Learn the table that policy ppd ships with.")
    parser.add_argument("--model", choices=MODELS, metavar="NAME", help="print the table of this model instead")
    asked = parser.parse_args().model
    rows = "".join(f'    ("{name}", {fall:.3f}, {rise:.3f}),\n' for name, fall, rise in learn(profile(asked or MODEL)))
    if asked is not None:
        print(rows, end="")
        return
    runs = (
        2 * len(SEEDS) * sum(len(one) * len(rates) for one in conversations().values() for rates in PPD_LOADS.values())
    )
    TABLE.write_text(HEAD.format(model=MODEL, runs=runs) + rows + ")\n", encoding="utf-8")


if __name__ == "__main__":
    main()
