"""Run the proof of the contract with GitOps tools, and say what was seen."""

import sys
import tempfile
import time
from pathlib import Path

import click
import httpx

from weft_e2e.checks import CheckFailed
from weft_e2e.cluster import kubectl
from weft_e2e.cluster.bare import Bare, User, bare_cluster
from weft_e2e.cluster.toolchain import build_all
from weft_e2e.gitops.api import APPLICATIONS, SERVICES, by_name, is_true, listening, objects
from weft_e2e.gitops.argocd import application, argocd, state_of
from weft_e2e.gitops.content import CHART, Content, new_content
from weft_e2e.gitops.edits import bad_commit, hand_edit
from weft_e2e.gitops.prometheus_stub import Sessions, SimulatedLoad, telling
from weft_e2e.gitops.scale_steps import LOW, StepTargets, steps
from weft_e2e.kube import Object
from weft_e2e.scale.figures import client
from weft_e2e.scale.program import running
from weft_e2e.waiting import WaitedTooLong, until
from weft_operator.metrics.queries import windows_of

CHART_NAMESPACE, SERVICES_NAMESPACE = "weft-system", "serving"
CHART_NAME = "weft"
# The operator as the chart knows it: it has just the rights that Argo CD gave it with the chart.
_ACCOUNT = f"system:serviceaccount:{CHART_NAMESPACE}:{CHART_NAME}-operator"
OPERATOR = User("weft-gitops-token", _ACCOUNT, ("system:serviceaccounts",))
SESSIONS = Sessions(rounds=3, first_prompt=600, increment=200, decode=60, gap_s=0.3)
WINDOW_S = 20.0
GPUS = 6
BEGUN_S = 60.0
"""For Argo CD to be there; each service may take FIRST_S more."""
FIRST_S = 30.0


@click.command()
@click.option("--services", "count", default=20, show_default=True, type=click.IntRange(1, 40))
@click.option("--steps", "wanted", default=100, show_default=True, type=click.IntRange(1, 1000), help="In all.")
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for the logs, which are else removed.")
def main(count: int, wanted: int, keep: Path | None) -> None:
    """Let services under Argo CD scale so many times in all; exit with 1 when something is not in sync."""
    build_all(click.echo, frozenset({"argocd"}))
    with tempfile.TemporaryDirectory(prefix="weft-gitops-") as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _play(folder, [f"s{number:02}" for number in range(min(count, wanted))], wanted)
        except (CheckFailed, WaitedTooLong) as error:
            click.echo(f"FAILED: {error}")
            sys.exit(1)


def service(name: str) -> Object:
    """Return a service that needs one prefill worker at LOW and more at HIGH."""
    sessions = SESSIONS
    return {
        "apiVersion": "weft.dev/v1alpha1",
        "kind": "DisaggInferenceService",
        "metadata": {"name": name, "namespace": SERVICES_NAMESPACE},
        "spec": {
            "model": {"name": "meta-llama/Llama-3.1-8B-Instruct", "maxModelLen": 8192},
            "engine": {"type": "mock"},
            "slo": {"ttft": "2s", "itl": "40ms"},
            "workload": {
                "arrivalRate": LOW,
                "rounds": {"mean": sessions.rounds},
                "firstPrompt": {"mean": int(sessions.first_prompt)},
                "increment": {"mean": int(sessions.increment)},
                "decode": {"mean": int(sessions.decode)},
                "gap": {"mean": f"{sessions.gap_s * 1000:.0f}ms"},
            },
            "capacity": {
                "gpus": GPUS,
                "pools": [{"name": "h20", "gpuType": "nvidia-h20", "gpusPerNode": 8, "degrees": [1]}],
            },
            "profile": {"analytic": {"compute": 0.15, "memory": 0.3}},
            "planning": {
                "layouts": ["disaggregated"],
                "objective": "cost",
                "mode": "Auto",
                "interval": "2s",
                "cooldown": "0s",
                "prometheus": {"window": f"{WINDOW_S:.0f}s", "staleAfter": "10s"},
                "drift": {"minSamples": 5, "shrinkAfter": "1m"},
            },
            "coordinator": {"replicas": 1},
            "rollout": {"drainTimeout": "5s"},
        },
    }


def _play(folder: Path, names: list[str], wanted: int) -> None:
    begun = time.monotonic()

    def say(words: str) -> None:
        click.echo(f"{time.monotonic() - begun:6.0f} s  {words}")

    content = new_content(folder / "repository")
    content.chart()
    for name in names:
        content.service(service(name))
    content.commit("The chart and the services")
    with (
        bare_cluster(folder, users={"operator": OPERATOR}, nodes=1 + len(names) * GPUS // 8) as bare,
        client(bare) as http,
        argocd(bare, folder),
    ):
        told = SimulatedLoad(SESSIONS, windows_of(WINDOW_S), lambda space, name: _pods(http, space, name))
        with telling(told) as url:
            _apply_chart(bare, content)
            _await_healthy(http, [CHART_NAME], timeout_s=BEGUN_S)
            say("the chart is Synced and Healthy")
            told.rates.update(dict.fromkeys(names, LOW))
            with running(bare, user=OPERATOR, prometheus=url):
                _apply_services(bare, content, names)
                _await_healthy(http, names, timeout_s=BEGUN_S + FIRST_S * len(names))
                say(f"{len(names)} services are Synced and Healthy")
                with client(bare) as watching, listening(watching) as heard:
                    stage = StepTargets(http, bare.kubeconfig(), content, told, SERVICES_NAMESPACE, heard, say)
                    steps(stage, names, each=-(-wanted // len(names)))
                    say(f"Argo CD told of its Applications {heard.events} times, and always that they are Synced")
                    say(f"a change by hand: {hand_edit(stage, names[0])}")
                    if heard.wrong:
                        raise CheckFailed(f"Argo CD took notice of a change by hand of a child: {heard.wrong[0]}")
                say(f"a bad commit is Degraded until it is taken back: {bad_commit(stage, service(names[0]))}")


def _apply_chart(bare: Bare, content: Content) -> None:
    values = {"image.registry": "registry.example.com/team"}
    kubectl.apply(
        bare.kubeconfig(),
        [application(CHART_NAME, repository=content.folder, path=CHART, namespace=CHART_NAMESPACE, helm=values)],
    )


def _apply_services(bare: Bare, content: Content, names: list[str]) -> None:
    found = [
        application(name, repository=content.folder, path=f"services/{name}", namespace=SERVICES_NAMESPACE)
        for name in names
    ]
    kubectl.apply(bare.kubeconfig(), found)


def _await_healthy(http: httpx.Client, names: list[str], *, timeout_s: float) -> None:
    """Wait until Applications are Synced and Healthy, and what they hold is at rest."""
    seen: dict[str, tuple[str, str]] = {}

    def healthy() -> bool:
        found = by_name(http, APPLICATIONS)
        seen.update({name: state_of(found[name]) for name in names if name in found})
        return all(seen.get(name) == ("Synced", "Healthy") for name in names)

    def words() -> str:
        return ", ".join(f"{name}: {state}" for name, state in seen.items() if state != ("Synced", "Healthy"))

    until(healthy, what="Applications that are Synced and Healthy", timeout_s=timeout_s, last=words)
    live = f"{SERVICES}/namespaces/{SERVICES_NAMESPACE}/disagginferenceservices"
    if names != [CHART_NAME]:
        until(lambda: all(is_true(one, "Ready") for one in objects(http, live)), what="Ready", timeout_s=timeout_s)


def _pods(http: httpx.Client, namespace: str, name: str) -> list[str]:
    found = objects(http, f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"weft.dev/service={name}")
    return [pod["metadata"]["name"] for pod in found]
