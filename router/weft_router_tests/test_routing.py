"""The policy sees what was sent since the last heartbeat, and never fails a request."""

from typing import Any

from weft_core.policies.snapshot import DecodeWorkerView, PrefillTask, PrefillWorkerView
from weft_core.profile_json import profile_from_json
from weft_core.slo import Slo
from weft_router.config import RoutingConfig
from weft_router.engine import EngineLoad, read_load
from weft_router.routing import Dispatched, Policy
from weft_router.state import QueueEntry, WorkerRecord
from weft_router.window import Window
from weft_router_tests.stack import PROFILE

DECODE = DecodeWorkerView("d0", 1, (), windowed_itl=None, kv_used=0, kv_capacity=1000, sessions=0, batch=0)
TASK = PrefillTask(0, 100)


def policy(name: str, *, profile: dict[str, Any] | None = None, seed: int = 0) -> Policy:
    routing = RoutingConfig.model_validate({"policy": name, "seed": seed})
    return Policy(routing, profile=profile_from_json(profile or PROFILE), slo=Slo(ttft_s=1, itl_s=0.05), salt="d0")


def view(name: str, *, ttft: float | None = None, queue: int = 0, degree: int = 1) -> PrefillWorkerView:
    return PrefillWorkerView(name, degree, (TASK,) * queue, ttft)


def test_ampd_routes_as_printed() -> None:
    rule = policy("ampd")
    assert rule.route(TASK, decode=DECODE, prefill=[]).reason == "no-prefill-worker"
    assert rule.route(TASK, decode=DECODE, prefill=[view("a", ttft=2.0), view("b", ttft=0.1)]).remote == "b"
    assert rule.route(TASK, decode=DECODE, prefill=[view("a", ttft=2.0)]).reason == "itl-slack"


def test_ampds_order_is_random_and_repeatable() -> None:
    both = [view("a"), view("b")]
    first = [policy("ampd", seed=1).route(TASK, decode=DECODE, prefill=both).remote for _ in range(1)]
    rule, same = policy("ampd", seed=1), policy("ampd", seed=1)
    chosen = [rule.route(TASK, decode=DECODE, prefill=both).remote for _ in range(50)]
    assert chosen[:1] == first
    assert set(chosen) == {"a", "b"}
    assert chosen == [same.route(TASK, decode=DECODE, prefill=both).remote for _ in range(50)]


def test_shortest_queue_wins_also_when_the_profile_cannot_predict() -> None:
    prefill = [view("a", queue=3), view("b", queue=1)]
    assert policy("remote-jsq").route(TASK, decode=DECODE, prefill=prefill).remote == "b"
    unknown = [view("a", queue=3, degree=8), view("b", queue=1, degree=8)]
    found = policy("remote-jsq").route(TASK, decode=DECODE, prefill=unknown)
    assert (found.remote, found.reason) == ("b", "profile-incomplete")


def test_what_was_sent_since_the_heartbeat_counts_once() -> None:
    record = WorkerRecord(
        "p0", "prefill", "http://x", 1, 0, queue=(QueueEntry(1, 2, "mine"), QueueEntry(3, 4, "theirs"))
    )
    sent = Dispatched()
    sent.add("p0", "mine", PrefillTask(1, 2))
    sent.add("p0", "new", PrefillTask(5, 6))
    assert sent.view(record).queue == (PrefillTask(1, 2), PrefillTask(3, 4), PrefillTask(5, 6))
    sent.remove("p0", "new")
    sent.remove("p0", "unknown")
    assert sent.view(record).queue == (PrefillTask(1, 2), PrefillTask(3, 4))


def test_the_window_forgets_after_its_time() -> None:
    window = Window(10.0)
    assert window.mean(0.0) is None
    window.add(0.1, 2.0)
    window.add(5.0, 1.0, 3)
    assert window.mean(9.9) == 0.75
    assert window.mean(11.0) == 1.0 / 3
    assert window.mean(20.0) is None


def test_engine_gauges_are_read_from_vllms_page() -> None:
    page = b"""# HELP vllm:kv_cache_usage_perc x
vllm:kv_cache_usage_perc{engine="0",model_name="m/x"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m/x"} 7.5e-1
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_waiting{engine="0"} 2.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="100"} 1.0
other_metric 5
"""
    assert read_load(page) == EngineLoad(kv_usage=0.5, running=3, waiting=2, capacity_tokens=1600)
    assert read_load(b"nothing") == EngineLoad()
