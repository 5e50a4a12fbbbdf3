"""What is measured: Llama-3.1-8B on one GPU, or a toy on the CPU, and over which shapes."""

from dataclasses import dataclass
from itertools import product

from weft_core.dimensions import ModelDimensions
from weft_core.models import MODELS
from weft_planner.profiling.measurements import GridCell
from weft_planner.profiling.operators import OperatorGrid, cells
from weft_planner.profiling.torch_timer import Dtype

LLAMA = MODELS["meta-llama/Llama-3.1-8B-Instruct"]
TOY = ModelDimensions("weft/toy", 2, 256, 8, 2, 32, 512, 1000)
CONTEXT_OF_MIXED = 2048


@dataclass(frozen=True, slots=True)
class Shapes:
    """The lengths of a grid, in tokens; ``contexts`` are per sequence, mixed steps take each batch with each chunk."""

    histories: tuple[int, ...]
    increments: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    mixed_batches: tuple[int, ...]
    mixed_chunks: tuple[int, ...]
    mixed_histories: tuple[int, ...]
    mixed_context: int

    def cells(self) -> list[GridCell]:
        """Return prefills, decode steps and mixed steps."""
        found = [GridCell("prefill", 1, history=h, increment=i) for h, i in product(self.histories, self.increments)]
        found += [GridCell("step", 1, batch=b, context=b * c) for b, c in product(self.batches, self.contexts)]
        found += [
            GridCell("step", 1, history=h, batch=b, context=b * self.mixed_context, chunk=c)
            for b, c, h in product(self.mixed_batches, self.mixed_chunks, self.mixed_histories)
        ]
        return found


@dataclass(frozen=True, slots=True)
class Setting:
    """A model, where it runs, the grid that the profile is fitted to, and the shapes that it has to predict.

    ``kv_tokens`` bounds the KV cache; ``gpu`` is the catalogue's name, or any for a trial.
    """

    model: ModelDimensions
    gpu: str
    device: str
    dtype: Dtype
    kv_tokens: int
    grid: OperatorGrid
    truth: Shapes

    @property
    def fitted(self) -> list[GridCell]:
        """Return the cells that the profile is fitted to."""
        return cells(self.grid, (1,), kv_capacity={1: self.kv_tokens})

    @property
    def predicted(self) -> list[GridCell]:
        """Return the cells that whole passes are measured at."""
        return [cell for cell in self.truth.cells() if tokens_of(cell) <= self.kv_tokens]


def tokens_of(cell: GridCell) -> int:
    """Return how many tokens of KV a pass needs."""
    return cell.context + cell.history + cell.increment + cell.chunk


def on_gpu(gpu: str) -> Setting:
    """Return what is measured on a GPU of at least 80 GB."""
    grid = OperatorGrid(
        histories=(0, 1024, 4096, 16384, 32768),
        increments=(32, 128, 256, 512, 1024, 2048, 4096, 8192),
        contexts=(256, 1024, 4096, 16384, 32768),
    )
    truth = Shapes(
        histories=(0, 2048, 8192, 16384, 32768),
        increments=(128, 256, 384, 512, 1024, 1536, 3072, 8192),
        batches=(1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256),
        contexts=(512, 1024, 2048, 4096, 8192, 16384, 32768),
        mixed_batches=(16, 64, 128),
        mixed_chunks=(256, 512, 2048),
        mixed_histories=(0, 8192),
        mixed_context=CONTEXT_OF_MIXED,
    )
    return Setting(LLAMA, gpu, "cuda", "bfloat16", 400_000, grid, truth)


def toy() -> Setting:
    """Return what a trial measures on the CPU."""
    grid = OperatorGrid((0, 64, 256), (16, 64, 128), (1, 2, 4), (32, 64, 256), (16, 32))
    truth = Shapes((0, 128), (32, 128), (1, 3), (48, 256), (2,), (24,), (0, 64), 64)
    return Setting(TOY, "cpu", "cpu", "float32", 2048, grid, truth)
