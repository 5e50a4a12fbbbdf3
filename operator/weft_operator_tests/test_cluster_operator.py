"""The operator as a process against a real cluster: objects, status, repair, loss and an idle that is quiet.

The images do not exist, so no pod ever runs: what is tested is what the operator does, not what pods do.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from weft_operator.api.objects import Manifest
from weft_operator_tests.cluster import Kube, condition, free_port, wait_for
from weft_operator_tests.valid import PROFILE, changed, service

# A guard against a test that hangs: every wait has a deadline of its own, and they add up to less.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]

RESYNC_S = 2
INSTANCE = "under-test"
"""An operator that is installed in the cluster leaves services with this label alone."""


@dataclass
class Operator:
    """The operator's process; it watches one namespace of the tests' own."""

    kube: Kube
    namespace: str
    log: Path
    port: int = 0
    process: "subprocess.Popen[bytes] | None" = field(default=None)

    def start(self) -> None:
        """Start it and wait until it watches."""
        self.port = free_port()
        env = {
            **os.environ,
            "KUBECONFIG": str(self.kube.config),
            "WEFT_ROUTER_IMAGE": "localhost/weft-router:absent",
            "WEFT_MOCK_IMAGE": "localhost/weft-mock-engine:absent",
            "WEFT_WATCH_NAMESPACES": self.namespace,
            "WEFT_OPERATOR_INSTANCE": INSTANCE,
            "WEFT_RESYNC_SECONDS": str(RESYNC_S),
            "WEFT_OPERATOR_PORT": str(self.port),
        }
        with self.log.open("ab") as log:
            process = self.process = subprocess.Popen([sys.executable, "-m", "weft_operator"], env=env, stderr=log)

        def watches() -> bool:
            assert process.poll() is None, f"the operator ended: {self.log.read_text()[-2000:]}"
            return self.get("/readyz") is not None

        wait_for("readiness", watches)

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> int:
        """Ask it to end; return its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def get(self, path: str) -> str | None:
        """Return an answer of the operator's own port."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return None

    def metric(self, name: str) -> float:
        """Return the sum over a metric's series."""
        lines = wait_for("metrics page", lambda: self.get("/metrics") or "").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def apply(self, body: Manifest) -> str:
        """Apply a service (or another object) in the namespace; return its name."""
        self.kube.apply(changed(body, "metadata.namespace", self.namespace))
        return str(body["metadata"]["name"])

    def service(self, name: str) -> Manifest:
        """Return a service."""
        found = self.kube.get(self.namespace, "dis", name)
        assert found is not None
        return found

    def await_condition(self, name: str, kind: str, reason: str, *, timeout: float = 120) -> dict[str, Any]:
        """Return a condition once it has a reason and is about the newest spec."""

        def holds() -> dict[str, Any] | None:
            body = self.service(name)
            found = condition(body, kind)
            current = found.get("observedGeneration") == body["metadata"]["generation"]
            return found if current and found.get("reason") == reason else None

        return wait_for(f"{kind} with reason {reason} on {name}", holds, timeout=timeout) or {}

    def carry_out(self, body: Manifest) -> str:
        """Apply a service; return its name once it is planned and all its objects are there.

        A pass writes the status at its end, after the objects; workers are made by the passes of their groups.
        """
        name = self.apply(body)
        self.await_condition(name, "Planned", "PlanReady")
        assert self.kube.get(self.namespace, "deployment", name) is not None
        self.await_rest(name)
        return name

    def await_rest(self, name: str) -> None:
        """Wait until a service has all workers of its plan and passes over it find nothing to do."""

        def rests() -> bool:
            workers = sum(row["replicas"] for row in self.service(name)["status"]["plan"]["groups"])
            if len(self.uids(name, "statefulsets")) != workers:
                return False
            actions = self.metric("weft_operator_actions_total")
            passes = self.metric("weft_operator_reconciles_total")
            wait_for("more passes", lambda: self.metric("weft_operator_reconciles_total") >= passes + 3)
            return self.metric("weft_operator_actions_total") == actions

        wait_for(f"{name} to come to rest", rests, timeout=120)

    def uids(self, name: str, kinds: str) -> dict[str, str]:
        """Return the uids of a service's objects by name."""
        items = self.kube.list(self.namespace, kinds, f"weft.dev/service={name}")
        return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["uid"] for item in items}


@pytest.fixture(scope="module")
def operator(kube: Kube, crds: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    namespace = f"operator-{secrets.token_hex(3)}"
    kube.run("create", "namespace", namespace)
    running = Operator(kube, namespace, tmp_path_factory.mktemp("operator") / "operator.log")
    running.start()
    try:
        yield running
        assert running.stop() == 0
    finally:
        if running.process is not None and running.process.poll() is None:
            running.kill()
        kube.run("delete", "namespace", namespace, "--wait=false")
        sys.stdout.write(running.log.read_text()[-8000:])  # pytest shows it with a failure


def named(name: str, **spec: Any) -> Manifest:
    body = changed(service(), "metadata.name", name)
    body["metadata"]["labels"] = {"weft.dev/operator": INSTANCE}
    body["spec"]["capacity"]["elastic"] = True
    body["spec"]["rollout"] = {"drainTimeout": "1s"}
    body["spec"] |= spec
    return body


def test_a_service_becomes_objects_that_stay_as_they_are(operator: Operator) -> None:
    name = operator.carry_out(named("plain"))
    status = operator.service(name)["status"]
    groups = status["plan"]["groups"]
    assert {row["role"] for row in groups} == {"prefill", "decode"}
    assert status["url"] == f"http://{name}.{operator.namespace}.svc"
    uids = operator.uids(name, "statefulsets,deployments,services,configmaps,pdb,sa")
    workers = [key for key in uids if key.startswith("StatefulSet/")]
    assert len(workers) == sum(row["replicas"] for row in groups)
    assert sum(key.startswith("Service/") for key in uids) == 2, "for clients, and for the names of workers"
    assert sum(key.startswith("ConfigMap/") for key in uids) == 3
    token = operator.kube.get(operator.namespace, "secret", f"{name}-token")
    assert token is not None
    assert len(token["data"]["token"]) >= 43
    line = operator.kube.run("-n", operator.namespace, "get", "dis", name).splitlines()
    assert line[0].split() == ["NAME", "READY", "PLAN", "WORKERS", "GPUS", "SLO", "TTFT", "ITL", "AGE"]
    assert line[1].split()[1] == "False"
    assert f" {status['planSummary']} " in line[1]
    # Several resyncs later nothing was sent again: what the API server filled in is not taken for drift.
    actions, passes = operator.metric("weft_operator_actions_total"), operator.metric("weft_operator_reconciles_total")
    wait_for("five passes", lambda: operator.metric("weft_operator_reconciles_total") >= passes + 5)
    assert operator.metric("weft_operator_actions_total") == actions
    assert operator.uids(name, "statefulsets,deployments,services,configmaps,pdb,sa") == uids
    operator.kube.run("-n", operator.namespace, "delete", "dis", name)

    nothing_rests(operator, name)


def nothing_rests(operator: Operator, name: str) -> None:
    """Wait until nothing of a deleted service is left."""
    kinds = "workergroups,statefulsets,deployments,services,configmaps,pdb,sa,secrets,pods"
    wait_for("end of its objects", lambda: not operator.uids(name, kinds), timeout=150)


def test_an_operator_that_was_killed_goes_on_where_it_was(operator: Operator) -> None:
    name = operator.carry_out(named("killed"))
    before = operator.uids(name, "statefulsets,deployments,services,configmaps")
    generation = operator.service(name)["status"]
    operator.kill()
    operator.start()
    passes = operator.metric("weft_operator_reconciles_total")
    wait_for("three passes", lambda: operator.metric("weft_operator_reconciles_total") >= passes + 3)
    assert operator.uids(name, "statefulsets,deployments,services,configmaps") == before
    assert operator.metric("weft_operator_actions_total") == 0
    assert operator.metric("weft_operator_planner_runs_total") == 0
    assert operator.service(name)["status"]["plan"] == generation["plan"]
    operator.kube.run("-n", operator.namespace, "delete", "dis", name)


def test_hand_edits_are_put_back(operator: Operator) -> None:
    name = operator.carry_out(named("edited"))
    worker = next(key for key in operator.uids(name, "statefulsets")).partition("/")[2]
    operator.kube.run("-n", operator.namespace, "scale", "statefulset", worker, "--replicas=3")
    operator.kube.run("-n", operator.namespace, "set", "image", f"deployment/{name}", "router=example.com/mine:1")
    operator.kube.run("-n", operator.namespace, "delete", "service", f"{name}-worker")

    def mended() -> bool:
        found = operator.kube.get(operator.namespace, "statefulset", worker) or {}
        front = operator.kube.get(operator.namespace, "deployment", name) or {}
        image = front["spec"]["template"]["spec"]["containers"][0]["image"]
        headless = operator.kube.get(operator.namespace, "service", f"{name}-worker")
        return found["spec"]["replicas"] == 1 and image == "localhost/weft-router:absent" and headless is not None

    wait_for("repair", mended)

    def told() -> bool:
        events = operator.kube.list(operator.namespace, "events")
        mine = [item for item in events if item["involvedObject"]["name"] == name]
        return any(item["reason"] == "DriftCorrected" and "spec.replicas" in item["message"] for item in mine)

    wait_for("event of the repair", told)
    operator.kube.run("-n", operator.namespace, "delete", "dis", name)


def test_what_is_missing_is_reported_and_used_when_it_comes(operator: Operator) -> None:
    keys = {"auth": {"apiKeySecretRef": {"name": "keys", "key": "all"}}}
    name = operator.apply(named("missing", profile={"ref": {"name": "measured"}}, coordinator=keys))
    planned = operator.await_condition(name, "Planned", "SecretNotFound")
    assert "there is no Secret keys with a non-empty key all" in planned["message"]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"all": "sk-1"}}
    operator.apply(secret)
    refused = operator.await_condition(name, "Planned", "SecretNotAllowed")
    assert f"kubectl label secret keys -n {operator.namespace} weft.dev/use=api-keys" in refused["message"]
    operator.apply({**secret, "metadata": {"name": "keys", "labels": {"weft.dev/use": "api-keys"}}})
    operator.await_condition(name, "Planned", "ProfileNotFound")
    operator.apply(PROFILE)
    operator.await_condition(name, "Planned", "PlanReady")
    operator.await_rest(name)
    before = operator.uids(name, "statefulsets")
    capacity = {**named("missing")["spec"]["capacity"], "elastic": False, "gpus": 4000}
    operator.apply(named("missing", profile={"ref": {"name": "measured"}}, coordinator=keys, capacity=capacity))
    planned = operator.await_condition(name, "Planned", "TooFewGpus")
    assert "4000 GPUs are requested" in planned["message"]
    assert operator.uids(name, "statefulsets") == before
    operator.kube.run("-n", operator.namespace, "delete", "dis", name)


def test_an_object_of_somebody_else_is_not_taken_over(operator: Operator) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "taken", "namespace": operator.namespace, "labels": {"mine": "yes"}},
        "spec": {"selector": {"app": "mine"}, "ports": [{"port": 1234}]},
    }
    operator.apply(foreign)
    name = operator.apply(named("taken"))
    told = operator.await_condition(name, "Progressing", "NameTaken")
    assert "Service" in told["message"]
    found = operator.kube.get(operator.namespace, "service", "taken")
    assert found is not None
    assert found["spec"]["selector"] == {"app": "mine"}
    operator.kube.run("-n", operator.namespace, "delete", "dis", name)
    nothing_rests(operator, name)
    assert operator.kube.get(operator.namespace, "service", "taken") is not None


def test_a_worker_whose_pod_hangs_is_replaced_under_a_new_name(operator: Operator) -> None:
    name = operator.carry_out(named("lost"))
    worker = next(key for key in operator.uids(name, "statefulsets")).partition("/")[2]
    pod = f"{worker}-0"
    wait_for("pod", lambda: operator.kube.get(operator.namespace, "pod", pod))
    # A finalizer keeps the pod, as a dead node does.
    hold = yaml.safe_dump({"metadata": {"finalizers": ["tests.weft.dev/hold"]}})
    operator.kube.run("-n", operator.namespace, "patch", "pod", pod, "--type=merge", "-p", hold)
    count = len(operator.uids(name, "statefulsets"))
    try:
        operator.kube.run("-n", operator.namespace, "delete", "pod", pod, "--wait=false")

        def replaced() -> bool:
            names = {key.partition("/")[2] for key in operator.uids(name, "statefulsets")}
            return worker not in names and len(names) == count

        wait_for("replacement", replaced, timeout=150)
        assert operator.kube.get(operator.namespace, "pod", pod) is not None
    finally:
        free = json.dumps({"metadata": {"finalizers": None}})
        operator.kube.run("-n", operator.namespace, "patch", "pod", pod, "--type=merge", "-p", free)
    operator.kube.run("-n", operator.namespace, "delete", "dis", name)


def test_a_bad_image_can_be_changed_for_another(operator: Operator) -> None:
    name = operator.apply(named("mended"))
    selector = f"weft.dev/service={name},weft.dev/worker"

    def images() -> set[str]:
        pods = operator.kube.list(operator.namespace, "pods", selector)
        alive = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        return {pod["spec"]["containers"][0]["image"] for pod in alive}

    wait_for("pods", lambda: images() == {"localhost/weft-mock-engine:absent"})
    # No pod of the first image is ever ready, and a StatefulSet does not replace such a pod by itself.
    operator.apply(named("mended", engine={"type": "mock", "image": "localhost/weft-mock-engine:other"}))
    wait_for("pods of the other image", lambda: images() == {"localhost/weft-mock-engine:other"}, timeout=120)
    operator.kube.run("-n", operator.namespace, "delete", "dis", name)


def test_the_idle_operator_is_small_and_quiet(operator: Operator) -> None:
    name = operator.carry_out(named("idle"))
    assert operator.process is not None
    memory = Path(f"/proc/{operator.process.pid}/status").read_text()
    resident = int(next(line for line in memory.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024
    assert resident < 250
    before, begin = operator.metric("weft_operator_api_requests_total"), time.monotonic()
    passes = operator.metric("weft_operator_reconciles_total")
    wait_for("five passes", lambda: operator.metric("weft_operator_reconciles_total") >= passes + 5)
    took = operator.metric("weft_operator_api_requests_total") - before
    # This operator resyncs every 2 s instead of every 60 s, and its pods never start, which makes events: what is
    # measured is the cost of a pass, from which the rate of a quiet service follows.
    per_pass = took / (operator.metric("weft_operator_reconciles_total") - passes)
    assert per_pass <= 15, f"{took} requests in {time.monotonic() - begin:.0f} s"
    assert per_pass / 60 < 1
    operator.kube.run("-n", operator.namespace, "delete", "dis", name)
