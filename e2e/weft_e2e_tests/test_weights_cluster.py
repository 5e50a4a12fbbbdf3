"""Weights in real pods: downloaded once for three workers although the hub breaks half way, and read by all of them."""

import json
from pathlib import Path

import pytest

from weft_e2e import kube
from weft_e2e.checks import check_ready
from weft_e2e.scenarios.installed import Installed
from weft_e2e.scenarios.manifests import changed, small_service
from weft_e2e.scenarios.weights import SHARDS, run_hub, shared_folder, shared_volume
from weft_e2e.waiting import until
from weft_e2e_tests.test_service_cluster import apply
from weft_operator.api.model_cache import NODE_ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
SHARD_BYTES = 6 << 20
TOKEN = "hf_do-not-tell"
KEY_ID, KEY = "AKIDEXAMPLE", "s3-do-not-tell"


def test_three_workers_load_what_was_downloaded_once(weft: Installed, namespace: str) -> None:
    assert weft.local is not None, "the volume is a folder of this machine: run on a local cluster"
    hub = run_hub(
        weft.kube,
        namespace,
        words=[
            f"--repo={MODEL}",
            f"--token={TOKEN}",
            f"--access-key={KEY_ID}",
            f"--shard-bytes={SHARD_BYTES}",
            f"--break-after={SHARD_BYTES // 2}",
            "--rate=500e3",  # long enough for the operator to look twice
        ],
    )
    keys = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": KEY}
    for name, values in (("hub-token", {"token": TOKEN}), ("bucket-keys", keys)):
        words = [f"--from-literal={field}={value}" for field, value in values.items()]
        weft.kube.kubectl("create", "secret", "generic", name, "-n", namespace, *words)
        weft.kube.kubectl("label", "secret", name, "-n", namespace, "weft.dev/use=model")
    with (
        shared_folder() as folder,
        shared_folder(Path(NODE_ROOT)) as of_nodes,
        shared_volume(weft.kube, namespace, "cached-weights", folder) as storage_class,
    ):
        source = {
            "huggingFace": {
                "endpoint": hub.url,
                "tokenSecretRef": {"name": "hub-token", "key": "token"},
                "cache": {"claim": {"size": "1Gi", "storageClassName": storage_class}},
            }
        }
        body = changed(small_service("cached", prefill=(2, 2), time_scale=0.1), "spec.model.source", source)
        service = apply(weft, namespace, body)
        told: list[str] = []

        def loaded() -> bool:
            if service.pods("prefill"):  # asked before the Job, which ends before they are made
                ends = [job["status"].get("succeeded") for job in kube.items(weft.kube, "jobs", namespace=namespace)]
                assert ends == [1], "no worker holds a GPU before its weights are there"
            found = service.conditions().get("ModelReady")
            if found is not None:
                told.append(f"{found.reason} {found.message}")
                assert found.reason != "FetchFailed", found
            return found is not None and found.true

        until(loaded, what="the weights", timeout_s=150, last=lambda: told[-1] if told else "nothing told")
        assert any(text.startswith("Downloading") and " MB of 12.6 MB" in text for text in told), told
        check_ready(service, timeout_s=150)
        assert [len(service.pods(role)) for role in ("prefill", "decode")] == [2, 1]
        stats = hub.stats()
        assert stats["refused"] == 0
        assert [stats["asked"][name] for name in SHARDS] == [2, 2], "it broke once, and no worker asked for more"
        assert max(stats["offsets"]) > 0, "it went on where it broke"
        assert all(stats["sent"][name] < 1.2 * SHARD_BYTES for name in SHARDS)

        # By the other protocol, and onto nodes: both of these are this machine, so one of the sidecars downloads.
        bucket = {
            "s3": {
                "endpoint": hub.url,
                "bucket": "models",
                "prefix": "tiny",
                "credentialsSecretRef": {"name": "bucket-keys"},
                "cache": {"node": {"path": str(of_nodes)}},
            }
        }
        other = changed({**body, "metadata": {"name": "bucket"}}, "spec.model.source", bucket)
        other = changed(other, "spec.planning.prefill", {"min": 1, "max": 1})
        service = apply(weft, namespace, other)
        check_ready(service, timeout_s=150)
        assert service.conditions()["ModelReady"].message == "the weights are on the nodes of all 2 workers"
        now = hub.stats()
        assert [now["asked"][name] for name in SHARDS] == [3, 3], "once for both workers"
        assert now["refused"] == 0
        check_nothing_tells(weft, namespace)


def check_nothing_tells(weft: Installed, namespace: str) -> None:
    """No object but the Secrets, and no log, holds a token or a key."""
    kinds = "dis,wg,statefulsets,deployments,jobs,pods,configmaps,controllerrevisions,events,pvc"
    texts = [json.dumps(kube.items(weft.kube, kinds, namespace=namespace))]
    for pod in kube.items(weft.kube, "pods", namespace=namespace):
        name = pod["metadata"]["name"]
        if name != "hub":  # the stand-in was given the token by an argument
            texts.append(kube.read(weft.kube, "logs", "-n", namespace, name, "--all-containers"))
    hub = '"name": "hub"'
    text = "\n".join(texts).replace(f"--token={TOKEN}", "")
    assert hub in text
    assert "download_interrupted" in text, "the logs are those of the download"
    for secret in (TOKEN, KEY, "signed-url-secret"):
        assert secret not in text
