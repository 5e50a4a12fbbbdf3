"""Whether a cluster has image volumes, asked of real API servers with the feature and without."""

from pathlib import Path

import pytest
from kubernetes.config import kube_config

from weft_e2e.cluster.bare import bare_cluster
from weft_operator.connecting import connect
from weft_operator.weights.image_volumes import REFUSAL, ImageVolumes

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(120, func_only=True)]


@pytest.mark.parametrize(("gates", "refusal"), [("", ""), ("ImageVolume=false", REFUSAL)], ids=["with", "without"])
def test_an_api_server_says_whether_it_takes_image_volumes(
    gates: str, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bare_cluster(tmp_path, feature_gates=gates) as bare:
        # The library reads $KUBECONFIG when it is imported.
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(bare.kubeconfig()))
        assert ImageVolumes(connect()).refusal("default") == refusal
