"""Proofs that KV goes from a prefill engine to a decode engine and back, and what each way of failing is taken for."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from weft_router.engines.transfers import ReceivedBytes
from weft_router.rounds import kv_proof
from weft_router.rounds.kv_proof import LEAST, KvProof
from weft_router.state.kv_paths import Proof
from weft_router_tests.fake_engine import TOKEN_BYTES, TOKEN_S
from weft_router_tests.stack import Stack, is_so, until

pytestmark = pytest.mark.component


class Devices:
    """The kernel's counters: everything that the decode engine reads comes over one of them."""

    def __init__(self, stack: Stack, over: str = "network") -> None:
        self._engine = stack.engines["d0"]
        self._over = over

    def __call__(self, loopback: bool) -> ReceivedBytes:
        assert loopback, "the engines of tests are on this machine"
        came = self._engine.pulled * TOKEN_BYTES
        return ReceivedBytes(came if self._over == "network" else 0, came if self._over == "rdma" else 0)


def prover(stack: Stack, over: str = "network", *, transport: str = "", waits: frozenset[int] = frozenset()) -> KvProof:
    """Return the decode worker's proofs, over given devices."""
    worker, decoding = stack.worker_of("d0"), stack.decoding("d0")
    worker.settings = replace(worker.settings, kv_transport=transport)
    return KvProof(
        worker, prefill_client=decoding.remote._prefill_client, releaser=decoding._releaser,
        outcomes=decoding._metrics.kv_proofs, network=Devices(stack, over), waits=lambda _: waits,
    )  # fmt: skip


async def proof(stack: Stack, prove: KvProof, *, figures: bool = True) -> Proof | None:
    record = stack.registry("d0").get("p0")
    assert record is not None
    return await prove(record, figures)


async def test_a_proof_tells_transport_rate_and_latency_and_leaves_no_kv(stack: Stack) -> None:
    await stack.up()
    found = await proof(stack, prover(stack))
    assert found is not None
    assert (found.fault, found.transport) == (None, "tcp")
    assert found.bytes_per_s == pytest.approx(TOKEN_BYTES / TOKEN_S)
    assert found.latency_s == pytest.approx(LEAST * TOKEN_S)
    p0, d0 = stack.engines["p0"], stack.engines["d0"]
    assert p0.pulled > 64, "the way back was tried, too"

    async def nothing_is_held() -> bool:
        return not p0.held and not d0.held

    await until(nothing_is_held)
    salts = [body["cache_salt"] for body in p0.seen + d0.seen]
    assert len(set(salts)) == len(salts), "no leg may find in a cache what it is to read"
    assert await stack.count("weft_router_kv_proofs_total", process="d0", outcome="proven") == 1


async def test_a_proof_of_a_path_that_is_closed_leaves_no_kv_either(stack: Stack) -> None:
    await stack.up()
    stack.worker_of("d0").paths.closed = frozenset({"p0"})
    assert await proof(stack, prover(stack)) is not None
    p0, d0 = stack.engines["p0"], stack.engines["d0"]

    async def nothing_is_held() -> bool:
        return not p0.held and not d0.held

    await until(nothing_is_held)


async def test_a_trial_without_figures_is_one_short_way_there_and_back(stack: Stack) -> None:
    await stack.up()
    assert await proof(stack, prover(stack), figures=False) == Proof()
    assert (stack.engines["d0"].transfers, stack.engines["p0"].transfers) == (1, 1)


@pytest.mark.parametrize(
    ("over", "wanted", "fault", "transport"),
    [
        ("network", "rdma", "transport", "tcp"),
        ("rdma", "rdma", None, "rdma"),
        ("nothing", "rdma", None, "direct"),
        ("rdma", "", None, "rdma"),
    ],
)
async def test_tcp_is_wrong_where_the_workers_have_rdma(
    stack: Stack, over: str, wanted: str, fault: str | None, transport: str
) -> None:
    await stack.up()
    found = await proof(stack, prover(stack, over, transport=wanted))
    assert found is not None
    assert (found.fault, found.transport) == (fault, transport)


def refuses(stack: Stack) -> None:
    stack.engines["d0"].script.refuse_handles = True


def computes(stack: Stack) -> None:
    stack.engines["d0"].script.computes_instead = True


def refuses_back(stack: Stack) -> None:
    stack.engines["p0"].script.refuse_handles = True


def hangs(stack: Stack) -> None:
    stack.engines["d0"].script.hang_reads = True


def hangs_back(stack: Stack) -> None:
    stack.engines["p0"].script.hang_reads = True


@pytest.mark.parametrize("breaks", [refuses, computes, refuses_back, hangs, hangs_back])
async def test_kv_that_does_not_come_is_a_fault(
    stack: Stack, breaks: Callable[[Stack], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_proof, "READ_S", 0.5)
    monkeypatch.setattr(kv_proof, "COUNTED_S", 0.2)
    await stack.up()
    breaks(stack)
    for figures in (True, False):
        assert await proof(stack, prover(stack), figures=figures) == Proof("transfer")


async def test_a_port_that_nobody_answers_is_told_from_other_failures(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_proof, "READ_S", 0.5)
    monkeypatch.setattr(kv_proof, "SLOW_S", 0.2)  # two looks
    await stack.up()
    hangs(stack)
    assert await proof(stack, prover(stack, waits=frozenset({38177}))) == Proof("data-port")


async def test_a_read_over_a_port_that_stays_silent_is_not_waited_for(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_proof, "SLOW_S", 0.1)
    await stack.up()
    hangs(stack)
    async with asyncio.timeout(kv_proof.READ_S / 2):
        assert await proof(stack, prover(stack, waits=frozenset({38177}))) == Proof("data-port")
    await until(lambda: is_so(not stack.engines["d0"].running))


async def test_ports_that_are_silent_in_turn_are_connections_that_come_about(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines that meet open many, one after the other."""
    monkeypatch.setattr(kv_proof, "SLOW_S", 0.01)
    await stack.up()
    for name in ("p0", "d0"):
        stack.engines[name].script.delay_s = 0.3
    ports = itertools.count(33000)
    prove = prover(stack)
    prove._unanswered = lambda _: frozenset({next(ports)})
    assert await proof(stack, prove, figures=False) == Proof()
    assert next(ports) > 33000 + 2 * kv_proof.SILENT_LOOKS


async def test_a_port_that_nobody_answers_is_told_though_it_has_stopped_the_whole_engine(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("READ_S", "ALONE_S"):
        monkeypatch.setattr(kv_proof, name, 0.3)
    monkeypatch.setattr(kv_proof, "SLOW_S", 0.1)
    await stack.up()
    stack.engines["d0"].script.hang = True
    assert await proof(stack, prover(stack)) is None
    assert await proof(stack, prover(stack, waits=frozenset({38177}))) == Proof("data-port")


async def test_a_proof_that_waits_long_makes_no_engine_rest(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine may have a long prompt to do first, or another engine to meet."""
    for name in ("STALL_S", "HANDSHAKE_S"):
        monkeypatch.setattr(f"weft_router.engines.watch.{name}", 0.05)
    await stack.up(prefill=2)
    for name in ("p0", "d0"):
        stack.engines[name].script.delay_s = 1.5
    found = await proof(stack, prover(stack), figures=False)
    assert found == Proof()
    assert all(stack.worker_of(name).engine.healthy for name in ("p0", "d0"))


async def test_an_engine_that_has_no_time_for_anybody_proves_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers as late as over a closed path: its own short prompt tells the two apart."""
    monkeypatch.setattr(kv_proof, "READ_S", 0.3)
    monkeypatch.setattr(kv_proof, "ALONE_S", 0.3)
    await stack.up()
    prove = prover(stack)
    for name in ("d0", "p0"):
        stack.engines[name].script.hang = True
        assert await proof(stack, prove) is None
        stack.engines[name].script.hang = False
    stack.engines["p0"].script.status = 503
    assert await proof(stack, prove) is None
    assert await stack.count("weft_router_kv_proofs_total", process="d0", outcome="unproven") == 3
