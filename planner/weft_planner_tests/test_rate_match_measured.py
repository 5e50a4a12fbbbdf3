"""Rate matching from sweeps: a sweep of a known server gives that server's curves back, and files are checked."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

import weft_cli as cli
from weft_planner.profiling.sweep_file import (
    ContextRow,
    GenerationRow,
    Latency,
    ServingRow,
    Sweep,
    SweepFileError,
    read_sweep,
    sweep_from_json,
    sweep_to_json,
    write_sweep,
)
from weft_planner.rate_match import (
    MeasuredServer,
    ProfiledServer,
    Servers,
    aggregated_curve,
    context_curve,
    generation_curve,
    match_rates,
)
from weft_planner.simulation.options import StepLimits
from weft_planner_tests.test_cli import SERVICE
from weft_planner_tests.test_rate_match import profile, rounds

LENGTHS = (250, 500, 1000, 2000)


def sweep(degree: int = 1, **changes: object) -> Sweep:
    """Return what a sweep of the profile's server finds: 0.1 ms a prompt token, 10 ms and 1 ms a sequence of a step.

    Where clients get answers of 100 tokens to prompts of 1,000, a prompt adds 80 ms to its batch.
    """

    def latency(seconds: float) -> Latency:
        return Latency(p50=seconds, p95=seconds)

    def step(n: float) -> float:
        return 0.010 + 0.001 * n / degree

    def serving(n: int) -> ServingRow:
        itl = step(n) + n * 0.080 / degree / 100
        return ServingRow(
            prompt_tokens=1000,
            answer_tokens=100,
            concurrency=2 * n,
            requests=3 * n,
            tokens_per_second=n / itl,
            itl=itl,
            ttft=latency(1.0),
        )

    found = Sweep(
        model="m",
        engine="vllm 0.32.0",
        degree=degree,
        kv_capacity_tokens=100_000,
        measured_at="2026-11-28T12:00:00+00:00",
        duration=1.0,
        requests=9,
        seed=1,
        context=tuple(
            ContextRow(
                prompt_tokens=n,
                concurrency=c,
                requests=3 * c,
                prompts_per_second=1 / (1e-4 * n / degree),
                ttft=latency(c * 1e-4 * n / degree),
            )
            for n in LENGTHS
            for c in (1, 2)
        ),
        generation=tuple(
            GenerationRow(context_tokens=tokens, concurrency=n, itl=step(n))
            for tokens in (500, 2000)
            for n in (1, 4, 16, 64)
        ),
        aggregated=tuple(serving(n) for n in (1, 4, 16, 64)),
    )
    return found.model_copy(update=changes)


def test_a_sweep_gives_the_servers_own_curves_back() -> None:
    measured, known = MeasuredServer(sweep(), profile=profile()), ProfiledServer(profile(), 1)
    for history in (0.0, 1000.0):
        shape = rounds(history=history)
        theirs = context_curve(measured, shape, percentile=95, bidirectional=True)
        ours = context_curve(known, shape, percentile=95, bidirectional=True)
        assert [p.ttft_s for p in theirs] == pytest.approx([p.ttft_s for p in ours])
        assert [p.rounds_per_s for p in theirs] == pytest.approx([p.rounds_per_s for p in ours])
    by_count = {p.concurrency: p for p in generation_curve(known, rounds(), waiting_s=0.0)}
    points = generation_curve(measured, rounds(), waiting_s=0.0)
    assert [p.concurrency for p in points] == [1, 4, 16, 64]
    assert all(p.itl_s == pytest.approx(by_count[p.concurrency].itl_s) for p in points)
    assert [p.kv_share for p in points] == pytest.approx([by_count[p.concurrency].kv_share for p in points])
    both = {p.concurrency: p for p in aggregated_curve(known, rounds())}
    served = aggregated_curve(measured, rounds())
    assert [p.concurrency for p in served] == [1, 4, 16, 64]
    assert all(p.itl_s == pytest.approx(both[p.concurrency].itl_s) for p in served)


def test_matching_from_sweeps_is_matching_from_the_profile() -> None:
    slo = {"ttft_s": 1.0, "itl_s": 0.05, "percentile": 95.0, "bidirectional": True}
    swept = [MeasuredServer(sweep(n), profile=profile()) for n in (1, 2)]
    known = [ProfiledServer(profile(), n) for n in (1, 2)]
    measured = match_rates(Servers(swept, swept, swept), rounds(), **slo)  # type: ignore[arg-type]
    by_profile = match_rates(Servers(known, known, known), rounds(), **slo)  # type: ignore[arg-type]
    same = {(m.generation.degree, m.generation.concurrency): m for m in by_profile.front}
    found = {(m.generation.degree, m.generation.concurrency): m for m in measured.front}
    assert found.keys() & same.keys()
    for key in found.keys() & same.keys():
        assert found[key].tokens_per_s_gpu == pytest.approx(same[key].tokens_per_s_gpu)


def test_lengths_between_measured_ones_are_interpolated_and_longer_ones_extrapolated() -> None:
    server = MeasuredServer(sweep())
    seconds = server.busy_seconds(np.zeros(4), np.array([100.0, 750.0, 2000.0, 10_000.0]))
    assert seconds == pytest.approx([0.025, 0.075, 0.2, 1.0])
    one = MeasuredServer(sweep(context=sweep().context[:1]))
    assert one.busy_seconds(np.zeros(1), np.array([1000.0])) == pytest.approx([0.1]), "in proportion to the only one"


def test_steps_with_other_contexts_follow_from_two_that_were_measured() -> None:
    rows = tuple(
        GenerationRow(context_tokens=tokens, concurrency=n, itl=0.010 + 1e-6 * n * tokens)
        for tokens, most in ((1000, 64), (4000, 16))
        for n in (1, 4, 16, 64)
        if n <= most
    )
    server = MeasuredServer(sweep(generation=rows))
    for n, held in ((1, 2500), (8, 4000), (64, 4000), (16, 8000), (4, 500)):
        assert server.itl(n, held) == pytest.approx(0.010 + 1e-6 * n * held), (n, held)
    short = MeasuredServer(sweep(generation=rows[:4]))
    assert short.itl(4, 9000) == short.itl(4, 1000)
    assert any("1000 tokens a sequence only" in remark for remark in short.remarks(rounds()))


def test_live_curves_end_at_the_services_places_and_at_what_was_measured() -> None:
    def counts(limits: StepLimits) -> list[int]:
        return MeasuredServer(sweep(), decode=limits).concurrencies

    assert counts(StepLimits()) == [1, 4, 16, 64]
    assert counts(StepLimits(max_sequences=20)) == [1, 4, 16, 20]
    assert counts(StepLimits(max_sequences=64)) == counts(StepLimits(max_sequences=500)) == [1, 4, 16, 64]
    points = generation_curve(MeasuredServer(sweep(), decode=StepLimits(max_sequences=20)), rounds(), waiting_s=0.0)
    assert points[-1].itl_s == pytest.approx(0.030)


def test_what_was_not_measured_is_said() -> None:
    shape = rounds(history=5000.0)
    remarks = " ".join(MeasuredServer(sweep(kv_capacity_tokens=0)).remarks(shape))
    for words in ("100% of the prompts are longer than the 2000 tokens", "KV transfers are not counted", "KV capacity"):
        assert words in remarks
    assert "KV transfers are those of the cost profile" in MeasuredServer(sweep(), profile=profile()).remarks(shape)
    assert MeasuredServer(sweep(kv_capacity_tokens=0), profile=profile(kv_capacity=7)).kv_capacity == 7
    assert aggregated_curve(MeasuredServer(sweep(aggregated=())), rounds()) == []
    assert aggregated_curve(MeasuredServer(sweep(context=())), rounds()) == []


@pytest.mark.parametrize("name", ["curves.yaml", "curves.json"])
def test_a_file_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    write_sweep(sweep(2), tmp_path / name)
    assert read_sweep(tmp_path / name) == sweep_from_json(sweep_to_json(sweep(2)))
    body = yaml.safe_load((tmp_path / name).read_text())
    assert body["generation"][1]["tokensPerSecondPerGpu"] == pytest.approx(4 / 0.012 / 2, rel=1e-3)
    assert body["generation"][1]["tokensPerSecondPerUser"] == pytest.approx(1 / 0.012, rel=1e-3)
    assert body["context"][0]["tokensPerSecondPerGpu"] == pytest.approx(10_000)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: [", "format: neither YAML nor JSON"),
        ("format: weft-measurements/1", "format: no weft-curves/1; give a file that weft profile sweep wrote"),
        ("- 1", "format: no weft-curves/1"),
    ],
)
def test_a_file_that_is_no_sweep_is_refused(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(SweepFileError, match=named):
        read_sweep(tmp_path / "f.yaml")


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("degree", "tp0", r"degree: 'tp0' is not a degree"),
        ("generation", [{"contextTokens": 1, "concurrency": 1, "itl": -1}], r"generation\.0\.itl: .*greater than 0"),
        ("generation", [{"contextTokens": 1, "concurrency": 1, "itl": float("nan")}], r"generation\.0\.itl"),
        ("context", [{}], r"context\.0\.promptTokens"),
        ("more", 1, "more: Extra inputs"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object, named: str) -> None:
    with pytest.raises(SweepFileError, match=named):
        sweep_from_json({**sweep_to_json(sweep()), field: value})


def swept_for_service(folder: Path, degree: int, **changes: object) -> str:
    path = folder / f"tp{degree}.yaml"
    long = tuple(row.model_copy(update={"prompt_tokens": 8 * row.prompt_tokens}) for row in sweep(degree).context)
    model = "meta-llama/Llama-3.1-70B-Instruct"
    write_sweep(sweep(degree, context=long, model=model, gpu="nvidia-h20", **changes), path)
    return str(path)


def test_the_command_matches_the_rates_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, page = tmp_path / "dis.yaml", tmp_path / "page.html"
    manifest.write_text(SERVICE)
    given = ["plan", "-f", str(manifest), "--rate-match"]
    for degree in (2, 4):
        given += ["--curves", swept_for_service(tmp_path, degree)]
    assert cli.main([*given, "--report", str(page)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    live = "sweeps of live engines (vllm 0.32.0 of degree 2 on 2026-11-28, vllm 0.32.0 of degree 4 on 2026-11-28)"
    assert live in out
    assert "Degree 2, 4: KV transfers are those of the cost profile." in out
    assert live in page.read_text()
    assert cli.main([*given, "-o", "json"]) == 0
    body = json.loads(capsys.readouterr().out)["rateMatching"]
    assert body["curves"]["measured"] is True
    assert set(body["contextCurves"]) == set(body["generationCurves"]) == {"2", "4"}
    assert [p["concurrency"] for p in body["generationCurves"]["2"]] == [1, 4, 16]
    assert body["aggregatedFront"]


def test_the_services_limits_bound_live_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "dis.yaml"
    manifest.write_text(SERVICE.replace("{type: mock,", "{type: mock, maxNumSeqs: 6,"))
    given = ["plan", "-f", str(manifest), "--rate-match", "--curves", swept_for_service(tmp_path, 4)]
    assert cli.main([*given, "-o", "json"]) == 0
    body = json.loads(capsys.readouterr().out)["rateMatching"]
    assert [p["concurrency"] for p in body["generationCurves"]["4"]] == [1, 4, 6]
    assert "a batch has at most 6 sequences (engine.decode.maxNumSeqs)" in body["curves"]["remarks"]
    assert cli.main(["plan", "-f", str(manifest), "--rate-match", "-o", "json"]) == 0
    curves = json.loads(capsys.readouterr().out)["rateMatching"]["generationCurves"]
    assert {curve[-1]["concurrency"] for curve in curves.values() if curve} == {6}


def test_files_that_cannot_be_matched_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "dis.yaml"
    manifest.write_text(SERVICE)
    given = ["plan", "-f", str(manifest), "--rate-match", "--curves"]
    one = swept_for_service(tmp_path, 4)
    assert cli.main([*given, one, "--curves", one]) == 2
    assert f"{one}: context: {one} has curves of degree 4, too; give one of them" in capsys.readouterr().err
    assert cli.main([*given, swept_for_service(tmp_path, 3)]) == 2
    assert "allows for role prefill (degrees swept: 3)" in capsys.readouterr().err
    assert cli.main([*given, swept_for_service(tmp_path, 2, generation=())]) == 2
    assert "generation: no file has a curve" in capsys.readouterr().err
    assert cli.main([*given, str(tmp_path / "missing.yaml")]) == 2
    assert "missing.yaml: No such file" in capsys.readouterr().err
    assert cli.main(["plan", "-f", str(manifest), "--curves", one]) == 2
    assert "add --rate-match, or leave --curves out" in capsys.readouterr().err


def test_curves_of_another_model_or_gpu_are_remarked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, path = tmp_path / "dis.yaml", tmp_path / "other.yaml"
    manifest.write_text(SERVICE)
    long = tuple(row.model_copy(update={"prompt_tokens": 8 * row.prompt_tokens}) for row in sweep(4).context)
    write_sweep(sweep(4, context=long, gpu="nvidia-h100"), path)
    assert cli.main(["plan", "-f", str(manifest), "--rate-match", "--curves", str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"{path} is of model m, the service's is meta-llama/Llama-3.1-70B-Instruct" in out
    assert f"{path} is of GPU nvidia-h100, the service's pools have nvidia-h20" in out


def test_noise_makes_no_larger_batch_faster() -> None:
    rows = tuple(
        GenerationRow(context_tokens=1000, concurrency=n, itl=itl) for n, itl in ((1, 0.01), (4, 0.02), (16, 0.012))
    )
    server = MeasuredServer(sweep(generation=rows))
    assert [server.itl(n, 1000) for n in (1, 4, 16)] == [0.01, 0.02, 0.02]
    assert any("steps of 1000 x 16 were measured shorter" in remark for remark in server.remarks(rounds()))
    assert not any("noise" in remark for remark in MeasuredServer(sweep()).remarks(rounds()))
