"""The twelve cells of AMPD's evaluation, and the settings of engine and predictions in which they are run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from bench.paper.published import BEST_LAYOUTS

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile
from weft_core.efficiency import Efficiency
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.policies.retention import Retention
from weft_planner.simulation import Layout, Options, SloClass, layout_of
from weft_planner.simulation.options import Handover
from weft_planner.workload.presets import preset
from weft_planner.workload.sessions import Sample, Size, draw
from weft_planner.workload.traffic import Workload

GPU = "nvidia-h20"
GPUS_PER_NODE = 8
DEGREES = (1, 2, 4, 8)
CONTEXT = 32768
MODEL_NAMES = {
    "Qwen3-32B": "Qwen/Qwen3-32B",
    "Llama-3.1-70B": "meta-llama/Llama-3.1-70B-Instruct",
    "Mixtral-8x7B": "mistralai/Mixtral-8x7B-Instruct-v0.1",
}
TRACES = ("toolbench", "gaia", "hotpotqa", "dureader")


@dataclass(frozen=True, slots=True)
class Setting:
    """How good the engine is and how wrong predictions are; ``analytic`` are factors of the cost model.

    ``prefill_sigma`` and ``slice_sigma`` are the lognormal errors of whole prefills and of slices: the rules, and the
    planner, go on predicting without them. ``handover`` is how a remote prefill's KV reaches the decode worker: vLLM
    pulls. ``kv_share``: how much of their KV memory engines have, and ``retention``: how they keep that of idle
    sessions.
    """

    name: str
    analytic: tuple[tuple[str, float], ...] = ()
    prefill_sigma: float = 0.0
    slice_sigma: float = 0.0
    handover: Handover = "pull"
    kv_share: float = 1.0
    retention: Retention = "lru"

    @property
    def efficiency(self) -> Efficiency:
        """Return the cost model's factors."""
        return Efficiency(**dict(self.analytic))  # type: ignore[arg-type]  # all but one factor are floats

    @property
    def options(self) -> Options:
        """Return how the simulated engines behave; all else as the planner assumes it."""
        return Options(
            prefill_noise_sigma=self.prefill_sigma,
            chunk_noise_sigma=self.slice_sigma,
            handover=self.handover,
            retention=self.retention,
        )


SLOW = (("compute", 0.4), ("prefill_overhead_s", 0.05), ("decode_overhead_s", 0.015), ("kv_latency_s", 0.02))
SETTINGS = (
    Setting("normal"),
    Setting("KV pushed, not pulled", handover="push"),
    Setting("fast engine (compute .85)", (("compute", 0.85),)),
    Setting("errors of whole prefills, sigma .3", prefill_sigma=0.3),
    Setting("errors of prefills and slices, sigma .3", prefill_sigma=0.3, slice_sigma=0.3),
    Setting("step overhead 12 ms", (("decode_overhead_s", 0.012),)),
    Setting("step overhead 20 ms", (("decode_overhead_s", 0.020),)),
    Setting("slow engine", SLOW),
    Setting("slow engine, errors of whole prefills", SLOW, prefill_sigma=0.3),
    Setting("slow engine, errors of prefills and slices", SLOW, prefill_sigma=0.3, slice_sigma=0.3),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A model under a trace on the GPUs that AMPD gives it."""

    model: str
    trace: str

    @property
    def workload(self) -> Workload:
        """Return the trace's sessions, one per second."""
        return Workload.model_validate({**preset(f"ampd/{self.trace}").body, "arrivalRate": 1.0})

    @property
    def slo(self) -> SloClass:
        """Return the cell's thresholds."""
        ttft, itl = preset(f"ampd/{self.trace}").slo[self.model]
        return SloClass(ttft, itl)

    @property
    def gpus(self) -> int:
        """Return how many GPUs the cell has."""
        return preset(f"ampd/{self.trace}").gpus or GPUS_PER_NODE

    @property
    def layout(self) -> Layout:
        """Return the best layout by AMPD's Table 2."""
        prefill, decode = BEST_LAYOUTS[self.model, self.trace]
        return layout_of("disaggregated", prefill=prefill, decode=decode, gpus_per_node=GPUS_PER_NODE)

    def profile(self, setting: Setting) -> CostProfile:
        """Return the model's costs on H20."""
        profile = derive_profile(
            MODELS[MODEL_NAMES[self.model]], GPUS[GPU], degrees=DEGREES, efficiency=setting.efficiency
        )
        if setting.kv_share == 1:
            return profile
        degrees = {
            degree: replace(costs, kv_capacity_tokens=int(setting.kv_share * costs.kv_capacity_tokens))
            for degree, costs in profile.degrees.items()
        }
        return replace(profile, degrees=degrees)

    def __str__(self) -> str:
        return f"{self.model} {self.trace}"


CELLS: tuple[Cell, ...] = tuple(Cell(model, trace) for model in MODEL_NAMES for trace in TRACES)


@dataclass(frozen=True, slots=True)
class Length:
    """How much is observed: the longer of ``seconds`` and ``sessions`` at each rate, with these seeds."""

    seconds: float
    sessions: int
    seeds: tuple[int, ...]


def sample_at(cell: Cell, length: Length, rate: float, seed: int) -> Sample:
    """Draw a cell's sessions at a rate; a seed gives the same ones at every rate, closer together or wider apart."""
    workload = _workload(cell)
    slo = cell.slo
    return draw(
        workload,
        max_model_len=CONTEXT,
        round_seconds=slo.ttft_s + workload.mean_decode * slo.itl_s,
        seed=seed,
        rate=rate,
        size=Size(seconds=max(length.seconds, length.sessions / rate)),
    )


@cache
def _workload(cell: Cell) -> Workload:
    return cell.workload


def costs_of(cell: Cell, setting: Setting) -> Mapping[str, CostProfile]:
    """Return a cell's costs by pool; the layouts of the papers have one."""
    return {"gpu": cell.profile(setting)}
