"""What is planned for: models on systems, SLOs, and the two workloads, with as many GPUs in every cell."""

from dataclasses import dataclass

from weft_core.dimensions import ModelDimensions
from weft_core.models import MODELS
from weft_core.parallelism import Degree, gpus_of, parse_degree
from weft_planner.workload.presets import preset
from weft_planner.workload.sessions import draw
from weft_planner.workload.traffic import Workload

ENGINE = "vllm"
GPUS = 64
SMALL = {"openai/gpt-oss-120b": 16}
"""GPUs of a cell: fewer for a model that fits one GPU, for which 64 would carry thousands of rounds a second."""
NODE_GPUS = {"nvidia-h100": 8, "nvidia-h200": 8, "nvidia-gb200": 4}
"""GPUs of a machine, by GPU type."""
MODEL_NAMES = {
    "deepseek-ai/DeepSeek-R1": "deepseek-ai/DeepSeek-R1",
    "Qwen/Qwen3-235B-A22B": "Qwen/Qwen3-235B-A22B",
    "openai/gpt-oss-120b": "openai/gpt-oss-120b",
    "meta-llama/Llama-3.1-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
}
"""aiconfigurator's names of the models, all of which are in the package: it downloads what it does not know."""
STRATEGIES: tuple[Degree, ...] = tuple(
    map(
        parse_degree,
        (
            "1", "2", "4", "8", "16", "tp4ep", "tp8ep", "dp2", "dp4", "dp8", "tp2dp2", "tp2dp4", "tp4dp2", "dp8ep",
            "dp16ep", "dp32ep", "tp2dp8ep", "tp4dp4ep", "tp2dp16ep", "tp4dp16ep",
        ),
    )
)  # fmt: skip
"""By tensors alone, experts whole; ranks of one, two or four GPUs, experts in parts or whole."""
PROMPT, ANSWER = 4000, 1000
"""Tokens of the single round: what aiconfigurator takes where nothing is given."""
TRACE = "ampd/dureader"


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds to the first token and between tokens."""

    name: str
    ttft: float
    itl: float


SLOS = (Slo("strict", 2.0, 0.030), Slo("relaxed", 5.0, 0.050))
"""The first is what aiconfigurator takes where nothing is given."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A model on a GPU type."""

    model: str
    gpu: str

    @property
    def dimensions(self) -> ModelDimensions:
        """Return the model's dimensions."""
        return MODELS[self.model]

    @property
    def gpus(self) -> int:
        """Return the GPUs that both planners get."""
        return SMALL.get(self.model, GPUS)

    @property
    def node_gpus(self) -> int:
        """Return the GPUs of a machine."""
        return NODE_GPUS[self.gpu]

    @property
    def strategies(self) -> tuple[Degree, ...]:
        """Return the ways to split the model over a worker's GPUs that Weft is offered."""
        return tuple(n for n in STRATEGIES if self.dimensions.splits(n) and gpus_of(n) <= self.gpus)

    def __str__(self) -> str:
        return f"{self.model.partition('/')[2].removesuffix('-Instruct')} {self.gpu.removeprefix('nvidia-').upper()}"


CELLS = tuple(Cell(model, gpu) for model in MODEL_NAMES for gpu in NODE_GPUS)


@dataclass(frozen=True, slots=True)
class Traffic:
    """A workload: sessions in Weft's terms; a round's mean lengths in aiconfigurator's."""

    name: str
    body: dict[str, object]
    max_model_len: int

    def workload(self, rate: float) -> Workload:
        """Return it at so many sessions per second."""
        return Workload.model_validate({**self.body, "arrivalRate": rate})

    @property
    def rounds(self) -> float:
        """Return the mean rounds of a session."""
        return self.workload(1.0).mean_rounds

    @property
    def lengths(self) -> tuple[int, int, int]:
        """Return (isl, osl, prefix) of a mean round: its whole prompt, its answer, and what its session had before."""
        sample = draw(self.workload(1.0), max_model_len=self.max_model_len, round_seconds=1.0, seed=0, steady=False)
        history, new, answer = (float(of.mean()) for of in (sample.history, sample.increment, sample.tokens))
        return round(history + new), round(answer), round(history)


def _constant(value: float) -> dict[str, float]:
    return {"mean": value, "cv": 0}


SINGLE = Traffic(
    "single-round",
    {
        "rounds": _constant(1),
        "firstPrompt": _constant(PROMPT),
        "increment": _constant(1),
        "decode": _constant(ANSWER),
        "gap": _constant(0),
    },
    max_model_len=8192,
)
MULTI = Traffic("multi-round", dict(preset(TRACE).body), max_model_len=32768)
TRAFFICS = (SINGLE, MULTI)
