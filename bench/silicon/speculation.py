"""Hold the cost of a speculative step to what the tables' package makes of it for models that draft their own tokens.

The package has no measured step that verifies drafts. With ``nextn`` = n it takes the operators' times of a batch n + 1
times as large, as if each drafted token were a sequence with KV of its own, and repeats the layers' share (L + n) / L
for the draft. ``weft_core.speculation`` reads a sequence's KV once and counts the draft's projection and output head.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
from bench.silicon.tables import Floats

from weft_core.analytic import derive_profile
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.parallelism import Degree, parse_degree
from weft_core.speculation import Speculation, with_speculation
from weft_planner.profiling.operators import Overheads
from weft_planner.profiling.silicon import compiler, tables_of
from weft_planner.silicon.shipped import with_shipped

MODEL = MODELS["deepseek-ai/DeepSeek-R1"]
PLACES = tuple(product(("nvidia-h200", "nvidia-b200"), ("vllm", "tensorrt-llm"), map(parse_degree, ("8", "dp8ep"))))
DRAFTED = (1, 2, 3)
BATCHES, CONTEXTS = (1, 8, 32, 128), (1024, 8192)


def ratios(gpu: str, engine: str, degree: Degree, drafted: int) -> Floats:
    """Return how much longer a step of the shipped profile with drafts is than the package's, less 1.

    One row for each batch, one column for each length of its sequences.
    """
    plain = derive_profile(MODEL, GPUS[gpu], degrees=[degree])
    shipped = with_shipped(plain, MODEL, engine, Overheads(0.0, 0.0))
    # The step of an acceptance near 0 yields one token, so it is the whole step.
    ours = with_speculation(shipped, Speculation("mtp", drafted, 1e-9), MODEL)
    with compiler(MODEL, tables_of(gpu, engine), nextn=drafted) as compile_for:
        theirs = compile_for(degree)
        return np.array(
            [
                [
                    ours.t_dec(batch=batch, context=batch * context, degree=degree)
                    / (theirs.predict_decode_latency(batch, context) / 1e3)
                    - 1
                    for context in CONTEXTS
                ]
                for batch in BATCHES
            ]
        )


def section() -> Iterator[str]:
    """Yield the lines of a page's section."""
    yield "## Speculative decoding"
    yield ""
    yield f"A step of {MODEL.name} that verifies what its prediction layer drafted: the shipped profile"
    yield "with Weft's factors (`weft_core/speculation.py`) beside the tables with `nextn`, over batches of 1"
    yield "to 128 sequences. The package counts a sequence's KV once for each token that is verified, Weft once where"
    yield "memory is the limit."
    yield ""
    yield "| GPU | engine | degree | drafted | median at 1,024 tokens | median at 8,192 tokens | range |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for gpu, engine, degree in PLACES:
        for drafted in DRAFTED:
            off = ratios(gpu, engine, degree, drafted)
            short, long = np.median(off, axis=0)
            yield (
                f"| {gpu} | {engine} | {degree} | {drafted} | {short:+.0%} | {long:+.0%} | "
                f"{off.min():+.0%} to {off.max():+.0%} |"
            )
    yield ""


if __name__ == "__main__":
    print("\n".join(section()))
