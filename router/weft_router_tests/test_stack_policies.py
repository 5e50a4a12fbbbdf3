"""Every policy, binding and queue order that a service may choose serves whole sessions."""

from pathlib import Path
from typing import Any, cast

import pytest

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.registry import BINDINGS, MODES, ORDERS, POLICIES, REASONS
from weft_core.policies.snapshot import PrefillTask
from weft_router.roles.standalone import Standalone
from weft_router.telemetry.session_latency import SessionLatencies, SessionLatency
from weft_router_tests.stack import Stack, router_json


async def rounds(stack: Stack, count: int = 3) -> list[tuple[str, str]]:
    """Run one session's rounds; return each one's route and reason."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "be brief " * 100}]
    seen = []
    for i in range(count):
        answer = await stack.chat(messages, session="s", stream=True)
        assert answer.status == 200
        seen.append((answer.headers["X-Weft-Route"], answer.headers["X-Weft-Reason"]))
        messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": f"and {i}"}]
    return seen


@pytest.mark.component
@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_a_session_runs_under_every_policy(stack: Stack, policy: str) -> None:
    stack.config = router_json(routing={"policy": policy})
    await stack.up(prefill=2)
    seen = await rounds(stack)
    assert {reason for _, reason in seen} <= set(REASONS)
    page = await stack.metrics("d0")
    counted = {
        key: value for key, value in page.items() if key.startswith("weft_router_decisions_total{") and policy in key
    }
    assert sum(counted.values()) == 3
    routes = {
        "always-remote": {"remote"}, "remote-jsq": {"remote"}, "always-local": {"local"}, "colocated": {"local"},
        **{name: {"remote"} for name, rule in POLICIES.items() if not rule.reads_history},
    }  # fmt: skip
    assert {route for route, _ in seen} <= routes.get(policy, {"local", "remote"})


@pytest.mark.component
@pytest.mark.parametrize("policy", [name for name, rule in POLICIES.items() if not rule.reads_history])
async def test_a_policy_that_reads_no_history_lets_no_engine_keep_it_for_others(stack: Stack, policy: str) -> None:
    stack.config = router_json(routing={"policy": policy})
    await stack.up(prefill=2)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "be brief " * 100}]
    workers = []
    for i in range(4):
        answer = await stack.chat(messages, session="s", stream=True)
        workers.append(answer.headers["X-Weft-Prefill-Worker"])
        messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": f"and {i}"}]
    counted = await stack.metrics("d0")
    assert sum(count for name, count in counted.items() if name.startswith("weft_router_kv_handles_total")) == 0
    assert counted['weft_router_history_tokens_total{kind="read"}'] == 0
    if policy in ("cache-aware", "sticky-least-loaded", "consistent-hash"):
        assert len(set(workers)) == 1, "a session stays where it was"
    if policy == "round-robin":
        assert workers[:2] == workers[2:]
        assert len(set(workers)) == 2


@pytest.mark.component
async def test_the_parameters_of_a_service_count(stack: Stack) -> None:
    stack.config = router_json(routing={"policy": "fixed-x", "params": {"x": 1.0}})
    await stack.up()
    assert await rounds(stack) == [("remote", "first-round"), ("local", "share"), ("local", "share")]


@pytest.mark.component
@pytest.mark.parametrize("mode", MODES)
async def test_weft_runs_in_the_modes_that_stock_engines_allow(stack: Stack, mode: str) -> None:
    stack.config = router_json(routing={"policy": "weft", "mode": mode})
    await stack.up()
    reasons = {reason for _, reason in await rounds(stack)}
    assert reasons <= (
        {"shortest-finish"} if mode == "remote-jsq" else {"local-whole", "local-chunked", "remote-cheaper"}
    )


@pytest.mark.component
@pytest.mark.parametrize("order", sorted(ORDERS))
async def test_a_session_runs_under_every_queue_order(stack: Stack, order: str) -> None:
    stack.config = router_json(routing={"order": order})
    await stack.up()
    assert {route for route, _ in await rounds(stack, 2)} == {"remote"}


@pytest.mark.component
@pytest.mark.parametrize("binding", BINDINGS)
async def test_sessions_are_bound_by_every_binding(stack: Stack, binding: str) -> None:
    stack.config = router_json(routing={"binding": binding})
    await stack.up(decode=2)
    workers = []
    for i in range(4):
        answer = await stack.chat([{"role": "user", "content": "x"}], session=f"s{i}", stream=True)
        workers.append(answer.headers["X-Weft-Worker"])
    assert set(workers) == {"d0", "d1"}
    if binding == "round-robin":
        assert workers in (["d0", "d1"] * 2, ["d1", "d0"] * 2)


@pytest.mark.component
@pytest.mark.parametrize("binding", ["prefix-aware", "kv-aware"])
async def test_sessions_with_the_same_beginning_share_a_worker(stack: Stack, binding: str) -> None:
    stack.config = router_json(routing={"binding": binding})
    await stack.up(decode=2)
    workers: dict[str, set[str]] = {"a": set(), "b": set()}
    for i, letter in enumerate("aababb"):  # by headroom alone, neighbours would go to different workers
        messages = [{"role": "system", "content": letter * 4000}, {"role": "user", "content": f"question {i}"}]
        answer = await stack.chat(messages, session=f"s{i}", stream=True)
        workers[letter].add(answer.headers["X-Weft-Worker"])
    assert {len(seen) for seen in workers.values()} == {1}
    assert workers["a"] != workers["b"]


@pytest.mark.component
async def test_decode_workers_of_one_process_know_what_the_others_sent(tmp_path: Path) -> None:
    stack = Stack(tmp_path, "standalone")
    await stack.up(decode=2, prefill=1)
    app = cast(Standalone, stack.processes["c0"].app)
    one, other = (app._decodings[name].prefill_workers for name in ("d0", "d1"))
    (record,) = one.ready()
    task = PrefillTask(0, 900)
    one.in_flight.add(record.worker, "sent by one", task)
    seen = one.views(task)
    assert seen[0].queued == 1
    assert other.views(task) is seen
    stack.processes["c0"].app.observe()
    assert one.views(task) is seen, "what is still known is not forgotten when metrics are read"
    await stack.close()


def test_a_sessions_pace_is_that_of_all_its_rounds() -> None:
    latencies = SessionLatencies(limit=2)
    latencies.of("a").add(0.06, 1, itl_slo=0.05)
    latencies.of("a").add(0.02, 2, itl_slo=0.05)
    assert latencies.of("a") == SessionLatency(seconds=0.08, gaps=3, over=1)
    latencies.of("b")
    latencies.of("a")
    latencies.of("c")
    assert latencies.of("a").gaps == 3
    assert latencies.of("b") == SessionLatency()


class Dropped:
    """What a worker knows of its engine's cache: of every session it keeps 8 tokens."""

    trusted = False

    def below(self, _session: str, _rank: int | None) -> dict[str, int]:
        return {}

    def kept_tokens(self, _session: str, _rank: int | None) -> int | None:
        return 8

    def served(self, _prompt: object) -> None:
        """Take no prompt in."""

    def describe(self, record: WorkerRecord) -> WorkerRecord:
        return record

    def observe(self) -> None:
        """Count nothing."""


@pytest.mark.component
async def test_history_that_the_engine_dropped_counts_as_new(stack: Stack) -> None:
    """Without a handle a history is where it was made, unless the engine's events say that it is not."""
    stack.config = router_json(routing={"policy": "always-remote"}, engine={"bidirectional": False})
    await stack.up()
    assert await rounds(stack, 2) == [("remote", "always-remote"), ("local", "history-unreadable")]
    stack.worker_of("d0").kv_cache = cast(Any, Dropped())
    messages: list[dict[str, Any]] = [{"role": "user", "content": "be brief " * 100}]
    for _ in range(2):
        answer = await stack.chat(messages, session="other", stream=True)
        messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": "go on"}]
    assert (answer.headers["X-Weft-Route"], answer.headers["X-Weft-Reason"]) == ("remote", "always-remote")
