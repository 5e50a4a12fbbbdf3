"""A service at zero on a real cluster: its pods leave, and a request brings them back: `make e2e-replan` plays it."""

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import click
import pytest

from weft_e2e import kube
from weft_e2e.checks import check_condition, check_ready
from weft_e2e.checks.sessions import expected_reply
from weft_e2e.metrics import parse
from weft_e2e.scenarios.installed import Installed
from weft_e2e.scenarios.resting import AFTER_S, HOLD_S, ask, models, resting_service
from weft_e2e.service import Service
from weft_e2e.waiting import until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_REPLAN"), reason="takes minutes: make e2e-replan"),
]

WORDS, TOKENS = "Tell me what you did while nobody asked.", 8
SLACK_S = 30.0
"""What a busy machine may add to a time that the coordinator keeps."""


def test_idle_workers_leave_and_a_held_request_brings_them_back(weft: Installed, namespace: str) -> None:
    manifest = resting_service()
    model = manifest["spec"]["model"]["name"]
    weft.kube.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(manifest))
    service = Service(weft.kube, namespace, manifest["metadata"]["name"])
    check_ready(service, timeout_s=150)

    with service.reachable() as target, ThreadPoolExecutor(1) as client:
        assert ask(target, WORDS, tokens=TOKENS).status == 200
        begun = time.monotonic()
        check_condition(service, "Ready", "True", {"ScaledToZero"}, timeout_s=2 * AFTER_S + 60)
        assert time.monotonic() - begun >= AFTER_S - 1, "no earlier than it may"
        until(lambda: not workers(service), what="no worker pods", timeout_s=60, last=lambda: str(workers(service)))
        assert [kube.pod_ready(pod) for pod in service.pods("coordinator")] == [True]
        assert models(target) == [model]
        click.echo(f"{time.monotonic() - begun:6.1f} s  no worker pods, {model} is listed")

        with no_room(weft):
            refused = ask(target, WORDS, tokens=TOKENS)
            assert refused.status == 503, refused
            assert refused.retry_after_s, refused
            assert HOLD_S - 1 <= refused.seconds <= HOLD_S + SLACK_S, refused
            assert workers(service), "they were asked for all the same"
            assert not any(map(kube.pod_ready, workers(service).values())), "there is no room for them"
            click.echo(f"{time.monotonic() - begun:6.1f} s  503 after {refused.seconds:.1f} s: {refused.text}")

            held = client.submit(ask, target, WORDS, tokens=TOKENS)
            until(lambda: waiting(service) == 1, what="a request that is held", timeout_s=HOLD_S)
            assert not any(map(kube.pod_ready, workers(service).values()))
        reply = held.result(timeout=HOLD_S + 90)
        click.echo(f"{time.monotonic() - begun:6.1f} s  {reply.status} after {reply.seconds:.1f} s")
        assert reply.status == 200, reply
        assert reply.text == expected_reply([{"role": "user", "content": WORDS}], TOKENS)
        check_ready(service, timeout_s=90)


def workers(service: Service) -> dict[str, kube.Object]:
    """Return the worker pods, leaving ones included."""
    return {pod["metadata"]["name"]: pod for role in ("prefill", "decode") for pod in service.pods(role)}


def waiting(service: Service) -> float:
    """Return how many requests the coordinators hold now."""
    pages = service.metrics_pages()
    found = [value for page in pages.values() for (name, _), value in parse(page).samples.items() if name == _HELD]
    return sum(found)


_HELD = "weft_router_held"


@contextmanager
def no_room(weft: Installed) -> Iterator[None]:
    """Keep new pods off all nodes of a local cluster for as long as the block runs."""
    if weft.local is None:
        pytest.skip("nodes are closed on a local cluster only")
    names = [node.name for node in weft.local.nodes()]
    weft.kube.kubectl("cordon", *names)
    try:
        yield
    finally:
        weft.kube.kubectl("uncordon", *names)
