"""What is measured of an operator with many services, and what it is held to."""

import json
import random
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import httpx

from weft_e2e.cluster import kubectl
from weft_e2e.cluster.bare import ADMIN, Bare
from weft_e2e.kube import Object
from weft_e2e.scale.program import Operator
from weft_e2e.scenarios.manifests import small_service
from weft_e2e.waiting import until

SERVICES_PER_NAMESPACE = 100
SERVICES = "/apis/weft.dev/v1alpha1"
NAMES_ONLY = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
REQUESTS = "weft_operator_api_requests_total"
PASSES = "weft_operator_reconciles_total"
CHANGES_PER_S = 2.0
RESYNC_PERIOD_S = 60.0

IDLE_REQUESTS_PER_S = 5.0
MEMORY_MIB = 512.0
RESYNC_S = 60.0
ACTED_P99_S = 2.0

Says = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ScaleFigure:
    """A measured figure and its limit."""

    what: str
    value: float
    limit: float

    @property
    def kept(self) -> bool:
        """Return whether the limit is kept."""
        return self.value <= self.limit


def service(number: int) -> tuple[str, Object]:
    """Return the namespace and manifest of one service: two GPUs, one coordinator."""
    namespace = f"scale-{number // SERVICES_PER_NAMESPACE}"
    body = small_service(f"s{number:04}", gpus=2)
    body["metadata"]["namespace"] = namespace
    body["spec"]["capacity"]["pools"][0]["degrees"] = [1]
    return namespace, body


def make(bare: Bare, count: int) -> None:
    """Create so many services."""
    made = [service(number) for number in range(count)]
    admin = bare.kubeconfig()
    spaces = sorted({namespace for namespace, _ in made})
    kubectl.apply(admin, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in spaces])
    for at in range(0, count, SERVICES_PER_NAMESPACE):
        kubectl.apply(admin, [body for _, body in made[at : at + SERVICES_PER_NAMESPACE]], timeout=600)


def client(bare: Bare) -> httpx.Client:
    """Return an HTTP client that may do everything."""
    trust = ssl.create_default_context(cafile=str(bare.authority))
    return httpx.Client(base_url=bare.url, headers={"Authorization": f"Bearer {ADMIN}"}, verify=trust, timeout=120)


def await_ready(http: httpx.Client, count: int, *, timeout_s: float, says: Says) -> float:
    """Wait until so many services are ready; return the seconds it took."""
    began, last = time.monotonic(), 0

    def ready() -> bool:
        nonlocal last
        items = http.get(f"{SERVICES}/disagginferenceservices").json()["items"]
        now = sum(_is_ready(item) for item in items)
        if now >= last + count // 10:
            last = now
            says(f"{now} of {count} services are ready after {time.monotonic() - began:.0f} s")
        return now >= count

    until(ready, what=f"{count} ready services", timeout_s=timeout_s, every_s=5.0, last=lambda: f"{last} are")
    return time.monotonic() - began


def objects(http: httpx.Client) -> int:
    """Return how many services and groups there are: each has passes of its own."""
    kinds = ("disagginferenceservices", "workergroups")
    return sum(len(http.get(f"{SERVICES}/{kind}", headers=NAMES_ONLY).json()["items"]) for kind in kinds)


def await_passes(operator: Operator, count: int, *, timeout_s: float) -> None:
    """Wait until the operator has made so many passes."""
    until(
        lambda: operator.total(PASSES) >= count,
        what=f"{count} passes",
        timeout_s=timeout_s,
        every_s=0.2,
        last=lambda: f"{operator.total(PASSES):.0f} were made",
    )


def await_rest(operator: Operator, *, timeout_s: float) -> None:
    """Wait until what was woken is done: ten seconds with fewer than twenty passes."""

    def rests() -> bool:
        before = operator.total(PASSES)
        time.sleep(10)
        return operator.total(PASSES) - before < 20

    until(rests, what="an operator at rest", timeout_s=timeout_s, every_s=0.0)


def idle(operator: Operator, *, started: float, seconds: float) -> tuple[ScaleFigure, ScaleFigure]:
    """Return what an operator asks of the API server while nothing happens, a second, and its memory.

    The first resync comes a minute after its start (``started``, by the monotonic clock); what is measured is after it.
    """
    time.sleep(max(0.0, started + RESYNC_PERIOD_S + 15 - time.monotonic()))
    before, began = operator.total(REQUESTS), time.monotonic()
    time.sleep(seconds)
    rate = (operator.total(REQUESTS) - before) / (time.monotonic() - began)
    return (
        ScaleFigure("API requests a second, idle", rate, IDLE_REQUESTS_PER_S),
        ScaleFigure("resident memory, MiB", operator.resident_mib(), MEMORY_MIB),
    )


def acted(bare: Bare, count: int, *, changes: int) -> ScaleFigure:
    """Change specs one after the other; return the 99th percentile of the seconds until the operator has acted."""
    chosen = random.Random(6).sample(range(count), min(changes, count))  # noqa: S311 - the same in every run
    seen: dict[str, float] = {}
    over = threading.Event()
    with client(bare) as http, client(bare) as watching:
        watch = threading.Thread(target=_watch, args=(watching, seen, over), daemon=True)
        watch.start()
        sent: dict[str, float] = {}
        for number in chosen:
            namespace, body = service(number)
            name = body["metadata"]["name"]
            path = f"{SERVICES}/namespaces/{namespace}/disagginferenceservices/{name}"
            sent[name] = time.monotonic()
            patch = {"spec": {"coordinator": {"replicas": 2}}}
            http.patch(path, json=patch, headers={"Content-Type": "application/merge-patch+json"}).raise_for_status()
            time.sleep(1 / CHANGES_PER_S)
        until(lambda: sent.keys() <= seen.keys(), what="an act on each change", timeout_s=120)
        over.set()
    took = sorted(seen[name] - at for name, at in sent.items())
    return ScaleFigure(
        "seconds until a changed spec is acted upon, P99", took[int(0.99 * (len(took) - 1))], ACTED_P99_S
    )


def _watch(http: httpx.Client, seen: dict[str, float], over: threading.Event) -> None:
    """Note when each Deployment asks for two coordinators, until the API server ends the watch or has more to say."""
    with suppress(httpx.HTTPError), http.stream("GET", "/apis/apps/v1/deployments", params={"watch": "true"}) as answer:
        for line in answer.iter_lines():
            item = json.loads(line)["object"]
            if item.get("spec", {}).get("replicas") == 2:
                seen.setdefault(item["metadata"]["name"], time.monotonic())
            if over.is_set():
                return


def _is_ready(item: Object) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
