"""What is compared where: kinds of sessions, layouts of the same GPUs, and SLOs that bind in different places."""

from collections.abc import Mapping
from dataclasses import dataclass

from bench.live.workloads import CONTEXT, KINDS, Kind

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile
from weft_core.gpus import GPUS
from weft_core.layouts import LayoutKind, PlannedGroup, WorkerRole, kind_of
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
    """Sessions on a layout under an SLO (seconds on the GPU): prefill and decode workers, and those with both roles.

    Decode workers alone are co-located ones.

    A run has so many ``sessions`` that a load that is a little too high shows: in simulations a third of them carries
    twice as much, twice as many carry a tenth less. Routers are given a profile that is wrong: work takes
    ``profile_error`` times as long there as on the engines. ``only`` names the contenders, all where there is none.
    ``base`` is a cell with the same engines, layout and sessions: what routes without a profile is run there only.
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
    both: int = 0
    base: str = ""

    @property
    def groups(self) -> tuple[PlannedGroup, ...]:
        """Return the workers as plans have them."""
        counts: tuple[tuple[WorkerRole, int], ...] = (
            ("prefill", self.prefill), ("decode", self.decode), ("both", self.both),
        )  # fmt: skip
        return tuple(PlannedGroup(role, DEGREE, count, "gpu") for role, count in counts if count)

    @property
    def layout_kind(self) -> LayoutKind:
        """Return what kind of layout its workers make."""
        return kind_of(self.groups)

    @property
    def colocated(self) -> bool:
        """Tell whether every worker prefills for its own sessions only."""
        return self.layout_kind == "colocated"

    @property
    def layout(self) -> Layout:
        """Return the workers as the simulator takes them: each on a node by itself."""
        decode = (Worker(DEGREE),) * self.decode + (Worker(DEGREE, both=True),) * self.both
        return Layout((Worker(DEGREE),) * self.prefill, decode, self.layout_kind)

    @property
    def workers(self) -> tuple[StackWorker, ...]:
        """Return the workers as a stack takes them."""
        return (
            *(StackWorker(f"p-{k}", "prefill", DEGREE) for k in range(self.prefill)),
            *(StackWorker(f"d-{k}", "decode", DEGREE) for k in range(self.decode)),
            *(StackWorker(f"b-{k}", "both", DEGREE) for k in range(self.both)),
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


MODES = ("default", "weft/imd", "weft/ia", "remote-jsq")
"""Weft's default and its modes: other routers know no workers with both roles."""
CELLS = {
    cell.name: cell
    for cell in (
        Cell("balanced", KINDS["agents"], 2, 2, 3.0, 0.05, 96),
        Cell("decode-rich", KINDS["retrieval"], 1, 3, 2.5, 0.05, 96),
        Cell("prefill-rich", KINDS["coding"], 3, 1, 4.0, 0.04, 64),
        Cell("co-located", KINDS["chat"], 0, 4, 2.0, 0.03, 96),
        Cell("slack", KINDS["coding"], 2, 2, 4.0, 0.06, 64),
        Cell("symmetric", KINDS["agents"], 0, 0, 3.0, 0.05, 96, only=MODES, both=4),
        Cell("hybrid", KINDS["agents"], 1, 2, 3.0, 0.05, 96, only=MODES, both=1),
        Cell(
            "profile-too-fast", KINDS["agents"], 2, 2, 3.0, 0.05, 96, profile_error=0.5, only=MODES[:1], base="balanced"
        ),
        Cell(
            "profile-too-slow", KINDS["agents"], 2, 2, 3.0, 0.05, 96, profile_error=2.0, only=MODES[:1], base="balanced"
        ),
    )
}
FULL = (
    "balanced", "decode-rich", "prefill-rich", "co-located", "symmetric", "hybrid", "profile-too-fast",
    "profile-too-slow",
)  # fmt: skip
QUICK = ("balanced",)
"""The cells of a whole and of a short run."""

__all__ = ["CELLS", "CHUNK", "CONTEXT", "DEGREE", "FULL", "GPU", "MODEL", "QUICK", "Cell"]
