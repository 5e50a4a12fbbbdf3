"""Prove that the same request gives the same bytes in another process: ``python -m weft_planner_tests.repeats 1000``.

Two processes with different hash seeds plan the same random requests, one after the other; clusters are small and
simulations short, so that a thousand take a few minutes.
"""

import json
import os
import random
import subprocess
import sys
from typing import Any

from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.plan import canonical_json

ROUTINGS: list[dict[str, Any]] = [{}, {"policy": "ampd"}, {"policy": "remote-jsq"}, {"policy": "weft", "mode": "ia"}]


def random_body(seed: int) -> dict[str, Any]:
    """Return a request of any kind that can be read."""
    rng = random.Random(seed)
    pools = [
        {
            "name": f"p{i}",
            "gpuType": rng.choice(sorted(GPUS)),
            "gpusPerNode": rng.choice([2, 4, 8]),
            "degrees": rng.choice([[1], [2], [1, 2, 4, 8]]),
            "roles": ["prefill", "decode"],
            **({"pricePerGpuHour": rng.choice([1.0, 2.5])} if rng.random() < 0.5 else {}),
            **({"nodes": [rng.randint(1, 8) for _ in range(3)]} if rng.random() < 0.3 else {}),
        }
        for i in range(rng.choice([1, 1, 1, 2]))
    ]
    return {
        "model": {"name": rng.choice(sorted(MODELS)), "maxModelLen": rng.choice([2048, 16384, 40000])},
        "engine": {"type": rng.choice(["", "vllm"]), "bidirectional": rng.random() < 0.8},
        "slo": {"ttft": rng.uniform(0.3, 10), "itl": rng.uniform(0.01, 0.2)},
        "workload": {
            "arrivalRate": rng.choice([0.05, 0.4, 2.0]),
            "rounds": rng.uniform(1, 5),
            "firstPrompt": rng.uniform(50, 4000),
            "increment": rng.uniform(10, 1000),
            "decode": rng.uniform(2, 100),
            "gap": rng.choice([0.0, 0.5, 3.0]),
        },
        "capacity": {"gpus": rng.choice([2, 4, 4, 8]), "pools": pools},
        "objective": rng.choice(["latency", "cost"]),
        "routing": rng.choice(ROUTINGS),
        "seed": rng.randint(0, 9),
    }


def serve() -> int:
    """Answer requests, one JSON object per line, with short simulations."""
    from weft_planner.evaluation import ranking, samples, shortlist
    from weft_planner.plan.solve import answer
    from weft_planner.programs import inputs
    from weft_planner.programs.solver import Solver
    from weft_planner.request.reading import request_of

    inputs.PHASE_ROUNDS = 200
    samples.SIEVE_ROUNDS, samples.ROUNDS, samples.MOST_ROUNDS, samples.SHORTEST_S = 40, 80, 120, 0.5
    shortlist.BEST = shortlist.PROMISING = 2
    ranking.RUNNABLE, ranking.ADVISED = 3, 1
    with Solver() as solver:
        for line in sys.stdin:
            sys.stdout.write(canonical_json(answer(request_of(json.loads(line)), solver=solver)) + "\n")
            sys.stdout.flush()
    return 0


def compare(seeds: range) -> tuple[int, int]:
    """Plan each request in two processes; return (plans, refusals) of equal bytes, or fail at the first difference."""
    command = [sys.executable, "-m", "weft_planner_tests.repeats"]
    processes = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": str(i + 1)},
        )
        for i in range(2)
    ]
    counts = [0, 0]
    try:
        for seed in seeds:
            question = json.dumps(random_body(seed)) + "\n"
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(question)
                process.stdin.flush()
            answers = [process.stdout.readline() for process in processes if process.stdout is not None]
            assert answers[0] == answers[1], f"seed {seed}: two processes give two answers"
            counts[json.loads(answers[0])["status"] != "ok"] += 1
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return counts[0], counts[1]


def main() -> int:
    """Serve, or compare as many requests as the command line says."""
    if len(sys.argv) == 1:
        return serve()
    plans, refusals = compare(range(int(sys.argv[1])))
    sys.stdout.write(f"{plans} plans and {refusals} refusals were byte for byte the same in two processes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
