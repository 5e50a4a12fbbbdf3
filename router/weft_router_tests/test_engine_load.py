"""What engines say of their load, each in its own words."""

from weft_router.engines.catalogue import adapter_for
from weft_router.engines.load import EngineLoad

VLLM = b"""# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m/x"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m/x"} 7.5e-1
vllm:num_requests_running{engine="0",model_name="m/x"} 3.0
vllm:num_requests_running{engine="1",model_name="m/x"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m/x"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m/x",reason="capacity"} 2.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="1",num_gpu_blocks="50"} 1.0
other_metric 5
"""
SGLANG = b"""# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",engine_type="decode",model_name="m/x",pp_rank="0",priority="",tp_rank="0"} 5.0
sglang:num_running_reqs{dp_rank="0",engine_type="decode",model_name="m/x",pp_rank="0",priority="1",tp_rank="0"} 2.0
sglang:num_running_reqs{dp_rank="0",engine_type="decode",model_name="m/x",pp_rank="0",priority="",tp_rank="1"} 5.0
sglang:num_running_reqs{dp_rank="1",engine_type="decode",model_name="m/x",pp_rank="0",priority="",tp_rank="2"} 2.0
sglang:num_queue_reqs{dp_rank="0",engine_type="decode",model_name="m/x",pp_rank="0",tp_rank="0"} 1.0
sglang:num_decode_prealloc_queue_reqs{dp_rank="0",engine_type="decode",model_name="m/x",pp_rank="0",tp_rank="0"} 4.0
sglang:num_decode_transfer_queue_reqs{dp_rank="1",engine_type="decode",model_name="m/x",pp_rank="0",tp_rank="2"} 2.0
sglang:token_usage{dp_rank="0",engine_type="decode",model_name="m/x",pp_rank="0",tp_rank="0"} 0.2
sglang:token_usage{dp_rank="1",engine_type="decode",model_name="m/x",pp_rank="0",tp_rank="2"} 0.4
sglang:max_total_num_tokens{dp_rank="0",engine_type="decode",model_name="m/x",pp_rank="0",tp_rank="0"} 471258.0
sglang:max_total_num_tokens{dp_rank="1",engine_type="decode",model_name="m/x",pp_rank="0",tp_rank="2"} 471258.0
sglang:num_requests_total{model_name="m/x"} 99.0
"""
TENSORRT_LLM = b"""# HELP trtllm_num_requests_running Number of active requests
# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{engine_type="trtllm",model_name="m/x"} 3.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m/x"} 1.0
trtllm_num_requests_completed_total{engine_type="trtllm",model_name="m/x"} 70.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m/x"} 0.42
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m/x"} 1000.0
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m/x"} 32.0
"""


def test_vllms_engine_processes_are_summed_and_so_are_those_of_its_fork() -> None:
    load = EngineLoad(kv_usage=0.5, running=4, waiting=2, capacity_tokens=2400, tells_usage=True)
    for kind in ("vllm", "mock", "neuron"):
        gauges = adapter_for(kind).gauges
        assert (gauges.page, gauges.read(VLLM)) == ("/metrics", load)


def test_sglangs_ranks_are_summed_and_what_they_say_twice_counts_once() -> None:
    gauges = adapter_for("sglang").gauges
    load = EngineLoad(kv_usage=(0.2 + 0.4) / 2, running=7, waiting=7, capacity_tokens=942516, tells_usage=True)
    assert (gauges.page, gauges.read(SGLANG)) == ("/metrics", load)


def test_tensorrt_llms_page_is_the_one_for_prometheus() -> None:
    gauges = adapter_for("tensorrt-llm").gauges
    load = EngineLoad(kv_usage=0.42, running=3, waiting=1, capacity_tokens=32_000, tells_usage=True)
    assert (gauges.page, gauges.read(TENSORRT_LLM)) == ("/prometheus/metrics", load)


def test_a_page_without_its_gauges_says_nothing() -> None:
    for kind in ("vllm", "sglang", "tensorrt-llm"):
        for page in (b"", b"nothing", b"[]", b"vllm:x 1\n"):
            assert adapter_for(kind).gauges.read(page) == EngineLoad()
