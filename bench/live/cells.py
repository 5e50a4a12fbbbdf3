"""What is compared where: kinds of sessions, layouts of the same GPUs, and SLOs that bind in different places."""

from collections.abc import Mapping
from dataclasses import dataclass

from bench.live.workloads import CONTEXT, KINDS, Kind

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_e2e.agreement.scenario import slower
from weft_e2e.stack_config import StackWorker
from weft_planner.simulation import Layout, SloClass, Worker

MODEL = "meta-llama/Llama-3.1-70B-Instruct"
GPU = "nvidia-h20"
DEGREE = 4
CHUNK = 8192
"""Prompt tokens that an engine takes into one step beside decoding: what vLLM does on GPUs of 70 GiB and more."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Sessions on a layout under an SLO (seconds on the GPU); without prefill workers every worker does both.

    A run has so many ``sessions`` that a load that is a little too high shows: in simulations a third of them carries
    twice as much, twice as many carry a tenth less. Routers are told a profile that is wrong: work takes
    ``profile_error`` times as long there as on the engines. ``only`` names the contenders, all where there is none.
    """

    name: str
    kind: Kind
    prefill: int
    decode: int
    ttft_s: float
    itl_s: float
    sessions: int
    profile_error: float = 1.0
    only: tuple[str, ...] = ()

    @property
    def colocated(self) -> bool:
        """Tell whether every worker prefills and decodes."""
        return self.prefill == 0

    @property
    def layout(self) -> Layout:
        """Return the workers as the simulator takes them: each on a node by itself."""
        prefill, decode = (Worker(DEGREE),) * self.prefill, (Worker(DEGREE),) * self.decode
        return Layout(prefill, decode, "colocated" if self.colocated else "disaggregated")

    @property
    def workers(self) -> tuple[StackWorker, ...]:
        """Return the workers as a stack takes them."""
        return (
            *(StackWorker(f"p-{k}", "prefill", DEGREE) for k in range(self.prefill)),
            *(StackWorker(f"d-{k}", "decode", DEGREE) for k in range(self.decode)),
        )

    def slo(self, slow: float) -> SloClass:
        """Return the thresholds where everything takes ``slow`` times as long."""
        return SloClass(slow * self.ttft_s, slow * self.itl_s)

    def profile(self, slow: float) -> CostProfile:
        """Return what a worker's work costs."""
        profile = derive_profile(MODELS[MODEL], GPUS[GPU], degrees=[DEGREE])
        return profile if slow == 1 else slower(profile, slow)

    def costs(self, slow: float) -> Mapping[str, CostProfile]:
        """Return the cost profile of the only pool."""
        return {"gpu": self.profile(slow)}

    def __str__(self) -> str:
        return f"{self.name}: {self.kind.name}, {self.layout}, TTFT {self.ttft_s:g} s, ITL {1e3 * self.itl_s:g} ms"


SIMPLEST = ("default", "remote-jsq", "vllm cache_aware")
"""Weft's default, and what needs no exact predictions to be good."""
CELLS = {
    cell.name: cell
    for cell in (
        Cell("balanced", KINDS["agents"], 2, 2, 3.0, 0.05, 96),
        Cell("decode-rich", KINDS["retrieval"], 1, 3, 2.5, 0.05, 96),
        Cell("prefill-rich", KINDS["coding"], 3, 1, 4.0, 0.04, 64),
        Cell("co-located", KINDS["chat"], 0, 4, 2.0, 0.03, 96),
        Cell("slack", KINDS["coding"], 2, 2, 4.0, 0.06, 64),
        Cell("profile-too-fast", KINDS["agents"], 2, 2, 3.0, 0.05, 96, profile_error=0.5, only=SIMPLEST),
        Cell("profile-too-slow", KINDS["agents"], 2, 2, 3.0, 0.05, 96, profile_error=2.0, only=SIMPLEST),
    )
}
FULL = ("balanced", "decode-rich", "prefill-rich", "co-located", "profile-too-fast", "profile-too-slow")
QUICK = ("balanced",)
"""The cells of a whole and of a short run."""

__all__ = ["CELLS", "CHUNK", "CONTEXT", "DEGREE", "FULL", "GPU", "MODEL", "QUICK", "Cell"]
