"""The chart on a real cluster: accepted, installed, upgraded, tested and uninstalled under restricted pod security."""

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from weft_e2e import images
from weft_e2e.demo.settings import RELEASE as SERVING
from weft_e2e.demo.settings import SYSTEM_NAMESPACE
from weft_e2e.images.catalogue import IMAGES, repository_root
from weft_e2e.images.sbom import contents_of, differences, pinned, requirements_of
from weft_e2e.kube import Kube, items
from weft_e2e.scenarios.installed import ANY_USER, Installed
from weft_e2e.waiting import until

# A guard against a test that hangs: every wait has a deadline of its own, and they add up to less.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200, func_only=True)]

CHART = str(repository_root() / "charts/weft")
RELEASE = "chart"
KEPT = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
KINDS = (
    "deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,persistentvolumeclaims"
)
EXTERNAL_REDIS = ["--set", "redis.embedded.enabled=false,redis.url=redis://redis.example.com:6379/0"]
EXTERNAL_PROMETHEUS = ["--set", "prometheus.embedded.enabled=false,prometheus.url=http://prometheus.example.com:9090"]
VARIANTS: dict[str, list[str]] = {
    "default": [],
    "external": [*EXTERNAL_REDIS, *EXTERNAL_PROMETHEUS],
    "persistent": ["--set", "redis.embedded.persistence.enabled=true"],
    "no-network-policy": ["--set", "networkPolicy.enabled=false"],
    "placed": [
        "--set-json",
        'operator.tolerations=[{"key":"gpu","operator":"Exists"}]',
        "--set",
        "operator.nodeSelector.disk=ssd,image.pullSecrets={pull}",
    ],
}


@pytest.fixture
def restricted(weft: Installed) -> Iterator[str]:
    """Give a namespace that enforces and warns by the restricted pod security standard."""
    name = f"chart-{secrets.token_hex(3)}"
    levels = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn", "audit")]
    weft.kube.kubectl("create", "namespace", name)
    weft.kube.kubectl("label", "namespace", name, *levels)
    try:
        yield name
    finally:
        weft.kube.helm("uninstall", RELEASE, "-n", name, "--ignore-not-found", check=False)
        weft.kube.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def same_images(weft: Installed, tmp_path: Path) -> list[str]:
    """Give the Helm arguments of the release that serves: its images are those that the nodes have."""
    values = tmp_path / "values.json"
    values.write_text(weft.kube.helm("get", "values", SERVING, "-n", SYSTEM_NAMESPACE, "-o", "json").stdout)
    return ["--values", str(values)]


def objects_in(kube: Kube, namespace: str) -> set[str]:
    """Return kind/name of everything of ours in the namespace."""
    found: list[dict[str, Any]] = json.loads(kube.kubectl("get", KINDS, "-n", namespace, "-o", "json").stdout)["items"]
    return {f"{item['kind'].lower()}/{item['metadata']['name']}" for item in found} - KEPT


def pod_uids(kube: Kube, namespace: str, component: str) -> frozenset[str]:
    """Return the UIDs of the component's pods that are not on their way out: two of the operator, else one."""
    pods = items(kube, "pods", namespace=namespace, selector=f"app.kubernetes.io/component={component}")
    uids = frozenset(pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" not in pod["metadata"])
    assert len(uids) == (2 if component == "operator" else 1)
    return uids


def no_warnings(done: "subprocess.CompletedProcess[str]") -> None:
    """Check that neither the API server nor Helm warned."""
    assert "warn" not in done.stderr.lower(), done.stderr
    assert "violate" not in done.stderr, done.stderr


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS.keys())
def test_the_api_server_accepts_every_object_without_a_warning(
    weft: Installed, restricted: str, values: list[str]
) -> None:
    chosen = ["--set", "image.registry=registry.example.com/team", *values]
    text = weft.kube.helm("template", RELEASE, CHART, "-n", restricted, *chosen).stdout
    done = weft.kube.kubectl(
        "apply", "--server-side", "--dry-run=server", "--field-manager=helm", "--force-conflicts", "-f", "-", input=text
    )
    no_warnings(done)
    assert len(done.stdout.splitlines()) == len([item for item in yaml.safe_load_all(text) if item])


def test_install_upgrade_test_and_uninstall(weft: Installed, restricted: str, same_images: list[str]) -> None:
    kube = weft.kube
    # A second release beside the one that serves: its operator looks at its own namespace only.
    mine = [*same_images, "--set", f"crds.install=false,operator.watchNamespaces={{{restricted}}}"]
    wait = ["--wait", "--timeout", "240s"]

    no_warnings(kube.helm("install", RELEASE, CHART, "-n", restricted, *mine, *wait, timeout=270))
    no_warnings(kube.helm("test", RELEASE, "-n", restricted, "--timeout", "120s", timeout=150))
    before = {part: pod_uids(kube, restricted, part) for part in ("operator", "redis", "prometheus")}

    changed = ["--set", "prometheus.embedded.scrapeInterval=7s"]
    no_warnings(kube.helm("upgrade", RELEASE, CHART, "-n", restricted, *mine, *changed, *wait, timeout=270))
    after = {part: pod_uids(kube, restricted, part) for part in before}
    assert {part for part in before if before[part] != after[part]} == {"prometheus"}

    refused = kube.helm("upgrade", RELEASE, CHART, "-n", restricted, *mine, "--set", "redis.url=x", check=False)
    assert refused.returncode != 0
    assert "/redis/url" in refused.stderr
    assert {part: pod_uids(kube, restricted, part) for part in before} == after

    kube.helm("uninstall", RELEASE, "-n", restricted, *wait, timeout=270)
    until(
        lambda: not objects_in(kube, restricted),
        what="an empty namespace",
        timeout_s=90,
        last=lambda: ", ".join(sorted(objects_in(kube, restricted))),
    )
    left = kube.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name").stdout.split()
    assert [name for name in left if restricted in name] == []
    # Definitions belong to the release that serves, and outlive both.
    definitions = kube.kubectl("get", "crd", "-o", "name").stdout
    assert "disagginferenceservices.weft.dev" in definitions


@pytest.mark.parametrize("name", ["weft-operator", "weft-router", "weft-mock-engine"])
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("buildah") is None, reason="needs root and buildah")
def test_images_hold_python_and_weft_and_no_way_to_get_more(name: str) -> None:
    ref = images.build([name], compiled=True)[name]
    container = run("buildah", "from", ref).strip()
    try:
        inside = ("buildah", "run", "--isolation", "chroot", "--user", "{runAsUser}:{runAsGroup}".format(**ANY_USER))
        listed = run(*inside, container, "--", "python", "-c", LISTING).splitlines()
        helped = run(*inside, container, "--", "weft", COMMANDS[name], "--help")
    finally:
        run("buildah", "rm", container)
    held = contents_of(ref)
    pins = pinned((path.read_text() for path in requirements_of(IMAGES[name])), held.environment)
    assert differences(held, pins) == []
    assert not [line for line in listed if line.startswith("closed ")], "whichever user a pod runs as reads all"
    programs = {line.rpartition("/")[2] for line in listed}
    assert {"python3.11", "weft"} <= programs
    assert not programs & {"sh", "bash", "dash", "apt", "apt-get", "dpkg", "pip", "pip3", "gcc", "curl", "wget"}
    assert not any("/site-packages/pip/" in line or "_tests/" in line for line in listed)
    assert helped.startswith(f"Usage: weft {COMMANDS[name]}")


COMMANDS = {"weft-operator": "operator", "weft-router": "router", "weft-mock-engine": "mock-engine"}
LISTING = """
import getpass, os
getpass.getuser()
for top in ("/usr", "/opt", "/bin/", "/etc"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            closed = os.path.exists(path) and not os.access(path, os.R_OK)
            print("closed " + path if closed else path)
"""


def run(*words: str) -> str:
    """Run a command and return what it wrote; its own words are in the failure."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, f"{' '.join(words[:3])}: {done.stderr[-2000:]}"
    return done.stdout
