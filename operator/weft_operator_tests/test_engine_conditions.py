"""What a service says of its engines' plug-in, from what their sidecars say."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from weft_core.adapters import adapter_version
from weft_core.heartbeat import WorkerRecord
from weft_operator.status.adapters import check_adapters
from weft_operator.status.engine_conditions import (
    PROOF_S,
    RECHECK_S,
    EngineCheck,
    EngineCondition,
    engine_checks,
    next_check_s,
)
from weft_operator.status.engine_plugin import check_plugin
from weft_operator.status.events import status_events
from weft_operator.status.kv_transport import check_transport
from weft_operator_tests.samples import KEY
from weft_operator_tests.valid import changed, spec, vllm_service
from weft_operator_tests.world import serving, summary

EXPECTED = changed(vllm_service(), "spec.engine.plugin", "Expected")


def beats(words: Mapping[str, str], version: str = "0.32.0") -> dict[str, WorkerRecord]:
    """Return heartbeats of engines that hand KV to each other; workers whose names have w4 prefill."""
    prefill = [name for name in words if "-w4-" in name]
    said = {}
    for name, word in words.items():
        many = len(words) - len(prefill) if name in prefill else len(prefill)
        said[name] = WorkerRecord(
            name, "prefill" if name in prefill else "decode", "http://x", 1, 1, engine_plugin=word,
            engine_version=version, kv_open=many, kv_proven=-1 if name in prefill else many,
        )  # fmt: skip
    return said


@pytest.mark.parametrize(
    ("words", "reason", "names"),
    [
        ({"a": "active", "b": "active"}, "PluginActive", ("all 2 engines", "vLLM 0.32.0")),
        ({"a": "active", "b": "absent"}, "PluginAbsent", ("answers at b:", "VLLM_PLUGINS")),
        ({"a": "absent", "b": "off"}, "PluginOff", ("vLLM 0.32.0", "at b:")),
        ({"a": "active", "b": ""}, "NotYetReported", ("1 of 2",)),
        ({"a": "active"}, "NotYetReported", ("1 of 2",)),
    ],
)
def test_the_message_names_the_engine_and_the_remedy(
    words: dict[str, str], reason: str, names: tuple[str, ...]
) -> None:
    said = check_plugin(["a", "b"], beats(words))
    assert said is not None
    assert said[1] == reason
    assert all(name in said[2] for name in names), said[2]


def test_workers_that_do_not_serve_are_not_asked() -> None:
    assert check_plugin(["a"], beats({"a": "active", "b": "absent"})) == check_plugin(["a"], beats({"a": "active"}))


PLUGIN: dict[EngineCondition, EngineCheck] = {"EnginePlugin": check_plugin}
PATHS: dict[EngineCondition, EngineCheck] = {"KVTransportVerified": check_transport}


def test_a_lost_event_is_made_up_for_by_the_next_one() -> None:
    assert next_check_s(PLUGIN, ["a"], {}) is None
    assert next_check_s(PLUGIN, ["a"], beats({"a": "active"})) is None
    assert next_check_s(PLUGIN, ["a"], beats({"a": ""})) == RECHECK_S
    assert next_check_s(PLUGIN, ["a", "b"], beats({"a": "active"})) == RECHECK_S


def pair(*, prefill: dict[str, Any], decode: dict[str, Any]) -> dict[str, WorkerRecord]:
    return {
        "p": WorkerRecord("p", "prefill", "http://p", 1, 1, revision="r", **prefill),
        "d": WorkerRecord("d", "decode", "http://d", 1, 1, revision="r", **decode),
    }


PROVEN = {"kv_open": 1, "kv_proven": 1, "kv_transports": ("tcp",), "kv_bytes_per_s": 2e8, "kv_latency": 0.007}
CLOSED = {"kv_open": 0, "kv_faults": (("d", "side-channel"),)}


def faulty(fault: str) -> dict[str, Any]:
    return {"kv_open": 1, "kv_proven": 0, "kv_faults": (("p", fault),)}


@pytest.mark.parametrize(
    ("prefill", "decode", "reason", "words", "again"),
    [
        ({"kv_open": 1}, PROVEN, "TransportVerified", "1 pairs over tcp, at 0.2 GB/s or more, the first", None),
        ({"kv_open": 1}, {"kv_open": 1, "kv_proven": 1}, "TransportVerified", "pairs; rates are measured when", None),
        ({"kv_open": 1}, {"kv_open": 1, "kv_proven": 0}, "NotYetProven", "between 0 of 1 pairs", RECHECK_S),
        ({"kv_open": 1}, {"kv_open": 1}, "NotYetProven", "between 0 of 0", RECHECK_S),
        (CLOSED, PROVEN, "SideChannelClosed", "port 5600 is not reached from p to d: nothing is", PROOF_S / 2),
        ({"kv_open": 1}, faulty("data-port"), "DataPortsClosed", "do not answer from d to p: nothing is", PROOF_S / 2),
        ({"kv_open": 1}, faulty("transfer"), "TransferFailed", "from d to p: nothing is prefilled over", PROOF_S / 2),
        ({"kv_open": 1}, faulty("transport"), "WrongTransport", "see UCX_TLS in spec.engine.env", PROOF_S / 2),
        (CLOSED, faulty("transfer"), "SideChannelClosed", "p to d", PROOF_S / 2),
        ({"kv_open": 0}, {"kv_open": 1}, "NotYetTried", "not every", RECHECK_S),
        ({}, {}, "NotYetTried", "not every", None),  # sidecars that try nothing will never tell
    ],
)
def test_paths_are_reported_by_pair(
    prefill: dict[str, Any], decode: dict[str, Any], reason: str, words: str, again: float | None
) -> None:
    records = pair(prefill=prefill, decode=decode)
    said = check_transport(["p", "d"], records)
    assert said is not None
    assert said[1] == reason
    assert words in said[2]
    assert next_check_s(PATHS, ["p", "d"], records) == again


@pytest.mark.parametrize(("proof_s", "again"), [(None, None), (3600, 1800), (20, 10), (2, RECHECK_S)])
def test_paths_that_are_proven_often_are_looked_at_as_often(proof_s: float | None, again: float | None) -> None:
    records = pair(prefill={"kv_open": 1}, decode=PROVEN)
    assert next_check_s(PATHS, ["p", "d"], records, proof_s=proof_s) == again
    assert next_check_s(PLUGIN, ["p"], beats({"p": "active"}), proof_s=proof_s) is None
    assert next_check_s(PATHS, ["p", "d"], {}, proof_s=proof_s) is None


@pytest.mark.parametrize("fault", ["side-channel", "data-port", "transfer", "transport"])
def test_a_way_over_which_kv_stops_is_a_warning(fault: str) -> None:
    def status(**decode: Any) -> dict[str, Any]:
        said = check_transport(["p", "d"], pair(prefill={"kv_open": 1}, decode=decode))
        assert said is not None
        known = {"type": "KVTransportVerified", "observedGeneration": 1, "lastTransitionTime": "now"}
        return {"conditions": [{**known, "status": said[0], "reason": said[1], "message": said[2]}]}

    (event,) = status_events(status(**PROVEN), status(**faulty(fault)), actions=())
    assert event.type == "Warning"
    assert "d to p" in event.message
    assert status_events({}, status(kv_open=1, kv_proven=0), actions=()) == ()


def test_workers_of_another_revision_need_no_path() -> None:
    old = WorkerRecord("q", "prefill", "http://q", 1, 1, revision="old", kv_open=0)
    records = {**pair(prefill={"kv_open": 1}, decode=PROVEN), "q": old}
    said = check_transport(["p", "d", "q"], records)
    assert said is not None
    assert said[1] == "TransportVerified"


async def test_a_service_says_it_where_a_plug_in_is_expected_and_keeps_it_while_nobody_is_heard() -> None:
    world = await serving(EXPECTED)
    workers = world.cluster.names("StatefulSet")
    assert summary(world)["EnginePlugin"] == ("Unknown", "NotYetReported")
    world.heartbeats = beats(dict.fromkeys(workers, ""))
    assert (await world.reconciler.reconcile(KEY)).requeue_after == RECHECK_S
    world.heartbeats = beats(dict.fromkeys(workers, "active"))
    assert (await world.reconciler.reconcile(KEY)).requeue_after is None
    assert summary(world)["EnginePlugin"] == ("True", "PluginActive")
    world.heartbeats = {}
    await world.until_quiet()
    assert summary(world)["EnginePlugin"] == ("True", "PluginActive")
    world.cluster.change(engine=vllm_service()["spec"]["engine"])
    await world.until_quiet()
    assert "EnginePlugin" not in summary(world)
    assert "EnginePlugin" not in summary(await serving(vllm_service()))
    assert "KVTransportVerified" not in summary(await serving())


SQL, LAW = adapter_version("sql", "/adapters/a/sql"), adapter_version("law", "acme/law")
NO_RANK = ((LAW, "LoRA rank 64 is greater than max_lora_rank 16."),)


@pytest.mark.parametrize(
    ("found", "status", "reason", "words"),
    [
        ({"a": {"adapters": (SQL, LAW)}, "b": {"adapters": (SQL, LAW)}}, "True", "AllLoaded", "all 2 ready engines"),
        ({"a": {"adapters": (SQL, LAW)}, "b": {"adapters": (SQL,)}}, "Unknown", "NotYetLoaded", "law is still"),
        ({"a": {"adapters": (SQL, LAW)}}, "Unknown", "NotYetLoaded", "not every ready engine"),
        (
            {"a": {"adapters": (SQL, LAW)}, "b": {"adapters": (SQL,), "adapter_faults": NO_RANK}},
            *("False", "LoadFailed", "law was not loaded by the engine of b: LoRA rank 64 is greater"),
        ),
        (
            {"a": {"adapters": (adapter_version("sql", "other"), LAW)}, "b": {"adapters": (SQL, LAW)}},
            *("Unknown", "NotYetLoaded", "sql is still to be loaded"),
        ),
    ],
)
def test_adapters_are_reported_by_the_engines_own_words(
    found: dict[str, dict[str, Any]], status: str, reason: str, words: str
) -> None:
    records = {name: WorkerRecord(name, "decode", "http://x", 1, 1, **parts) for name, parts in found.items()}
    check = partial(check_adapters, (SQL, LAW))
    said = check(["a", "b"], records)
    assert said is not None
    assert (said.status, said.reason) == (status, reason)
    assert words in said.message
    checks: dict[EngineCondition, EngineCheck] = {"AdaptersLoaded": check}
    assert next_check_s(checks, ["a", "b"], records) == (None if status == "True" else RECHECK_S)


def test_services_without_adapters_have_no_condition_of_them() -> None:
    assert "AdaptersLoaded" not in engine_checks(spec(vllm_service()), paired=True)
    empty = spec(changed(vllm_service(), "spec.model.adapters", []))
    said = engine_checks(empty, paired=True)["AdaptersLoaded"](["a"], beats({"a": "active"}))
    assert said is not None
    assert said.status == "True"
