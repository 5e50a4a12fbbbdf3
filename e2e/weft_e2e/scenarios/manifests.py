"""Manifests of small services that a laptop can run several of."""

import copy

from weft_e2e.kube import Object


def small_service(
    name: str = "small",
    *,
    prefill: tuple[int, int] = (1, 1),
    decode: tuple[int, int] = (1, 1),
    time_scale: float = 0.5,
    gpus: int = 8,
    rdma: bool = False,
) -> Object:
    """Return a service of an 8B model on a few simulated GPUs; ``prefill`` and ``decode`` bound its workers."""
    pool: Object = {"name": "h20", "gpuType": "nvidia-h20", "gpusPerNode": 8, "degrees": [1, 2]}
    if rdma:
        pool["rdma"] = {"resource": "rdma/ib", "count": 1}
    return {
        "apiVersion": "weft.dev/v1alpha1",
        "kind": "DisaggInferenceService",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "meta-llama/Llama-3.1-8B-Instruct", "maxModelLen": 8192},
            "engine": {"type": "mock", "mock": {"timeScale": time_scale}},
            "slo": {"ttft": "1s", "itl": "50ms"},
            "workload": {
                "arrivalRate": 0.5,
                "rounds": {"mean": 4},
                "firstPrompt": {"mean": 400},
                "increment": {"mean": 160},
                "decode": {"mean": 20},
                "gap": {"mean": "200ms"},
            },
            "capacity": {"gpus": gpus, "pools": [pool]},
            "planning": {
                "layouts": ["disaggregated"],
                "prefill": {"min": prefill[0], "max": prefill[1]},
                "decode": {"min": decode[0], "max": decode[1]},
            },
            "coordinator": {"replicas": 1},
            "rollout": {"drainTimeout": "5s"},
        },
    }


def changed(manifest: Object, path: str, value: object) -> Object:
    """Return a copy with one field (``spec.slo.ttft``) set."""
    copied = copy.deepcopy(manifest)
    at: Object = copied
    *parents, last = path.split(".")
    for key in parents:
        at = at.setdefault(key, {})
    at[last] = value
    return copied
