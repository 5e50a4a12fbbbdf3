"""A service whose objective says which of two plans it has, and engines that turn out slower than their profile."""

import json

from weft_e2e import kube
from weft_e2e.kube import Object
from weft_e2e.replay.sessions import PlannedRound
from weft_e2e.scenarios.arriving import Traffic
from weft_e2e.service import Service
from weft_e2e.waiting import until

DEGREE_LABEL = "weft.dev/degree"
STEADY = Traffic(1.2, (PlannedRound(400, 40, 0.0), PlannedRound(120, 40, 0.3), PlannedRound(120, 40, 0.3)))

_TELL = """
import sys
from urllib.request import Request, urlopen
headers = {"Content-Type": "application/json"}
urlopen(Request("http://127.0.0.1:8000/mock/faults", sys.argv[1].encode(), headers), timeout=5).read()
"""


def tried_service() -> Object:
    """Return a service with a canary: objective cost plans a decode worker of degree 1, latency one of degree 2.

    A step of degree 1 takes 27 ms by its profile, one of degree 2 18 ms: both are within the SLO of 60 ms, also on a
    busy machine, and three times as much of the former is not. With 6 sequences at once degree 2 carries 1.6 times as
    many sessions: without that limit both carry more than the planner tries, and the plan stays as it is.
    """
    pool = {"gpuType": "nvidia-h20", "gpusPerNode": 8}
    return {
        "apiVersion": "weft.dev/v1alpha1",
        "kind": "DisaggInferenceService",
        "metadata": {"name": "tried"},
        "spec": {
            "model": {"name": "meta-llama/Llama-3.1-8B-Instruct", "maxModelLen": 8192},
            "engine": {"type": "mock", "maxNumSeqs": 6},
            "slo": {"ttft": "2s", "itl": "60ms"},
            "workload": {
                "arrivalRate": 0.8,
                "rounds": {"mean": 3},
                "firstPrompt": {"mean": 400},
                "increment": {"mean": 120},
                "decode": {"mean": 40},
                "gap": {"mean": "300ms"},
            },
            "capacity": {
                "gpus": 4,
                "pools": [
                    {"name": "front", **pool, "degrees": [1], "roles": ["prefill"]},
                    {"name": "back", **pool, "degrees": [1, 2], "roles": ["decode"]},
                ],
            },
            "profile": {"analytic": {"compute": 0.3, "memory": 0.2}},
            "planning": {
                "layouts": ["disaggregated"],
                "objective": "cost",
                "prefill": {"max": 1},
                "decode": {"max": 1},
                "interval": "1s",
                "cooldown": "24h",
                "prometheus": {"window": "20s", "staleAfter": "10s"},
            },
            "coordinator": {"replicas": 1},
            "rollout": {
                "drainTimeout": "10s",
                "canary": {"percent": 50, "window": "15s", "maxWindow": "3m", "minSamples": 20},
            },
        },
    }


def decode_pods(service: Service) -> dict[str, tuple[str, str, bool]]:
    """Return the decode pods that are not on their way out: uid to name, degree, and whether it is ready."""
    return {
        pod["metadata"]["uid"]: (pod["metadata"]["name"], pod["metadata"]["labels"][DEGREE_LABEL], kube.pod_ready(pod))
        for pod in service.pods("decode")
        if "deletionTimestamp" not in pod["metadata"]
    }


def slow_down(service: Service, *, degree: int, factor: float, within_s: float) -> None:
    """Make every step of the decode workers of a degree take so many times what their profile says.

    Raises:
        WaitedTooLong: none of them runs within the time.
    """

    def told() -> bool:
        names = [name for name, of, _ in decode_pods(service).values() if of == str(degree)]
        argv = ("-n", service.namespace, "-c", "engine", "--", "python", "-c", _TELL, json.dumps({"slow": factor}))
        done = [service.kube.kubectl("exec", name, *argv, check=False).returncode == 0 for name in names]
        return bool(done) and all(done)

    until(told, what=f"a decode worker of degree {degree} to slow down", timeout_s=within_s, every_s=0.2)
