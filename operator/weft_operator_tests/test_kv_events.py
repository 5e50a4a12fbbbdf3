"""KV events: the flags of engines and the settings of sidecars, for one rank and several, on one node and several."""

import json
from typing import Any

import pytest

from weft_core.parallelism import Degree, degree_of
from weft_core.plan import Role
from weft_mock.kv_events_config import KvEventsConfig, events_config
from weft_mock.kv_transfer_config import check_transfer_config
from weft_operator.api.engine_flags import EngineType, is_managed
from weft_operator.api.objects import Manifest
from weft_operator.commands.manifest_checks import service_messages
from weft_operator.render.engines.kv_events import KV_EVENTS_PORT, REPLAY_PORT
from weft_operator_tests.invalid_kv_cache import CPU, with_tiers
from weft_operator_tests.samples import rendered, rendering
from weft_operator_tests.test_kv_cache import connectors, container, flag
from weft_operator_tests.test_render_golden import pinned
from weft_operator_tests.valid import (
    REMOVED,
    changed,
    neuron_service,
    service,
    sglang_service,
    tensorrt_llm_service,
    vllm_service,
)


def with_events(body: Manifest) -> Manifest:
    """Return a service whose engines publish KV events."""
    return changed(body, "spec.engine.kvEvents", "Enabled")


BODIES = {"mock": with_events(service()), "vllm": with_events(vllm_service()), "sglang": with_events(sglang_service())}


@pytest.mark.parametrize("engine", sorted(BODIES))
def test_workers_are_those_of_the_golden_file(engine: str) -> None:
    """The arguments of engines and the variables of sidecars that differ from those of a service without events."""
    before = workers(changed(BODIES[engine], "spec.engine.kvEvents", REMOVED))
    after = workers(BODIES[engine])
    pinned(f"kv-events-{engine}", [added(old, new) for old, new in zip(before, after, strict=True) if old != new])


def workers(body: Manifest) -> list[Manifest]:
    return [settings(item) for item in rendered(rendering(body)) if item["kind"] == "StatefulSet"]


def settings(item: Manifest) -> Manifest:
    """Return the arguments and variables of an object's containers, by the container's name."""
    pod = item["spec"]["template"]["spec"]
    containers = (*pod.get("initContainers", ()), *pod.get("containers", ()))
    found = {one["name"]: [*one.get("args", ()), *map(json.dumps, one.get("env", ()))] for one in containers}
    return {"name": item["metadata"]["name"], "containers": found}


def added(old: Manifest, new: Manifest) -> Manifest:
    both = {name: (old["containers"][name], words) for name, words in new["containers"].items()}
    assert all(word in after for before, after in both.values() for word in before), "nothing is gone"
    found = {name: [w for w in after if w not in before] for name, (before, after) in both.items()}
    return {**new, "containers": {name: words for name, words in found.items() if words}}


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("engine", ["mock", "vllm"])
def test_events_stay_on_the_loopback_device(engine: str, role: Role) -> None:
    found = container(BODIES[engine], role)
    config = flag(found, "--kv-events-config")
    assert events_config(config) == KvEventsConfig(KV_EVENTS_PORT, REPLAY_PORT)
    assert found.kv_events_port == KV_EVENTS_PORT


def test_sglangs_decode_workers_have_no_cache_to_tell_of() -> None:
    prefill, decode = container(BODIES["sglang"], "prefill"), container(BODIES["sglang"], "decode")
    assert json.loads(flag(prefill, "--kv-events-config")) == {
        "publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{KV_EVENTS_PORT}",
        "replay_endpoint": f"tcp://127.0.0.1:{REPLAY_PORT}",
    }  # fmt: skip
    assert (prefill.kv_events_port, decode.kv_events_port) == (KV_EVENTS_PORT, 0)
    assert not any("kv-events" in arg for arg in decode.args)


@pytest.mark.parametrize(
    ("degree", "nodes", "published"),
    [(degree_of(dp=8), 1, True), (degree_of(dp=16), 2, False), (degree_of(tp=16), 2, True)],
)
def test_ranks_on_several_nodes_publish_nothing(degree: Degree, nodes: int, published: bool) -> None:
    found = container(BODIES["vllm"], degree=degree, nodes=nodes)
    assert bool(found.kv_events_port) is published
    assert any("kv-events" in arg for arg in found.args) is published


def test_without_the_field_nothing_is_published() -> None:
    for body in (service(), vllm_service(), sglang_service()):
        found = container(body)
        assert not found.kv_events_port
        assert not any("kv-events" in arg for arg in found.args)


def test_connectors_of_tiers_name_each_block() -> None:
    found = container(with_tiers(BODIES["vllm"], cpu=CPU))
    assert connectors(found)["OffloadingConnector"]["self_describing_kv_events"] is True
    check_transfer_config(flag(found, "--kv-transfer-config"), bidirectional=True)
    assert "self_describing_kv_events" not in connectors(container(with_tiers(vllm_service(), cpu=CPU)))


@pytest.mark.parametrize("engine", ["mock", "vllm"])
def test_the_tier_of_files_publishes_its_blocks(engine: str) -> None:
    cache = with_tiers(BODIES[engine], cpu=CPU, disk={"size": "2Ti"})
    text = flag(container(cache), "--kv-transfer-config")
    if engine == "vllm":
        pinned("kv-events-vllm-disk", [json.loads(text)])
    assert check_transfer_config(text, bidirectional=True) is True
    quiet = changed(cache, "spec.engine.kvEvents", REMOVED)
    assert "enable_kv_events" not in flag(container(quiet), "--kv-transfer-config")


@pytest.mark.parametrize("body", [neuron_service(), tensorrt_llm_service()])
def test_engines_without_events_are_refused(body: Manifest) -> None:
    messages: Any = service_messages(with_events(body))
    assert any(
        "spec.engine.kvEvents: tensorrt-llm and neuron publish no KV events; remove it" in str(one) for one in messages
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang", "mock"])
def test_the_flag_is_the_operators(engine: EngineType) -> None:
    assert is_managed(engine, "--kv-events-config={}")


def test_events_make_no_other_revision() -> None:
    body = vllm_service()
    assert rendering(with_events(body)).revision == rendering(body).revision
