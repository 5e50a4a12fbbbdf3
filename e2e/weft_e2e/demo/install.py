"""Put a cluster, the images and Weft in place, and take them away again."""

import json
from collections.abc import Sequence
from functools import partial

from weft_e2e import cluster, images
from weft_e2e.cluster import Cluster, ClusterConfig, prerequisites
from weft_e2e.cluster.context import require_named_context
from weft_e2e.cluster.paths import cache_root
from weft_e2e.demo import node_gpus
from weft_e2e.demo.settings import (
    CHART,
    CLUSTER,
    ENGINES_CLUSTER,
    MARK,
    NAMESPACE,
    RELEASE,
    SYSTEM_NAMESPACE,
    Settings,
    repository_root,
)
from weft_e2e.demo.steps import DemoFailed, Say, Steps
from weft_e2e.images import node_loading
from weft_e2e.images.node_loading import NodeLoader
from weft_e2e.kube import Kube, NamedContext
from weft_e2e.service import KIND

CRDS = ("disagginferenceservices.weft.dev", "costprofiles.weft.dev", "workergroups.weft.dev")


def check_setup(settings: Settings, say: Say | None = None) -> None:
    """Refuse to begin what cannot be finished, and make what the local cluster needs where it is missing.

    Raises:
        DemoFailed: chart, example, or images for a foreign cluster are missing; the message says what to do.
        ClusterError: no cluster can run here, or something could not be installed or built.
    """
    try:
        repository_root()
    except FileNotFoundError as error:
        raise DemoFailed(str(error)) from None
    if settings.context is not None:
        require_named_context(settings.context, named=settings.context)
        if not settings.names_images:
            node_loading.check_tools(_loader(settings.context))
        return
    # The images are built beside the programs; what changes later is built when the cluster is up.
    prerequisites.install(say or Steps(partial(print, flush=True)).detail, beside=[images.task()])


def bring_up(settings: Settings, steps: Steps) -> tuple[Kube, str]:
    """Return a running cluster with Weft installed, and the words for it."""
    if settings.context is not None:
        kube: Kube = NamedContext(settings.context)
        with steps.step("Look for GPUs") as detail:
            node_gpus.ensure(kube, settings.context, simulate=settings.simulate_gpus, say=detail)
        images_there = [] if settings.names_images else _load_images(settings.context, steps)
        _install(kube, steps, [*images_there, *settings.image_arguments()])
        return kube, f"context '{settings.context}'"
    local = bring_up_local(CLUSTER, steps, settings.image_arguments())
    return local, f"the local cluster '{CLUSTER}' ({len(local.nodes())} nodes)"


def _load_images(context: str, steps: Steps) -> list[str]:
    """Build the images and bring them to the nodes of a cluster on this machine; return Helm's arguments for them."""
    loader = _loader(context)
    with steps.step(f"Build the images that changed, and load them into {loader.words}") as detail:
        return images.chart_values(node_loading.build_and_load(loader, node_loading.check_tools(loader), detail))


def _loader(context: str) -> NodeLoader:
    loader = node_loading.loader_of(context)
    if loader is None:
        raise DemoFailed(
            f"the nodes of context {context!r} need images that they can pull: push them with "
            "`make images push REGISTRY=…` and run the demo with REGISTRY=… (and TAG=…), or name them with "
            "--set operator.image=… and the like. Only into clusters of kind (context kind-NAME), k3d (k3d-NAME) and "
            "minikube (its profile) can images be loaded without a registry"
        )
    return loader


def bring_up_local(name: str, steps: Steps, arguments: Sequence[str] = ()) -> Cluster:
    """Return a local cluster with Weft installed from this checkout."""
    config = ClusterConfig(name=name)
    with steps.step(f"Start the local cluster '{name}': {config.nodes} nodes with {config.gpus} simulated GPUs each"):
        local = cluster.up(config)
    with steps.step("Build the images that changed, and load them") as detail:
        built = images.build(report=detail)
        local.load(list(built.values()), detail)
    _install(local, steps, [*images.chart_values(built), *arguments])
    return local


def _install(kube: Kube, steps: Steps, arguments: list[str]) -> None:
    with steps.step("Install Weft with Helm") as detail:
        if _foreign_release(kube):
            detail(f"release {RELEASE} in {SYSTEM_NAMESPACE} is not the demo's: it is used as it is")
            return
        ensure_namespace(kube, SYSTEM_NAMESPACE)
        install_chart(kube, arguments)


def install_chart(kube: Kube, arguments: list[str]) -> None:
    """Install or upgrade the chart and wait until its own pods are ready."""
    chart = str(repository_root() / CHART)
    kube.helm(
        "upgrade",
        "--install",
        RELEASE,
        chart,
        "--namespace",
        SYSTEM_NAMESPACE,
        "--wait",
        "--timeout",
        "180s",
        *arguments,
        timeout=200,
    )


def ensure_namespace(kube: Kube, name: str) -> None:
    """Make a namespace and mark it as the demo's; one that exists is left as it is."""
    if not kube.kubectl("get", "namespace", name, "--ignore-not-found", "-o", "name").stdout.strip():
        # Name and mark in one: a namespace without the mark would never be removed. `create`, because `apply` would
        # mark one that somebody else has made in between.
        marked = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {MARK: "true"}}}
        kube.kubectl("create", "-f", "-", input=json.dumps(marked))


def _ours(kube: Kube, namespace: str) -> bool:
    found = kube.kubectl("get", "namespace", "-l", f"{MARK}=true", "-o", "name").stdout.split()
    return f"namespace/{namespace}" in found


def _foreign_release(kube: Kube) -> bool:
    listed = kube.helm("list", "--namespace", SYSTEM_NAMESPACE, "--filter", f"^{RELEASE}$", "--short").stdout.strip()
    return bool(listed) and not _ours(kube, SYSTEM_NAMESPACE)


def take_down(context: str | None, say: Say) -> None:
    """Remove everything the demo made; on the user's own cluster, only what carries the demo's mark."""
    if context is None:
        for name in (CLUSTER, ENGINES_CLUSTER):
            there = cluster.down(name)
            if there or name == CLUSTER:
                say(f"the local cluster '{name}' {'and all in it are gone' if there else 'was not there'}")
        say(
            f"what stays for the next time: images in buildah's storage (`.venv/bin/python -m weft_e2e.images prune` "
            f"removes old ones and build layers), programs in {cache_root()}, reports in out/demo"
        )
        return
    require_named_context(context, named=context)
    kube = NamedContext(context)
    if nodes := node_gpus.remove(kube):
        say(f"the simulated GPUs of {', '.join(nodes)} are gone")
    if _ours(kube, NAMESPACE):
        kube.kubectl("delete", KIND, "--all", "-n", NAMESPACE, "--ignore-not-found", timeout=150)
        kube.kubectl("delete", "namespace", NAMESPACE, timeout=150)
        say(f"namespace {NAMESPACE} is gone")
    if not _ours(kube, SYSTEM_NAMESPACE):
        say(f"release {RELEASE} in {SYSTEM_NAMESPACE} is not the demo's: it stays")
        return
    others = kube.kubectl("get", KIND, "-A", "-o", "name", check=False).stdout.split()
    if others:
        raise DemoFailed(
            f"{len(others)} services still use Weft: delete them first, or keep it (nothing was uninstalled)"
        )
    kube.helm("uninstall", RELEASE, "--namespace", SYSTEM_NAMESPACE, "--wait", "--ignore-not-found")
    for crd in CRDS:
        kube.kubectl("delete", "crd", crd, "--ignore-not-found")
    kube.kubectl("delete", "namespace", SYSTEM_NAMESPACE, timeout=150)
    say(f"release {RELEASE}, its definitions and namespace {SYSTEM_NAMESPACE} are gone")
