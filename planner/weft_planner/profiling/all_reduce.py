"""Measure all-reduces where there are enough GPUs; estimate them from the GPU's links where there are not."""

import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from weft_core.dimensions import ModelDimensions
from weft_core.gpus import Gpu
from weft_planner.profiling.operators import EstimatedAllReduce, Operator, OperatorTimer
from weft_planner.profiling.torch_timer import Dtype, TorchTimer

_ROWS = (1, 8, 64, 512, 4096, 16384)
_COUNTED = 15
_WARM_UP = 3
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class MeasuredAllReduce:
    """A timer that interpolates measured all-reduces of some degrees, and leaves the rest to another timer."""

    timer: OperatorTimer
    seconds_by_rows: Mapping[int, Mapping[int, float]] = field(default_factory=dict)

    def seconds(self, operator: Operator) -> float:
        """Return the time of an operator.

        Raises:
            OperatorUnknownError: the other timer does not know it.
        """
        times = self.seconds_by_rows.get(operator.count) if operator.kind == "all_reduce" else None
        if not times:
            return self.timer.seconds(operator)
        rows = sorted(times)
        known = [log(times[count]) for count in rows]
        return float(np.exp(np.interp(log(operator.rows), [log(count) for count in rows], known)))


def measured_or_estimated(
    timer: TorchTimer, model: ModelDimensions, gpu: Gpu, *, dtype: Dtype
) -> tuple[OperatorTimer, str]:
    """Return a timer that knows all-reduces, and how it knows them."""
    estimated = EstimatedAllReduce(timer, model, gpu)
    here = timer.gpus
    degrees = [n for n in (2, 4, 8, 16) if n <= here]
    if not degrees:
        return estimated, "estimated from the GPU's links: one GPU cannot show them"
    measured = {n: time_all_reduce(n, hidden=model.hidden, dtype=dtype, backend="nccl") for n in degrees}
    return MeasuredAllReduce(estimated, measured), f"measured over {', '.join(map(str, degrees))} GPUs"


def time_all_reduce(degree: int, *, hidden: int, dtype: Dtype, backend: str) -> dict[int, float]:
    """Return seconds of an all-reduce by rows, over ``degree`` processes with a GPU each (gloo: without)."""
    import torch.multiprocessing as processes

    with tempfile.TemporaryDirectory() as folder:
        where = str(Path(folder) / "times")
        port = _free_port()
        processes.spawn(_member, args=(degree, port, hidden, dtype, backend, where), nprocs=degree, join=True)
        lines = Path(where).read_text(encoding="utf-8").split()
    return {int(rows): float(seconds) for rows, _, seconds in (line.partition("=") for line in lines)}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_LOOPBACK, 0))
        return int(listener.getsockname()[1])


def _member(rank: int, degree: int, port: int, hidden: int, dtype: str, backend: str, where: str) -> None:
    """Take part in all-reduces as one of the processes; the first writes the times."""
    import torch
    import torch.distributed as group

    os.environ |= {"MASTER_ADDR": _LOOPBACK, "MASTER_PORT": str(port)}
    group.init_process_group(backend, rank=rank, world_size=degree)
    try:
        device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        times: dict[int, float] = {}
        for rows in _ROWS:
            tensor: Any = torch.ones(rows, hidden, dtype=getattr(torch, dtype), device=device)
            counted: list[float] = []
            for _ in range(_WARM_UP + _COUNTED):
                group.barrier()
                began = perf_counter()
                group.all_reduce(tensor)
                if backend == "nccl":
                    torch.cuda.synchronize(device)
                counted.append(perf_counter() - began)
            times[rows] = median(counted[_WARM_UP:])
        if rank == 0:
            Path(where).write_text("\n".join(f"{rows}={seconds!r}" for rows, seconds in times.items()))
    finally:
        group.destroy_process_group()
