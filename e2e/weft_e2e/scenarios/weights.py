"""A stand-in for the hub and a bucket inside the cluster, and a volume that all nodes share."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft_e2e import kube
from weft_e2e.demo.settings import RELEASE, SYSTEM_NAMESPACE
from weft_e2e.kube import Kube, Object
from weft_e2e.waiting import until

HUB = "hub"
PORT = 8000
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@dataclass(frozen=True, slots=True)
class MockHub:
    """The stand-in that runs in a namespace."""

    kube: Kube
    namespace: str

    @property
    def url(self) -> str:
        """Return where pods reach it: another host than its storage, to which the token must not go."""
        return f"http://{HUB}.{self.namespace}.svc.cluster.local:{PORT}"

    def stats(self) -> dict[str, Any]:
        """Return what was asked and sent so far, as the API server's proxy brings it."""
        path = f"/api/v1/namespaces/{self.namespace}/services/{HUB}:{PORT}/proxy/stats"
        found: dict[str, Any] = json.loads(kube.read(self.kube, "get", "--raw", path))
        return found


def run_hub(client: Kube, namespace: str, *, words: list[str]) -> MockHub:
    """Run the stand-in with these arguments and wait until it answers."""
    operator = kube.get(client, "deployment", f"{RELEASE}-operator", namespace=SYSTEM_NAMESPACE)
    if operator is None:
        raise LookupError(f"there is no Deployment {RELEASE}-operator in {SYSTEM_NAMESPACE}")
    env = {item["name"]: item.get("value", "") for item in operator["spec"]["template"]["spec"]["containers"][0]["env"]}
    args = [f"--listen=0.0.0.0:{PORT}", f"--storage=http://{HUB}.{namespace}.svc:{PORT}", *words]
    labels = {"app": HUB}
    container = {
        "name": HUB,
        "image": env["WEFT_MOCK_IMAGE"],
        "command": ["python", "-m", "weft_mock.weights", *args],
        "readinessProbe": {"httpGet": {"path": "/stats", "port": PORT}, "periodSeconds": 1},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": HUB, "labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": HUB},
        "spec": {"selector": labels, "ports": [{"port": PORT}]},
    }
    client.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(_listed(pod, service)))
    until(
        lambda: kube.pod_ready(kube.get(client, "pod", HUB, namespace=namespace) or {}),
        what="the stand-in of the hub",
        timeout_s=90,
    )
    return MockHub(client, namespace)


@contextmanager
def shared_folder(parent: Path | None = None) -> Iterator[Path]:
    """Give a folder of this machine, which all nodes of a local cluster see and every user may write.

    ``parent`` is made where it is not there, and stays; the folder for temporary files if absent.
    """
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="weft-e2e-weights-", dir=parent))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def shared_volume(client: Kube, namespace: str, claim: str, folder: Path, *, size: str = "1Gi") -> Iterator[str]:
    """Offer a claim a volume in a folder that all nodes see; give its class."""
    name = f"{namespace}-weights"
    volume: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": name,
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": namespace, "name": claim},
            "hostPath": {"path": str(folder), "type": "Directory"},
        },
    }
    client.kubectl("apply", "-f", "-", input=json.dumps(volume))
    try:
        yield name
    finally:
        client.kubectl("delete", "pv", name, "--wait=false", check=False)


def _listed(*objects: Object) -> Object:
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}
