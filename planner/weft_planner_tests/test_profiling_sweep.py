"""Sweep mock engines over real sockets: the curves are those of the profile that the engine follows."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from weft_cli.running import run
from weft_core.cost import CostProfile, DecodePiece, PrefillPiece
from weft_mock_tests.engines import MODEL, config, engines
from weft_mock_tests.engines import profile as mock_profile
from weft_mock_tests.test_mock_process import engine
from weft_planner.cli.profile import profile as command
from weft_planner.profiling.engine_client import EngineError, EngineFacts
from weft_planner.profiling.sweep_engine import SweepSettings, SweepTarget, sweep_engine
from weft_planner.profiling.sweep_file import Sweep, read_sweep
from weft_planner.profiling.sweep_points import SweepGrid, plan_points

SMALL = SweepGrid(prompts=(512, 1024), clients=(1, 2), contexts=(64,), concurrency=(1, 4), answer_tokens=16)
SETTINGS = SweepSettings(seconds=60, steps=8, rounds=2, seed=7)
FACTS = EngineFacts("m", "", 4096, 16, 20_000, tuple(range(9)))


def slow_profile() -> CostProfile:
    """Return a profile beside which a busy machine's scheduling is small; beside a batch prompts cost as much."""
    base = mock_profile(kv_capacity=65536)
    prefill = (PrefillPiece(alpha=0.05, per_token=1e-4),)
    decode = (DecodePiece(0.02, 2e-3, per_chunk_token=1e-4),)
    return replace(base, degrees={1: replace(base.degrees[1], prefill=prefill, decode=decode)})


async def swept(url: str, grid: SweepGrid = SMALL, settings: SweepSettings = SETTINGS, **target: object) -> Sweep:
    return await sweep_engine(
        SweepTarget(url, 1, **target),  # type: ignore[arg-type]
        grid,
        settings,
        now=lambda: "2026-11-28T12:00:00+00:00",
    )


@pytest.mark.component
@pytest.mark.alone
async def test_the_curves_are_those_of_the_profile_that_the_engine_follows() -> None:
    truth = slow_profile()
    async with engines(config(profile=truth, max_model_len=4096, chunk=2048)) as (client,):
        found = await swept(client.url, gpu="none")
        cached = [record.cached for record in client.engine.ledger.recent if record.prompt in (512, 1024)]
    assert found.notes == ()
    assert (found.model, found.engine, found.gpu, found.degree) == (MODEL, "vllm 0.32.0", "none", 1)
    assert found.measured_at == "2026-11-28T12:00:00+00:00"
    assert found.kv_capacity_tokens == 65536
    assert set(cached) == {0}, "random prompts are in no prefix cache"
    points = {(row.prompt_tokens, row.concurrency): row for row in found.context}
    assert set(points) == {(512, 1), (512, 2), (1024, 1), (1024, 2)}
    for (tokens, clients), row in points.items():
        # Prompts of an engine with a token budget share its steps, at the chunk's cost without T_pre's overhead.
        step = truth.t_step(batch=0, context=0, chunk=tokens, chunk_history=0, degree=1)
        assert row.ttft.p50 == pytest.approx(clients * step, rel=0.3), (tokens, clients)
        assert row.prompts_per_second == pytest.approx(1 / step, rel=0.3), (tokens, clients)
        assert row.requests == 2 * clients
    steps = {row.concurrency: row for row in found.generation}
    for count, step_row in steps.items():
        right = truth.t_dec(batch=count, context=count * step_row.context_tokens, degree=1)
        assert step_row.itl == pytest.approx(right, rel=0.15), count
    served = {row.concurrency: row for row in found.aggregated}
    assert set(served) == set(steps) == {1, 4}
    for count, serving in served.items():
        assert serving.itl >= 0.95 * steps[count].itl, "prefills only add to a step"
        assert serving.tokens_per_second <= 1.05 * count / serving.itl
        assert serving.tokens_per_second > 0.4 * count / serving.itl
    assert found.requests == 6 * 2 + 5 * 2 + 5 * 2


@pytest.mark.component
@pytest.mark.alone
async def test_a_sweep_ends_with_its_time_and_says_what_it_left_out() -> None:
    grid = replace(SMALL, prompts=(16, 1024), clients=(1,), concurrency=(1, 4, 16, 64), answer_tokens=0)
    async with engines(config(profile=slow_profile(), max_model_len=4096)) as (client,):
        began = asyncio.get_running_loop().time()
        found = await swept(client.url, grid, replace(SETTINGS, seconds=3))
        took = asyncio.get_running_loop().time() - began
    assert took < 8
    assert not found.empty
    (note,) = found.notes
    assert note.startswith("the time ended before: ")
    assert note.endswith("generation 69 x 64")


@pytest.mark.component
async def test_a_sweep_sends_no_more_prompts_than_it_may() -> None:
    async with engines(config(max_model_len=2048)) as (client,):
        found = await swept(client.url, SMALL, replace(SETTINGS, requests=9))
    assert found.requests <= 9
    assert any(note.startswith("the number of requests ended before: ") for note in found.notes)


@pytest.mark.component
async def test_more_sequences_than_the_engine_runs_are_a_note() -> None:
    grid = replace(SMALL, prompts=(), concurrency=(1, 2, 6, 8), answer_tokens=0)
    async with engines(config(profile=slow_profile(), max_model_len=2048, max_sequences=2)) as (client,):
        found = await swept(client.url, grid)
    assert [row.concurrency for row in found.generation] == [1, 2]
    assert any("does not decode 6 sequences together" in note for note in found.notes)
    assert "the engine does not run so many at a time: generation 69 x 8" in found.notes


@pytest.mark.component
@pytest.mark.parametrize(
    ("protocol", "name"),
    [("vllm", "vllm 0.32.0"), ("sglang", "sglang"), ("tensorrt-llm", "tensorrt-llm 1.2.0")],
)
async def test_every_engine_is_swept(protocol: str, name: str) -> None:
    grid = SweepGrid(prompts=(32,), clients=(1,), contexts=(64,), concurrency=(2,), answer_tokens=8)
    quick = replace(slow_profile(), degrees=mock_profile(decode=0.005, kv_capacity=65536).degrees)
    async with engines(config(profile=quick, max_model_len=2048, protocol=protocol, bidirectional=False)) as (client,):
        found = await swept(client.url, grid)
    assert found.engine == name
    assert len(found.context) == len(found.generation) == len(found.aggregated) == 1, found.notes
    assert found.kv_capacity_tokens == (0 if protocol == "tensorrt-llm" else 65536)


@asynccontextmanager
async def guarded(key: str) -> AsyncIterator[str]:
    """Run a server that wants an API key and serves nothing."""

    async def models(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": {"message": "Unauthorized"}}, status=401)
        return web.json_response({"data": []})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.component
async def test_an_engine_that_wants_a_key_says_how_to_give_it() -> None:
    async with guarded("secret") as url:
        with pytest.raises(EngineError, match="answered 401: Unauthorized; give the engine's API key by --api-key-env"):
            await swept(url)
        with pytest.raises(EngineError, match="lists no model"):
            await swept(url, headers={"Authorization": "Bearer secret"})


@pytest.mark.component
async def test_another_model_than_the_engines_is_refused() -> None:
    async with engines(config()) as (client,):
        with pytest.raises(EngineError, match=f"serves {MODEL} and not 'other'; name one of them"):
            await swept(client.url, served="other")


def weft(*arguments: str) -> int:
    return run(command, arguments, prog="weft profile")


@pytest.mark.component
@pytest.mark.parametrize("ending", ["yaml", "json"])
def test_the_command_writes_what_it_prints(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / f"curves.{ending}"
    small = ["--prompts", "64", "--clients", "1", "--contexts", "64", "--concurrency", "2,1", "--answers", "8"]
    with engine(tmp_path, "--time-scale", "5") as (port, _):
        url = f"http://127.0.0.1:{port}"
        given = ["--steps", "4", "--rounds", "2", "--gpu", "nvidia-h100", "--seconds", "30"]
        assert weft("sweep", url, *small, *given, "-o", str(target)) == 0
    out = capsys.readouterr().out
    for words in (f"{MODEL} on nvidia-h100, vllm 0.32.0, 1 GPU", "TTFT P50", "TOKENS/S/USER", f"wrote {target}"):
        assert words in out
    found = read_sweep(target)
    assert [row.concurrency for row in found.generation] == [1, 2]
    assert (json.loads if ending == "json" else str)(target.read_text())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["http://127.0.0.1:9"], "is it up and reachable?"),
        (["http://127.0.0.1:9", "-o", "curves.txt"], "curves are written as .yaml or .json"),
        (["http://127.0.0.1:9", "--prompts", "0"], "--prompts: lengths and counts are 1 or more"),
        (["http://127.0.0.1:9", "--seconds", "0"], "--seconds"),
        (["http://127.0.0.1:9", "--api-key-env", "NO_SUCH_KEY"], "the environment has no NO_SUCH_KEY"),
    ],
)
def test_a_command_line_that_cannot_be_is_refused(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weft("sweep", *arguments) in (1, 2)
    assert named in capsys.readouterr().err


def test_points_that_the_engine_cannot_hold_are_left_out_and_named() -> None:
    grid = SweepGrid(prompts=(64, 8192), clients=(1,), contexts=(1024,), concurrency=(1, 16, 32), answer_tokens=128)
    planned = plan_points(grid, FACTS, steps=16)
    assert [str(point) for point in planned.points] == [
        "context 64 x 1", "generation 1033 x 1", "generation 1033 x 16", "aggregated 1024 x 1",
    ]  # fmt: skip
    assert planned.left_out == (
        "beyond the engine's 4096 tokens of a sequence: context 8192 x 1",
        "beyond the engine's 20000 tokens of KV: generation 1033 x 32, aggregated 1024 x 16, aggregated 1024 x 32",
    )


def test_without_a_concurrency_there_is_a_context_curve_only() -> None:
    grid = SweepGrid(prompts=(64,), clients=(1,), concurrency=())
    assert [point.curve for point in plan_points(grid, FACTS, steps=16).points] == ["context"]
