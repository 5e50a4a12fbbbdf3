import copy
from typing import Any

import pytest
import yaml

from weft_core.analytic import derive_profile
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.profile_json import profile_to_json
from weft_planner.evaluation.candidates import Candidate
from weft_planner.evaluation.trials import options_of
from weft_planner.request.manifest import choose_service, read_documents, request_from_service
from weft_planner.request.parts import EngineRole
from weft_planner.request.reading import RequestError
from weft_planner.simulation import PolicyChoice
from weft_planner_tests.requests import LLAMA
from weft_planner_tests.test_cli import SERVICE


def service(**changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = copy.deepcopy(yaml.safe_load(SERVICE))
    for path, value in changes.items():
        target = body["spec"]
        *parents, last = path.split(".")
        for key in parents:
            target = target.setdefault(key, {})
        target[last] = value
    return body


def test_units_and_names_are_converted() -> None:
    request = request_from_service(
        service(
            **{
                "workload.gap": {"mean": "1m30s"},
                "workload.rounds": 7,
                "engine.kvTransfer.bidirectional": False,
                "engine.memoryFraction": 0.85,
                "model.kvCacheDtype": "fp8_e4m3",
                "routing": {"slices": {"mode": "Off"}},
                "profile": {"analytic": {"compute": 0.75}},
                "planning": {
                    "objective": "cost",
                    "mode": "Auto",
                    "prefill": {"min": 2},
                    "decode": {"max": 3},
                    "seed": 7,
                },
            }
        )
    )
    assert (request.slo.ttft, request.slo.itl) == (5.0, 0.05)
    assert (request.workload.gap.mean, request.workload.rounds.mean) == (90.0, 7)
    assert (request.engine.bidirectional, request.routing.slices) == (False, False)
    assert request.analytic is not None
    assert (request.analytic.compute, request.analytic.memory_fraction) == (0.75, 0.85)
    assert request.model.kv_cache_dtype == "fp8"
    assert request.seed == 7
    assert request.objective == "cost"
    assert (request.bounds.prefill.min, request.bounds.decode.max) == (2, 3)
    assert request.capacity.pools[0].gpu_type == "nvidia-h20"


def test_what_is_left_out_is_what_the_api_server_fills_in() -> None:
    given = service()
    del given["spec"]["workload"]["gap"]
    del given["spec"]["model"]["dtype"]
    request = request_from_service(given)
    assert (request.workload.gap.mean, request.model.dtype, request.routing.slices) == (5.0, "bfloat16", True)
    assert request.analytic is not None
    assert request.analytic.memory_fraction == 0.9


def test_each_roles_engines_have_the_limits_of_their_steps() -> None:
    given = service(
        **{"engine.maxNumSeqs": 64, "engine.prefill": {"maxNumBatchedTokens": 8192}, "engine.decode.maxNumSeqs": 128}
    )
    given["spec"]["routing"] = {"prefillConcurrency": 4, "minCacheHitRatio": 0.75}
    request = request_from_service(given)
    found = [
        (role.max_num_seqs, role.max_num_batched_tokens) for role in (request.engine.prefill, request.engine.decode)
    ]
    assert found == [(64, 8192), (128, None)]
    assert (request.routing.prefill_concurrency, request.routing.min_cache_hit_ratio) == (4, 0.75)
    assert request_from_service(service()).engine.decode == EngineRole()


def test_tiers_of_workers_are_in_bytes() -> None:
    cache = {"cpu": {"size": "200Gi"}, "disk": {"size": "2Ti", "claim": "kv"}}
    request = request_from_service(service(kvCache=cache))
    assert [(one.name, one.size) for one in request.engine.kv_tiers] == [("cpu", 200 * 2.0**30), ("disk", 2.0**41)]
    simulated = options_of(request, Candidate("colocated", (), PolicyChoice("colocated", "", order="fcfs")))
    assert [tier.capacity_bytes for tier in simulated.tiers] == [200 * 2.0**30, 2.0**41]
    shared = {"cpu": {"size": "200Gi"}, "remote": {"lmcache": {"url": "lm://store:65432"}}}
    assert [one.name for one in request_from_service(service(kvCache=shared)).engine.kv_tiers] == ["cpu"]
    sglang = service(kvCache=cache, **{"engine.type": "sglang"})
    assert request_from_service(sglang).engine.kv_tiers == (), "its decode workers keep no cache of prefixes"
    assert request_from_service(service()).engine.kv_tiers == ()


def test_engine_arguments_say_how_whole_experts_exchange_tokens_in_each_role() -> None:
    backend = "--all2all-backend"
    given = service(
        **{
            "engine.type": "vllm",
            "engine.args": [f"{backend}=deepep_low_latency"],
            "engine.prefill": {"args": [backend, "allgather_reducescatter"]},
        }
    )
    request = request_from_service(given)
    assert (request.engine.prefill.all_to_all, request.engine.decode.all_to_all) == ("", "deepep")


def test_a_referenced_profile_is_found_beside_the_service() -> None:
    profile = profile_to_json(derive_profile(MODELS[LLAMA], GPUS["nvidia-h20"], degrees=(4,)))
    document = {"kind": "CostProfile", "metadata": {"name": "measured"}, "spec": profile}
    given = service(profile={"ref": {"name": "measured"}})
    assert request_from_service(given, [document]).profile == profile
    with pytest.raises(RequestError, match=r"spec\.profile\.ref\.name: no CostProfile named 'measured'"):
        request_from_service(given)
    with pytest.raises(RequestError, match=r"2 CostProfiles named 'measured' were given; keep one"):
        request_from_service(given, [document, document])


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("slo", None, "spec.slo: an object is needed, it is missing"),
        ("slo.ttft", "5 sec", "spec.slo.ttft: '5 sec' is not a duration"),
        ("workload.gap", {"mean": "soon"}, "spec.workload.gap.mean: 'soon'"),
        ("workload.rounds", {"mean": 0}, "spec.workload.rounds"),
        ("workload.tempo", 3, "spec.workload.tempo: unknown field"),
        ("capacity.pools", "h20", "spec.capacity.pools: a list is needed"),
        ("capacity.pools", ["h20"], "spec.capacity.pools[0]: must be an object"),
        ("model", "llama", "spec.model: an object is needed, got 'llama'"),
        ("planning.degreePairs", [4], "spec.planning.degreePairs[0]: must be an object with prefill and decode, got 4"),
        ("planning.layouts", ["ring"], "spec.planning.layouts.0: "),
        ("planning.headroom", 20, "spec.planning.headroom: "),
        ("engine.maxNumSeqs", 0, "spec.engine.prefill.maxNumSeqs: "),
        (
            "engine.decode",
            {"maxNumSeqs": 9, "maxNumBatchedTokens": 8},
            "spec.engine.decode: maxNumSeqs: 9 is above maxNumBatchedTokens 8, and every sequence of a step takes",
        ),
        ("planning.prefill", {"min": 0}, "spec.planning.prefill.min: "),
        ("planning.budgetPerHour", 9, "spec.planning.budgetPerHour: pool "),
        ("profile", {"analytic": {"compute": 2}}, "spec.profile.analytic.compute: "),
        ("slo.unit", "token", "spec.slo.unit"),
        (
            "capacity.pools",
            [{"interconnect": {"inNode": "9"}}],
            "interconnect.inNode: a number of gigabytes per second",
        ),
    ],
)
def test_a_bad_field_is_named_as_in_the_manifest(path: str, value: Any, named: str) -> None:
    with pytest.raises(RequestError) as fault:
        request_from_service(service(**{path: value}))
    assert named in str(fault.value)


def test_the_service_is_chosen_among_documents() -> None:
    documents = read_documents(f"kind: ConfigMap\n---\n{SERVICE}\n---\n{SERVICE.replace('demo', 'second')}")
    assert choose_service(documents, "second")["metadata"] == {"name": "second"}
    with pytest.raises(RequestError, match=r"2 services in the file \(demo, second\)"):
        choose_service(documents, None)
    with pytest.raises(RequestError, match="no DisaggInferenceService named third"):
        choose_service(documents, "third")
    with pytest.raises(RequestError, match="no DisaggInferenceService in the file"):
        choose_service(documents[:1], None)


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2", "just text"])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        read_documents(text)
