import pytest

from weft_core.analytic import derive_profile
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.profile_json import profile_to_json
from weft_core.transfers import transfer_between
from weft_core_tests.model_configs import CONFIGS, OTHERS
from weft_planner.request.costs import profile_of, profiles_of, session_tokens
from weft_planner.request.error import RequestError
from weft_planner.request.hardware import dimensions_of
from weft_planner.request.infeasible import Infeasible
from weft_planner.request.parts import Model
from weft_planner_tests.requests import LLAMA, request

H100 = {"name": "h100", "gpuType": "nvidia-h100", "degrees": [4, 8], "gpusPerNode": 8}
H20 = {"name": "h20", "gpuType": "nvidia-h20", "degrees": [2, 4, 8], "gpusPerNode": 8}


def refused(**changes: object) -> tuple[str, str]:
    with pytest.raises(Infeasible) as caught:
        profiles_of(request(**changes))
    return caught.value.reason, caught.value.message


def test_each_pool_has_the_profile_of_its_own_gpu() -> None:
    profiles = profiles_of(request(**{"capacity.pools": [H20, H100]}))
    assert {name: profile.gpu for name, profile in profiles.items()} == {"h20": "nvidia-h20", "h100": "nvidia-h100"}
    assert sorted(profiles["h20"].degrees) == [2, 4, 8]
    prefill = [profile.t_pre(history=0, increment=2000, degree=8) for profile in profiles.values()]
    assert prefill[0] > 3 * prefill[1]
    transfer_between(*profiles.values(), source_degree=2, destination_degree=8, link="inter-node")


def test_pools_of_one_type_share_a_profile_and_an_interconnect_of_its_own_does_not() -> None:
    slow = {**H20, "name": "slow", "interconnect": {"acrossNodes": 1.5e9}}
    same = {**H20, "name": "same", "degrees": [1, 2]}
    profiles = profiles_of(request(**{"capacity.pools": [H20, same, slow]}))
    assert profiles["h20"] is profiles["same"]
    cost = {name: profile.t_kv(1000, source=4, destination=4) for name, profile in profiles.items()}
    assert cost["slow"] > 8 * cost["h20"]


def test_a_pool_on_which_the_model_fits_nowhere_is_left_out() -> None:
    small = {"name": "l4", "gpuType": "nvidia-l4", "degrees": [1, 2], "gpusPerNode": 2}
    assert list(profiles_of(request(**{"capacity.pools": [small, H20]}))) == ["h20"]
    reason, message = refused(**{"capacity.pools": [small]})
    assert reason == "ModelDoesNotFit"
    assert "nvidia-l4 offer" in message


TRN2 = {"name": "trn2", "gpuType": "aws-trainium2", "degrees": [8, 16, 32, 64], "gpusPerNode": 64}


def test_kv_capacity_is_that_of_the_places_which_neuron_has() -> None:
    asked = {"engine.type": "neuron", "engine.bidirectional": False, "model.maxModelLen": 8192}
    free = profiles_of(request(**asked, **{"capacity.pools": [TRN2]}))["trn2"]
    held = profiles_of(request(**asked, **{"capacity.pools": [TRN2], "engine.decode": {"maxNumSeqs": 8}}))["trn2"]
    mean = session_tokens(request(**asked))
    assert {n for n in free.degrees if free.kv_capacity(n) >= 8 * 8192} == set(held.degrees)
    assert {held.kv_capacity(n) for n in held.degrees} == {int(8 * mean)}
    assert {n for pair in held.transfers for n in pair[:2]} == set(held.degrees)
    alone = profiles_of(request(**asked, **{"capacity.pools": [TRN2], "engine.decode": {"maxNumSeqs": 1}}))["trn2"]
    assert {alone.kv_capacity(n) for n in alone.degrees} == {8192}, "the longest session has a place, too"


def test_prompts_and_batches_of_neuron_are_padded_to_what_it_is_compiled_for() -> None:
    asked = {"engine.type": "neuron", "engine.bidirectional": False, "capacity.pools": [TRN2]}
    asked |= {"model.maxModelLen": 8192, "engine.decode": {"maxNumSeqs": 8}}
    free = profiles_of(request(**{**asked, "engine.type": "vllm"}))["trn2"]
    own = profiles_of(request(**asked))["trn2"]
    few = profiles_of(request(**asked, **{"engine.contextBuckets": [3000, 8192]}))["trn2"]
    for tokens, powers, given in ((100, 128, 3000), (2000, 2048, 3000), (3001, 4096, 8192), (8192, 8192, 8192)):
        for profile, padded in ((own, powers), (few, given)):
            seconds = profile.t_pre(history=0, increment=tokens, degree=32)
            assert seconds == free.t_pre(history=0, increment=padded, degree=32)
    whole = free.t_dec(batch=8, context=4000, degree=32)
    assert own.t_dec(batch=1, context=4000, degree=32) == pytest.approx(whole)
    assert "prompts to 3000, 8192 tokens; steps to 8 sequences" in few.provenance.values()


def test_lengths_that_do_not_ascend_are_refused_by_the_name_in_the_manifest() -> None:
    with pytest.raises(RequestError, match=r"engine\.contextBuckets: .*\[4096, 1024\] do not ascend; sort them"):
        request(**{"engine.type": "neuron", "engine.contextBuckets": [4096, 1024]})


def test_places_that_no_worker_has_memory_for_are_refused_with_the_figures() -> None:
    reason, message = refused(
        **{"capacity.pools": [TRN2], "engine.type": "neuron", "engine.decode": {"maxNumSeqs": 4096}}
    )
    assert reason == "ModelDoesNotFit"
    assert message.startswith(
        "engine.decode.maxNumSeqs: 4096 sequences of up to 32768 tokens take the memory of 134217728"
    )
    assert "lower maxNumSeqs or model.maxModelLen, or choose larger capacity.pools.degrees" in message


def test_a_measured_profile_is_needed_for_every_gpu_type() -> None:
    measured = [
        profile_to_json(derive_profile(MODELS[LLAMA], GPUS[gpu], degrees=(4, 8), engine="measured"))
        for gpu in ("nvidia-h20", "nvidia-h100")
    ]
    both = profiles_of(request(profile=measured[0], profiles=measured[1:], **{"capacity.pools": [H20, H100]}))
    assert {profile.engine for profile in both.values()} == {"measured"}
    reason, message = refused(profile=measured[0], **{"capacity.pools": [H20, H100]})
    assert reason == "ProfileInvalid"
    assert "it was measured on nvidia-h20, pool h100 has nvidia-h100" in message
    assert "profiles.0.gpu: a second profile of nvidia-h20" in refused(profile=measured[0], profiles=measured[:1])[1]


def test_one_profile_of_several_types_is_refused() -> None:
    with pytest.raises(Infeasible, match="one plan uses one type"):
        profile_of(request(**{"capacity.pools": [H20, H100]}))


def test_a_model_outside_the_catalogue_is_planned_by_its_config() -> None:
    name = "facebook/opt-30b"
    reason, message = refused(**{"model.name": name})
    assert reason == "UnknownModel"
    assert "give its Hugging Face config.json (spec.model.config) or a cost profile" in message
    profiles = profiles_of(request(**{"model.name": name, "model.config": OTHERS[name][1], "capacity.pools": [H20]}))
    assert profiles["h20"].kv_bytes_per_token == 2 * 48 * 7168 * 2
    reason, message = refused(**{"model.name": name, "model.config": {"model_type": "opt", "hidden_size": 7168}})
    assert reason == "ModelConfigInvalid"
    assert "model.config.ffn_dim: is missing" in message
    assert "model.config.vocab_size: is missing" in message


def test_a_config_wins_over_the_catalogue() -> None:
    config = CONFIGS[LLAMA] | {"num_hidden_layers": 40}
    assert dimensions_of(Model(name=LLAMA, config=config)).layers == 40


def test_precision_asked_for_changes_only_what_the_checkpoint_left_alone() -> None:
    oss = dimensions_of(Model(name="openai/gpt-oss-120b", dtype="bfloat16"))
    assert oss == MODELS["openai/gpt-oss-120b"]
    eight = dimensions_of(Model(name=LLAMA, dtype="fp8"))
    assert (eight.dtype_bytes, eight.attention_bytes, eight.ffn_bytes, eight.eight_bit_products) == (2, 1, 1, True)
    again = dimensions_of(Model(name="openai/gpt-oss-120b", dtype="fp8"))
    assert again.ffn_bytes == oss.ffn_bytes
    assert again.attention_bytes == 1
    linear = dimensions_of(Model(name="Qwen/Qwen3.5-27B", dtype="fp8")).linear
    assert linear is not None
    assert linear.weight_bytes == 1
    assert dimensions_of(Model(name="moonshotai/Kimi-K2.5", dtype="fp8")).expert_bytes == 0.5625


def test_states_count_for_sessions_as_long_as_the_workload_says() -> None:
    hybrid = {"model.name": "Qwen/Qwen3.5-27B", "capacity.pools": [H20]}
    short = profiles_of(request(**hybrid, **{"workload.firstPrompt": 10.0, "workload.rounds": 1.0}))["h20"]
    long = profiles_of(request(**hybrid, **{"workload.firstPrompt": 20_000.0}))["h20"]
    assert long.kv_capacity(2) > 2 * short.kv_capacity(2)
    assert long.kv_bytes_per_token == short.kv_bytes_per_token


def test_windows_count_for_sessions_as_long_as_the_workload_says() -> None:
    long = request(**{"workload.firstPrompt": 20_000.0, "model.maxModelLen": 100_000})
    assert session_tokens(long) > 20_000
    assert session_tokens(request(**{"workload.firstPrompt": 20_000.0, "model.maxModelLen": 8000})) == 8000
    gemma = {"model.name": "google/gemma-3-27b-it", "capacity.pools": [H20]}
    short = profiles_of(request(**gemma, **{"workload.firstPrompt": 10.0, "workload.rounds": 1.0}))["h20"]
    saved = profiles_of(request(**gemma, **{"workload.firstPrompt": 20_000.0}))["h20"]
    assert saved.kv_capacity(2) > 4 * short.kv_capacity(2)
