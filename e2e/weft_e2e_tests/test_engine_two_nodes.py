"""Real vLLM engines in pods of two nodes, deployed by the operator: KV goes both ways, answers are a plain one's."""

import asyncio
import json
import math
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from weft_e2e.demo.real_engines import problems, table, talk
from weft_e2e.engines.counters import counters, reads, sources
from weft_e2e.engines.deployed import apply_example, remove_example, wait_ready
from weft_e2e.engines.environment import environment
from weft_e2e.engines.host_image import host_image
from weft_e2e.engines.pods import cut, keeping_on_cores, kill_engine
from weft_e2e.engines.process import EngineProcess
from weft_e2e.kube import Condition
from weft_e2e.replay.client import Target
from weft_e2e.scenarios.installed import Installed
from weft_e2e.service import Service, component_of
from weft_e2e.waiting import until
from weft_e2e_tests.engine_pods import Pods
from weft_e2e_tests.engine_stack import LONG, MODEL, ROUND_S, Chat, ToldError, wanted

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.engine,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_ENGINE"), reason="real engines: make e2e-engine"),
    pytest.mark.skipif(os.geteuid() != 0, reason="pods need a local cluster, which needs root"),
]

READY_S = 300.0
"""120 s on a machine that does nothing else; tests share theirs. How long it took is printed."""
FIRST = "Weaving begins with the warp, the set of threads that are held in tension on the loom. " * 8
LATER = "And then the weft goes back and forth between them, over one thread and under the next. " * 2
ROUNDS = {stream: (f"{FIRST} {stream}", LATER, LATER) for stream in (False, True)}
AROUND = 16
"""Tokens that the chat template puts around a message and an answer, or more."""
OF_A_PROOF = 128
"""Tokens that a proof has computed in two legs: fewer than an answer has, so that one does not hide the other."""
PROOF_S = 12
"""Short, so that a way that is cut or mended is soon found; long enough for a round between two proofs."""
STRANGER = """
import json, sys, urllib.error, urllib.request
body = json.dumps(json.loads(sys.argv[1])).encode()
asked = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions", body, {"Content-Type": "application/json"})
try:
    print(urllib.request.urlopen(asked, timeout=60).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


@pytest.fixture(scope="module")
def answers(plain: EngineProcess) -> dict[bool, list[str]]:
    """Return what a plain engine answers, which then leaves both cores to the others."""
    if not plain.alive:
        plain.start_again()
    plain.wait()
    found = {stream: _conversation(plain.url, texts) for stream, texts in ROUNDS.items()}
    plain.end()
    return found


def _conversation(url: str, texts: tuple[str, ...]) -> list[str]:
    messages: list[dict[str, str]] = []
    for text in texts:
        messages.append({"role": "user", "content": text})
        reply = httpx.post(f"{url}/v1/chat/completions", json=wanted(messages, LONG), timeout=ROUND_S)
        messages.append(reply.raise_for_status().json()["choices"][0]["message"])
        messages[-1] = {"role": "assistant", "content": messages[-1]["content"]}
    return [message["content"] for message in messages if message["role"] == "assistant"]


@pytest.fixture(scope="module")
def pods(weft: Installed, answers: dict[bool, list[str]]) -> Iterator[Pods]:
    """Apply the example in a namespace under the restricted Pod Security standard, as in docs/examples."""
    assert answers
    assert weft.local is not None, "the volume is a folder of this machine: run on a local cluster"
    image, namespace = host_image(), f"tiny-engines-{secrets.token_hex(3)}"
    weft.local.load([image])
    nodes = [node.name for node in weft.local.nodes()]
    begun = time.monotonic()
    try:
        service = apply_example(
            weft.kube, environment(), image=image, nodes=nodes, namespace=namespace, proof_s=PROOF_S
        )
        try:
            names = wait_ready(service, timeout_s=READY_S)
        except Exception:
            _tell(service)
            raise
        print(f"Ready {time.monotonic() - begun:.0f} s after apply", file=sys.stderr)  # noqa: T201 - a figure to note
        assert len({pod["spec"]["nodeName"] for pod in service.pods() if component_of(pod) in names}) == 2
        with service.reachable() as target, counters(names) as metrics:
            yield Pods(service, target.url, names, metrics)
    finally:
        remove_example(weft.kube, namespace)


def _tell(service: Service) -> None:
    """Print what pods and engines say, before they are gone."""
    for words in (("get", "pods", "-o", "wide"), ("describe", "pods"), ("get", "dis", "-o", "yaml")):
        print(service.kube.kubectl("-n", service.namespace, *words, check=False).stdout[-6000:])  # noqa: T201
    for pod in service.pods():
        name = pod["metadata"]["name"]
        asked = ("logs", name, "--all-containers", "--prefix", "--tail=60")
        said = service.kube.kubectl("-n", service.namespace, *asked, check=False)
        print(f"--- {name}\n{said.stdout}{said.stderr}")  # noqa: T201


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_rounds_hand_kv_over_between_nodes_both_ways(pods: Pods, answers: dict[bool, list[str]], stream: bool) -> None:
    """Counters are looked at when the last round is over: meanwhile the time would run for which a handle is good.

    A round that comes after it is rightly prefilled where its history is, and pages take seconds on a busy machine.
    """
    until_measured(pods)
    chat = Chat(pods.url, stream, LONG, session=f"nodes-{stream}")
    (_, *later), before = ROUNDS[stream], pods.pages()
    since = before
    for number, text in enumerate(ROUNDS[stream], start=1):
        begun = time.monotonic()
        answer = chat.ask(text)
        print(f"round {number}: {time.monotonic() - begun:.1f} s", file=sys.stderr)  # noqa: T201 - a figure to note
        assert answer == answers[stream][number - 1], f"round {number}"
        if chat.route != "remote":
            _tell(pods.service)
        assert chat.route == "remote", f"round {number}: {pods.why(before)}"
        if number == 1:
            since = pods.pages()
    until_read(pods, before, decode=1 + len(later), prefill=len(later))
    grown = pods.grown(since)
    assert grown.total("weft_router_kv_handles_total", outcome="used") == len(later), pods.why(before)
    came = sources(grown, "prefill")
    proofs = (grown.by_page("vllm:request_success_total")["prefill"] - len(later)) / 2
    assert came.computed <= sum(len(text) + AROUND for text in later) + math.ceil(proofs) * OF_A_PROOF, (
        f"history was computed again: {came}, beside {proofs:g} proofs; {pods.why(before)}"
    )


def test_the_demo_of_real_engines_shows_whence_each_prompt_came(pods: Pods) -> None:
    before = pods.pages()
    heard = asyncio.run(talk(Target(pods.url, MODEL, run=f"{secrets.token_hex(3)}-"), pods.metrics))
    print(*table(heard), sep="\n", file=sys.stderr)  # noqa: T201 - figures to note
    routes = [one.record.route for one in heard]
    if routes != ["remote"] * 3:
        _tell(pods.service)
    assert routes == ["remote"] * 3, pods.why(before)
    assert problems(heard) == ()


def until_measured(pods: Pods) -> None:
    """Wait until the path is proven and measured: a proof that measures has an engine compute thousands of tokens."""
    until(
        lambda: "GB/s" in getattr(pods.service.conditions().get("KVTransportVerified"), "message", ""),
        what="figures of the KV path",
        timeout_s=READY_S,
        last=lambda: str(pods.service.conditions().get("KVTransportVerified")),
    )


def until_read(pods: Pods, before: dict[str, str], **times: int) -> None:
    """Wait until engines, by role, have read each other's KV so often since; proofs of the path read, too."""
    until(
        lambda: all(reads(pods.grown(before)).get(role, 0) >= least for role, least in times.items()),
        what=f"reads of KV, {times}",
        timeout_s=120,
        last=lambda: f"{reads(pods.grown(before))}; {pods.why(before)}",
    )


def test_the_plug_in_is_active_and_knows_the_sidecar_by_the_proof(pods: Pods) -> None:
    for kind, reason in (("EnginePlugin", "PluginActive"), ("KVTransportVerified", "TransportVerified")):
        until(
            lambda kind=kind, reason=reason: pods.condition(kind) == ("True", reason),  # type: ignore[misc]
            what=f"the condition {kind}",
            timeout_s=90,
            last=lambda kind=kind: str(pods.service.conditions().get(kind)),  # type: ignore[misc]
        )
    body = {**wanted([{"role": "user", "content": "hello"}], 2), "kv_transfer_params": {"do_remote_decode": True}}
    for name in pods.names.values():
        asked = ("exec", name, "-n", pods.service.namespace, "-c", "engine", "--", "/usr/bin/python3", "-c", STRANGER)
        said = pods.service.kube.kubectl(*asked, json.dumps(body), timeout=90).stdout
        assert said.startswith("400 "), said
        assert "only the router may send these" in said

    said = pods.service.conditions()["KVTransportVerified"].message
    assert said.startswith("KV is transferred between all 1 pairs over tcp, at "), said
    print(said, file=sys.stderr)  # noqa: T201 - a figure to note


SIDE_CHANNEL = ("-p", "tcp", "--dport", "5600")
DATA = ("-p", "tcp", "--sport", "32768:60999", "--dport", "32768:60999")
CUTS = {"side-channel": (SIDE_CHANNEL, ("SideChannelClosed",)), "data": (DATA, ("TransferFailed", "DataPortsClosed"))}
KILLED_S = 180.0
"""An engine that starts, and two proofs of its paths."""
TOLD_S = 240.0
"""Some seconds for each proof, twice 20 s where a read hangs and no silent port is seen, and time for the operator."""


@pytest.mark.parametrize("kind", CUTS)
def test_a_way_that_is_cut_between_the_nodes_is_told_and_not_used_until_it_is_mended(pods: Pods, kind: str) -> None:
    """Rounds of a path that is closed are prefilled where they decode; nobody waits for the other engine."""
    match, reasons = CUTS[kind]
    goes(pods, f"before {kind}", "remote")
    with cut(pods.names["prefill"], *match), cut(pods.names["decode"], *match):
        began = time.monotonic()
        until(
            lambda: pods.condition("KVTransportVerified") in [("False", reason) for reason in reasons],
            what=f"a condition that tells of {kind}",
            timeout_s=TOLD_S,
            every_s=2.0,
            last=lambda: str(pods.service.conditions().get("KVTransportVerified")),
        )
        said = pods.service.conditions()["KVTransportVerified"]
        took = time.monotonic() - began
        print(f"{kind}: {said.reason} after {took:.0f} s: {said.message}", file=sys.stderr)  # noqa: T201 - to note
        goes(pods, f"during {kind}", "local")
        assert ask(pods, f"still {kind}") == "local"
    began = time.monotonic()
    until(
        lambda: pods.condition("KVTransportVerified") == ("True", "TransportVerified"),
        what=f"a condition that tells of no {kind}",
        timeout_s=TOLD_S,
        every_s=2.0,
        last=lambda: str(pods.service.conditions().get("KVTransportVerified")),
    )
    print(f"{kind}: mended after {time.monotonic() - began:.0f} s", file=sys.stderr)  # noqa: T201 - a figure to note
    goes(pods, f"after {kind}", "remote")


def goes(pods: Pods, word: str, route: str) -> None:
    """Wait until rounds take a route: one sidecar may have told the operator what the other one is about to see."""
    until(lambda: ask(pods, word) == route, what=f"a {route} round, {word}", timeout_s=90, every_s=1.0)


def ask(pods: Pods, word: str) -> str:
    """Ask one short round of a session of its own, and return its route."""
    session = f"{word} {secrets.token_hex(3)}"
    chat = Chat(pods.url, stream=True, session=session.replace(" ", "-"))
    try:
        chat.ask(f"{session} {FIRST}")
    except ToldError:
        _tell(pods.service)
        raise
    return chat.route


def test_an_engine_that_is_killed_is_started_again_and_read_from_again(pods: Pods) -> None:
    goes(pods, "before it is killed", "remote")
    kill_engine(pods.names["prefill"])
    assert ask(pods, "while it is gone") == "local"
    began = time.monotonic()
    with keeping_on_cores(pods.engines()):
        until(lambda: ask(pods, "when it is back") == "remote", what="a remote round", timeout_s=KILLED_S, every_s=2.0)
    print(f"killed: read from again after {time.monotonic() - began:.0f} s", file=sys.stderr)  # noqa: T201 - to note
    until(
        lambda: pods.condition("KVTransportVerified") == ("True", "TransportVerified"),
        what="KV paths that are proven again",
        timeout_s=KILLED_S,
        last=lambda: str(pods.service.conditions().get("KVTransportVerified")),
    )
    until_idle(pods)


def test_a_client_that_leaves_leaves_no_kv(pods: Pods) -> None:
    body = {**wanted([{"role": "user", "content": f"cancel {FIRST}"}]), "stream": True, "max_tokens": 3000}
    with httpx.stream("POST", f"{pods.url}/v1/chat/completions", json=body, timeout=ROUND_S) as reply:
        next(part for part in reply.iter_bytes() if b"content" in part)
    until_idle(pods)


def until_idle(pods: Pods) -> None:
    """Wait until neither engine keeps KV for anybody; a proof that is under way may keep some for a moment."""
    until(
        lambda: not any(pods.kv_usage().values()),
        what="engines without pinned KV",
        timeout_s=300,
        every_s=2.0,
        last=lambda: str(pods.kv_usage()),
    )


def test_workers_that_leave_leave_no_kv_in_others(pods: Pods) -> None:
    pods.patch({"planning": {"mode": "Off"}})
    until(pods.heeded, what="a service whose workers are scaled by hand", timeout_s=60)
    kube, space = pods.service.kube, ("-n", pods.service.namespace)
    groups = json.loads(kube.kubectl(*space, "get", "workergroups", "-o", "json").stdout)["items"]
    for role in ("prefill", "decode"):
        (group,) = [item["metadata"]["name"] for item in groups if item["spec"]["role"] == role]
        kube.kubectl(*space, "scale", "workergroup", group, "--replicas=0")
        until(lambda role=role: not pods.of(role), what=f"an end of {role}", timeout_s=120)  # type: ignore[misc]
        if pods.of("decode"):
            until(
                lambda: not pods.kv_usage("decode")["decode"],
                what="a decode engine that keeps nothing for who has left",
                timeout_s=120,
                every_s=2.0,
                last=lambda: str(pods.kv_usage("decode")),
            )


BUDGETS_S = (90, 270)
"""For timing: the first is enough on a machine that does nothing else."""
MEASURED_S = 310.0
"""Two engines that start, and a fit."""
TOO_FEW = re.compile(r"\d shapes of (prefill|step); measure 4 or more")


@pytest.mark.timeout(1500, func_only=True)
def test_the_operator_measures_such_engines_in_pods_of_their_own(pods: Pods) -> None:
    """Last, and without those that serve: four engines would have no time of two cores that is worth measuring.

    A busy machine times fewer shapes within a budget, and noise spoils some of them. Where a fit needs more of them, or
    predicts too badly, this test gives more time, as a user would.
    """
    assert not pods.engines(), "the test before this one has them leave"
    first, second = BUDGETS_S
    said = measured(pods, budget_s=first)
    if said.reason == "MeasurementUnusable" or (said.reason == "MeasurementFailed" and TOO_FEW.search(said.message)):
        said = measured(pods, budget_s=second)
    assert said.reason == "Measured", said.message
    found = pods.service.kube.kubectl("-n", pods.service.namespace, "get", "costprofiles", "-o", "json").stdout
    (profile,) = json.loads(found)["items"]
    (row,) = profile["spec"]["degrees"]
    assert row["fit"]["prefill"]["points"] >= 4
    assert row["fit"]["step"]["points"] >= 4
    ways = profile["spec"]["provenance"]["transferWays1"]
    assert "there " in ways, ways
    assert "back " in ways, ways


def measured(pods: Pods, *, budget_s: int) -> Condition:
    """Have the operator measure for so long and return what it says then; the log of who measures is printed."""
    kube, space = pods.service.kube, ("-n", pods.service.namespace)
    pods.patch({"profile": {"measure": None}})
    # A Job that failed is kept for its log, and is the reason why there is no other try for an hour.
    kube.kubectl(*space, "delete", "jobs", "-l", "app.kubernetes.io/component=profile", "--timeout=50s")
    until(
        lambda: pods.condition("ProfileMeasured") == ("", "") and not pods.of("profile"),
        what="an end of earlier Jobs",
        timeout_s=60,
    )
    begun = time.monotonic()
    pods.patch({"profile": {"measure": {"budget": f"{budget_s}s", "extraGpus": 2}}})
    until(lambda: len(pods.of("profile")) == 2, what="both engines' pods", timeout_s=60)
    try:
        with keeping_on_cores(pods.of("profile")):
            until(
                lambda: pods.condition("ProfileMeasured")[0] in ("True", "False"),
                what="an end of measuring",
                timeout_s=MEASURED_S + budget_s,
                every_s=2.0,
                last=lambda: str(pods.service.conditions().get("ProfileMeasured")),
            )
    finally:
        for name in pods.of("profile"):  # one measures, the other has nothing but its engine
            told = kube.kubectl(*space, "logs", name, "-c", "profile", "--tail=80", check=False)
            print(f"--- {name}\n{told.stdout}{told.stderr}", file=sys.stderr)  # noqa: T201 - to note
    said = pods.service.conditions()["ProfileMeasured"]
    print(f"{said.reason} after {time.monotonic() - begun:.0f} s: {said.message}", file=sys.stderr)  # noqa: T201 - to note
    return said
