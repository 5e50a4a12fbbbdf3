"""Measure what the operator costs while nothing changes: API requests per second and resident memory.

The requests are counted where they arrive, in the API server's audit log of the local cluster; memory is what the
kubelet reports for the container. Run it after `make demo`, with the demo's service Ready:

    .venv/bin/python bench/operator_idle.py --cluster demo --seconds 60
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from weft_e2e.cluster import Cluster
from weft_e2e.cluster.config import CONTROL_PLANE

NAMESPACE = "weft-system"
OPERATOR_USER = f"system:serviceaccount:{NAMESPACE}:weft-operator"
TARGET_PER_SECOND = 1.0
TARGET_MIB = 250.0


def audited(log: Path, offset: int) -> Counter[str]:
    """Return how often the operator asked for each verb and resource, from `offset` in the log on."""
    asked: Counter[str] = Counter()
    seen: set[str] = set()
    with log.open("rb") as lines:
        lines.seek(offset)
        for line in lines:
            event = json.loads(line)
            if event["user"]["username"] == OPERATOR_USER and event["auditID"] not in seen:
                seen.add(event["auditID"])  # a watch is logged when it starts and when it ends
                resource = event.get("objectRef", {}).get("resource", event["requestURI"])
                asked[f"{event['verb']} {resource}"] += 1
    return asked


def resident_mib(cluster: Cluster) -> float:
    """Return the operator container's resident memory in MiB, as its kubelet reports it."""
    found = cluster.kubectl(
        "get", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator", "-o", "json"
    ).stdout
    (pod,) = json.loads(found)["items"]
    summary = cluster.kubectl("get", "--raw", f"/api/v1/nodes/{pod['spec']['nodeName']}/proxy/stats/summary").stdout
    (stats,) = [s for s in json.loads(summary)["pods"] if s["podRef"]["name"] == pod["metadata"]["name"]]
    return float(sum(container["memory"]["rssBytes"] for container in stats["containers"])) / 2**20


def main() -> int:
    """Print requests per second by verb and resource, and resident memory; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description="What an idle operator costs.")
    parser.add_argument("--cluster", default="demo", help="name of the local cluster")
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    cluster = Cluster(args.cluster)
    services = json.loads(cluster.kubectl("get", "disagginferenceservices", "-A", "-o", "json").stdout)["items"]
    log = cluster.paths.log(CONTROL_PLANE, "audit")
    offset = log.stat().st_size
    time.sleep(args.seconds)
    asked = audited(log, offset)
    rate, resident = asked.total() / args.seconds, resident_mib(cluster)
    print(f"operator idle with {len(services)} service(s), {args.seconds:.0f} s")
    print(f"API requests  {rate:.2f} /s (target < {TARGET_PER_SECOND:.0f})")
    for what, count in asked.most_common():
        print(f"  {count / args.seconds:.3f} /s  {what}")
    print(f"RSS           {resident:.0f} MiB (target < {TARGET_MIB:.0f})")
    return int(rate >= TARGET_PER_SECOND or resident >= TARGET_MIB)


if __name__ == "__main__":
    sys.exit(main())
