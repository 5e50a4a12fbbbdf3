"""KV cache tiers on a real cluster: the example serves, loads what was evicted, and says what is wrong with a tier."""

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from weft_core.quantities import bytes_of
from weft_e2e import kube
from weft_e2e.checks.sessions import expected_reply
from weft_e2e.images.catalogue import repository_root
from weft_e2e.kube import Object
from weft_e2e.metrics import growth
from weft_e2e.replay.client import Target
from weft_e2e.scenarios.installed import Installed
from weft_e2e.scenarios.manifests import changed
from weft_e2e.scenarios.weights import shared_folder
from weft_e2e.service import Service
from weft_e2e_tests.test_service_cluster import READY_S, applied, apply, becomes
from weft_mock.tokenizer import filler
from weft_operator.api.objects import WORKER_LABEL
from weft_operator.status.kv_cache_tiers import START_S

# A guard against a test that hangs: every wait has a deadline of its own, and they add up to less.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]

EXAMPLE = repository_root() / "docs/examples/kv-cache-cpu.yaml"
PROMPT, ANSWER, MORE = 2000, 16, 100
CAPACITY = 10_240
OTHERS = 8
"""Prompts of other sessions, which together are larger than a GPU's cache."""
LARGE = "too-large"
UNAVAILABLE = {"type": "vllm", "image": "registry.invalid/vllm:0"}
"""An engine that never starts; the sidecars of its pods do."""
DISK = 2**30


def example(name: str) -> Object:
    """Return docs/examples/kv-cache-cpu.yaml, for few sessions on two workers."""
    manifest: Object = yaml.safe_load(EXAMPLE.read_text())
    for path, value in {
        "metadata.name": name,
        "spec.model.maxModelLen": 8192,
        "spec.workload.arrivalRate": 0.1,
        "spec.capacity.pools": [{"name": "l40s", "gpuType": "nvidia-l40s", "gpusPerNode": 8, "degrees": [1]}],
        "spec.planning.prefill": {"min": 1, "max": 1},
        "spec.planning.decode": {"min": 1, "max": 1},
        "spec.coordinator": {"replicas": 1},
        "spec.rollout": {"drainTimeout": "5s"},
    }.items():
        manifest = changed(manifest, path, value)
    return manifest


def ask(target: Target, session: str, messages: list[dict[str, str]]) -> str:
    """Send a round and return its answer, which must be right."""
    body = {"model": target.model, "messages": messages, "max_tokens": ANSWER, "ignore_eos": True}
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{target.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "X-Session-Id": session},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310 - loopback
        answer = json.load(reply)["choices"][0]["message"]["content"]
    assert answer == expected_reply(messages, ANSWER)
    return str(answer)


def user(tokens: int, seed: int) -> dict[str, str]:
    return {"role": "user", "content": filler(tokens, seed)}


def reason_of(service: Service) -> str:
    found = service.conditions().get("KVCacheTiers")
    return "" if found is None else found.reason


def ask_router(weft: Installed, namespace: str, pod: str, path: str) -> str:
    """Return a page of a worker's sidecar, which answers before its engine does."""
    words = ("exec", "-n", namespace, pod, "-c", "router", "--", "python", "-m", "weft_router.ask", path)
    return weft.kube.kubectl(*words).stdout


def test_evicted_history_is_loaded_and_a_tier_that_is_too_large_is_named(weft: Installed, namespace: str) -> None:
    large = apply(weft, namespace, changed(example(LARGE), "spec.engine", UNAVAILABLE))

    mock = {"type": "mock", "mock": {"kvCapacityTokens": CAPACITY}, "kvTransfer": {"bidirectional": False}}
    service = applied(weft, namespace, changed(example("tiered"), "spec.engine", mock))
    becomes(lambda: reason_of(service) == "TiersInUse", what="the condition KVCacheTiers", timeout_s=READY_S)
    size = bytes_of(yaml.safe_load(EXAMPLE.read_text())["spec"]["kvCache"]["cpu"]["size"])
    workers = [pod for pod in service.pods() if WORKER_LABEL in pod["metadata"]["labels"]]
    assert all(f"--kv-tier=cpu:{size}" in pod["spec"]["containers"][0]["args"] for pod in workers)

    with service.reachable() as target:
        first = [user(PROMPT, 0)]
        answer = ask(target, "first", first)
        for seed in range(1, OTHERS + 1):
            ask(target, f"other-{seed}", [user(PROMPT, seed)])
        before = service.metrics_pages()
        ask(target, "first", [*first, {"role": "assistant", "content": answer}, user(MORE, 99)])
        grown = growth(before, service.metrics_pages())
    assert grown.total("weft_mock_tier_loaded_tokens_total", tier="cpu") > PROMPT - 100
    assert grown.total("vllm:prompt_tokens_cached_by_source_total", source="host") > PROMPT - 100
    assert grown.total("weft_mock_prefilled_tokens_total") < 2 * (MORE + 100), "nothing but the new tokens is computed"
    assert grown.total("weft_router_history_tokens_total", kind="recomputed") < 100
    pod = next(pod["metadata"]["name"] for pod in workers if pod["metadata"]["labels"]["weft.dev/role"] == "decode")
    page = json.loads(ask_router(weft, namespace, pod, "/debug/sessions?sort=rounds&n=1"))
    assert page["total"] == OTHERS + 1
    assert page["sessions"][0]["rounds"] == 2

    becomes(
        lambda: reason_of(large) == "TierTooLarge",
        what="the condition KVCacheTiers of a tier that no node has the memory for",
        timeout_s=START_S + 60,
    )
    message = large.conditions()["KVCacheTiers"].message
    assert "pool l40s" in message, message
    sets = kube.items(weft.kube, "statefulsets", namespace=namespace, selector=large.selector)
    specs = [item["spec"]["template"]["spec"] for item in sets]
    requests = [spec["containers"][0]["resources"]["requests"]["memory"] for spec in specs]
    assert all(bytes_of(request) >= size for request in requests), requests
    volumes = [volume for spec in specs for volume in spec["volumes"] if volume["name"] == "shm"]
    shared = [volume["emptyDir"]["sizeLimit"] for volume in volumes]
    assert len(shared) == len(specs) == 2
    assert all(bytes_of(limit) > size for limit in shared), shared


@contextmanager
def volumes(weft: Installed, storage_class: str, folder: Path, *, count: int) -> Iterator[None]:
    """Offer the claims of a storage class volumes in a folder that all nodes see."""
    names = [f"{storage_class}-{k}" for k in range(count)]
    for name in names:
        (folder / name).mkdir()
        (folder / name).chmod(0o777)
        spec = {
            "capacity": {"storage": DISK},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder / name), "type": "Directory"},
        }
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
        weft.kube.kubectl("apply", "-f", "-", input=json.dumps(volume))
    try:
        yield
    finally:
        weft.kube.kubectl("delete", "pv", *names, "--wait=false", check=False)


def test_the_sidecar_of_a_disk_deletes_what_is_more_than_the_tier(weft: Installed, namespace: str) -> None:
    assert weft.local is not None, "the volumes are folders of this machine: run on a local cluster"
    storage_class = f"{namespace}-disks"
    with shared_folder() as folder, volumes(weft, storage_class, folder, count=2):
        disk = {"size": "1Gi", "storageClassName": storage_class}
        manifest = changed(changed(example("on-disk"), "spec.engine", UNAVAILABLE), "spec.kvCache.disk", disk)
        manifest = changed(manifest, "spec.kvCache.cpu", {"size": "1Gi"})
        service = apply(weft, namespace, manifest)
        becomes(
            lambda: len(list(folder.rglob(".in-use"))) == 2,
            what="a folder of each worker's own on its disk",
            timeout_s=READY_S,
        )
        of_worker = next(folder.rglob(".in-use")).parent
        old, new = of_worker / "old.bin", of_worker / "new.bin"
        for file, age in ((old, 600.0), (new, 0.0)):
            file.touch()
            os.truncate(file, DISK * 3 // 4)
            used = file.stat().st_mtime - age
            os.utime(file, (used, used))
        becomes(lambda: not old.exists(), what="the oldest file to be deleted", timeout_s=90.0)
        assert new.exists()

        def deleted() -> float:
            pods = [pod["metadata"]["name"] for pod in service.pods() if WORKER_LABEL in pod["metadata"]["labels"]]
            pages = {pod: ask_router(weft, namespace, pod, "/metrics") for pod in pods}
            return growth({}, pages).total("weft_router_kv_disk_deleted_bytes_total")

        becomes(lambda: deleted() == DISK * 3 // 4, what="the deleted bytes in the metrics", timeout_s=30.0)
