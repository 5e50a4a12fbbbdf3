"""Measure takeovers with the chart's times: ``python -m weft_operator_tests.takeovers [--times 3]``.

The leader of two is killed, told to end, and stopped for 40 s in the middle of its work, while somebody spoils an
object of a service all the time. Printed is how long nobody led and how long the object stayed spoilt; the API
server's side of the record says whether anybody wrote who did not hold the Lease.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from weft_operator_tests.api import RealApi, real_api, small_service, strangers
from weft_operator_tests.cluster import wait_for
from weft_operator_tests.replicas import Replica

LEASE_S = 15.0
PAUSE_S = 40.0
Loss = Callable[[Replica], None]


def spoil(api: RealApi, namespace: str) -> None:
    """Scale the coordinator by hand."""
    path = f"apis/apps/v1/namespaces/{namespace}/deployments/demo"
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "demo"}, "spec": {"replicas": 7}}
    api.send("PATCH", f"{path}?fieldManager=me&force=true", body)


def mended(api: RealApi, namespace: str) -> bool:
    """Return whether the coordinator has its own number of replicas again."""
    found = api.read(f"apis/apps/v1/namespaces/{namespace}/deployments/demo") or {}
    return (found.get("spec") or {}).get("replicas") not in (None, 7)


def measure(api: RealApi, lose: Loss) -> tuple[float, float]:
    """Return the seconds until another replica led, and until it had mended what was spoilt after the loss."""
    namespace = api.namespace()
    api.proxy.record.clear()
    a = api.replica("a", namespace, lease_s=LEASE_S).start()
    b = api.replica("b", namespace, lease_s=LEASE_S).start()
    try:
        api.kube.apply(small_service(namespace))
        wait_for("a coordinator", lambda: mended(api, namespace))
        begun = time.monotonic()
        lose(a)
        spoil(api, namespace)
        wait_for("takeover", lambda: b.leads, timeout=120)
        led = time.monotonic() - begun
        wait_for("repair", lambda: mended(api, namespace), timeout=120)
        repaired = time.monotonic() - begun
        if lose is freeze:
            wait_for("the pause to end", lambda: time.monotonic() > begun + PAUSE_S, timeout=PAUSE_S + 10)
            spoil(api, namespace)
            a.send(signal.SIGCONT)
            wait_for("the first to stand by", lambda: a.get("/readyz").startswith("stands by"), timeout=120)
            wait_for("second repair", lambda: mended(api, namespace), timeout=120)
        assert not strangers(api.proxy.record), strangers(api.proxy.record)
        return led, repaired
    finally:
        api.heal()


def kill(replica: Replica) -> None:
    """End it by SIGKILL."""
    replica.kill()


def stop(replica: Replica) -> None:
    """Ask it to end; the clock runs from the moment that it is asked."""
    replica.send(signal.SIGTERM)


def freeze(replica: Replica) -> None:
    """Stop it by SIGSTOP."""
    replica.send(signal.SIGSTOP)


def main() -> int:
    """Measure all three."""
    parser = argparse.ArgumentParser(description="measure takeovers of the operator")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", choices=("SIGKILL", "SIGTERM", "SIGSTOP"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, real_api(Path(folder)) as api:
        for name, lose in (("SIGKILL", kill), ("SIGTERM", stop), ("SIGSTOP", freeze)):
            if arguments.only not in (None, name):
                continue
            found = [measure(api, lose) for _ in range(arguments.times)]
            led = ", ".join(f"{seconds:.1f}" for seconds, _ in found)
            repaired = ", ".join(f"{seconds:.1f}" for _, seconds in found)
            sys.stdout.write(f"{name}: another leads after {led} s; repaired after {repaired} s; no write by others\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
