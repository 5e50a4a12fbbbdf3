"""Placing: what is lost while the store is asked is chosen anew."""

from time import monotonic

from weft_core.heartbeat import WorkerRecord
from weft_router.config import LimitsConfig, ModelConfig, RouterConfig
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import check_request
from weft_router.routing.session_placer import MAX_CHOICES, SessionPlacer
from weft_router.sessions.round_request import RoundRequest
from weft_router.state.bindings import Bindings
from weft_router.state.registry import Health, Registry
from weft_router_tests.passing_store import PassingStore
from weft_router_tests.stack import router_json

CONFIG = RouterConfig.model_validate(router_json())
MODEL = ModelConfig.model_validate({"name": "m", "maxModelLen": 100_000})
INFERENCE = check_request("/v1/completions", {"model": "m", "prompt": "hello"}, RequestLimits(MODEL, LimitsConfig()))


class Losing(PassingStore):
    """A store during whose first answers the worker that was chosen fails another round."""

    registry: Registry
    losses = 0

    async def bind(self, session: str, worker: str, *, replaces: str, ttl_s: int) -> str:
        if self.losses:
            self.losses -= 1
            self.registry.report_failure(worker)
        return await super().bind(session, worker, replaces=replaces, ttl_s=ttl_s)


async def _no_answer(_: str) -> Health:
    return "dead"


async def placed(workers: int, losses: int) -> str | None:
    """Place a new session among so many workers, so many of which are lost at the moment they are chosen."""
    store = Losing()
    for number in range(workers):
        await store.heartbeat(WorkerRecord(f"d{number}", "decode", "http://x", 1, 1000 - number, seq=1, ready=True))
    store.registry = registry = Registry(store, _no_answer)
    await registry.refresh()
    store.losses = losses
    placer = SessionPlacer(
        CONFIG, registry=registry, bindings=Bindings(store, ttl_s=100, store_up=lambda: True),
        profile_of=lambda _: CONFIG.cost_profile(),
    )  # fmt: skip
    return await placer.place(RoundRequest("r", "s", "default", INFERENCE, monotonic()), set())


async def test_a_worker_that_is_lost_while_the_store_is_asked_is_replaced_by_another() -> None:
    assert await placed(3, 0) == "d0"
    assert await placed(3, 1) == "d1"
    assert await placed(3, 2) == "d2"


async def test_none_is_named_when_all_are_lost() -> None:
    assert await placed(3, 3) is None
    assert await placed(MAX_CHOICES + 1, MAX_CHOICES) is None


async def test_without_the_store_each_new_session_is_placed_by_one_choice() -> None:
    store = PassingStore()
    for name in ("a", "b"):
        await store.heartbeat(WorkerRecord(name, "decode", "http://x", 1, 1000, seq=1, ready=True))
    registry = Registry(store, _no_answer)
    await registry.refresh()
    config = RouterConfig.model_validate(router_json(routing={"policy": "remote-jsq", "binding": "round-robin"}))
    placer = SessionPlacer(
        config, registry=registry, bindings=Bindings(store, ttl_s=100, store_up=lambda: False),
        profile_of=lambda _: config.cost_profile(),
    )  # fmt: skip
    found = [await placer.place(RoundRequest("r", f"s{k}", "default", INFERENCE, monotonic()), set()) for k in range(6)]
    assert sorted(str(one) for one in found) == ["a"] * 3 + ["b"] * 3
