"""Other tools' tables: passes by a mapping of columns, operators of aiconfigurator and Vidur."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_planner.profiling.columns import mapping_of, read_mapped, read_passes
from weft_planner.profiling.measurements import GridCell, MeasurementError
from weft_planner.profiling.operator_tables import (
    RooflineTimer,
    TableTimer,
    TimingRow,
    aiconfigurator_tables,
    vidur_tables,
)
from weft_planner.profiling.operators import EstimatedAllReduce, Operator, OperatorUnknownError, compose, pass_of

LLAMA = MODELS["meta-llama/Llama-3.1-8B-Instruct"]
H100 = GPUS["nvidia-h100"]
TRUTH = RooflineTimer(H100)
ROWS = (1, 8, 64, 256, 1024, 4096, 16384)
WANTED = [
    GridCell("prefill", 1, increment=512),
    GridCell("prefill", 1, history=2048, increment=1024),
    GridCell("step", 1, batch=16, context=16 * 1000),
    GridCell("step", 1, history=1024, batch=8, context=8000, chunk=256),
]


def test_columns_are_renamed_and_converted() -> None:
    text = "phase,past,new,latency_ms\nprefill,0,16,12.5\nprefill,128,32,14\n"
    mapped = mapping_of(["function=phase", "degree=@4", "history=past", "increment=new", "seconds=latency_ms:ms"])
    rows = read_mapped(text, "t.csv", mapped).rows
    assert [(r.cell.degree, r.cell.history, r.cell.increment) for r in rows] == [(4, 0, 16), (4, 128, 32)]
    assert [r.seconds for r in rows] == pytest.approx([0.0125, 0.014])
    with pytest.raises(MeasurementError, match=r"t\.csv, phase: there is no such column; it has a"):
        read_mapped("a\n1\n", "t.csv", mapped)
    with pytest.raises(MeasurementError, match=r"t\.csv line 2, seconds: 'x' is not a number"):
        read_mapped("phase,past,new,latency_ms\nprefill,0,16,x\n", "t.csv", mapped)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("increment", "is neither FIELD=COLUMN"),
        ("length=isl", "'length' is no field; use function, degree"),
        ("seconds=t:min", "'min' is no unit of time; use s, ms, us, ns"),
        ("increment=isl", "function has neither a column nor a value"),
    ],
)
def test_a_mapping_that_makes_no_sense_is_named(spec: str, named: str) -> None:
    with pytest.raises(MeasurementError, match=named):
        mapping_of([spec])


def test_tables_of_whole_passes_give_prefills_and_steps() -> None:
    text = "model,isl,osl,prefix,bs,tp,ttft,tpot\nm,1024,128,256,1,2,50,8\nm,1024,128,0,16,2,700,12\n"
    rows = read_passes(text, "aic.csv").rows
    assert [row.cell for row in rows] == [
        GridCell("prefill", 2, history=256, increment=768),
        GridCell("step", 2, batch=1, context=1088),
        GridCell("step", 2, batch=16, context=16 * 1088),
    ]
    assert [row.seconds for row in rows] == pytest.approx([0.05, 0.008, 0.012])
    with pytest.raises(MeasurementError, match=r"aic\.csv line 2, seconds: nan is no time"):
        read_passes(text.replace(",50,", ",nan,"), "aic.csv")


def aiconfigurator(folder: Path) -> None:
    """Write tables of one GPU's operators as aiconfigurator's collector does, milliseconds."""
    head = "framework,version,device,op_name,kernel_source,"
    lead = "VLLM,0.24.0,H100,op,kernel,"
    shapes = {(op.inner, op.outer) for cell in WANTED for op in pass_of(LLAMA, cell) if op.kind in ("gemm", "head")}
    gemms = [
        f"{lead}bfloat16,{m},{n},{k},{TRUTH.seconds(Operator('gemm', m, inner=k, outer=n)) * 1e3}"
        for m, (k, n) in product(ROWS, sorted(shapes))
    ]
    (folder / "gemm_perf.csv").write_text("\n".join([f"{head}gemm_dtype,m,n,k,latency", *gemms]))
    columns = "batch_size,isl,num_heads,num_key_value_heads,head_dim,beam_width,attn_dtype,kv_cache_dtype,step,latency"
    contexts, generations = [], []
    for rows, context in product((16, 128, 512, 2048, 8192), (0, 1024, 8192)):
        op = Operator("prefill_attention", rows, context=context, heads=32, kv_heads=8, head_dim=128)
        contexts.append(f"{lead}1,{rows},32,8,128,1,bfloat16,bfloat16,{context},{TRUTH.seconds(op) * 1e3}")
    contexts.append(f"{lead}8,128,32,8,128,1,bfloat16,bfloat16,0,99")  # several prompts at once
    for rows, context in product((1, 4, 16, 64), (128, 1024, 8192)):
        op = Operator("decode_attention", rows, context=context + 1, heads=32, kv_heads=8, head_dim=128)
        generations.append(f"{lead}{rows},{context},32,8,128,1,bfloat16,bfloat16,1,{TRUTH.seconds(op) * 1e3}")
    (folder / "context_attention_perf.txt").write_text("\n".join([head + columns, *contexts]))
    (folder / "generation_attention_perf.txt").write_text("\n".join([head + columns, *generations]))


def vidur(folder: Path) -> None:
    """Write a model's tables as Vidur's profiler does, milliseconds."""
    h, inter = LLAMA.hidden, LLAMA.intermediate
    qkv = (LLAMA.heads + 2 * LLAMA.kv_heads) * LLAMA.head_dim
    names: dict[str, Callable[[int], Operator]] = {
        "attn_pre_proj": lambda m: Operator("gemm", m, inner=h, outer=qkv),
        "attn_post_proj": lambda m: Operator("gemm", m, inner=h, outer=h),
        "mlp_up_proj": lambda m: Operator("gemm", m, inner=h, outer=2 * inter),
        "mlp_down_proj": lambda m: Operator("gemm", m, inner=inter, outer=h),
        "mlp_act": lambda m: Operator("gated", m, outer=inter),
        "input_layernorm": lambda m: Operator("norm", m, outer=h),
        "emb": lambda m: Operator("embedding", m, inner=LLAMA.vocab, outer=h),
    }
    header = [f"time_stats.{name}.median" for name in names]
    fixed = "n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,num_tensor_parallel_workers"
    lines = [",".join([*header, fixed])]
    for m in ROWS:
        found = [str(TRUTH.seconds(make(m)) * 1e3) for make in names.values()]
        if m == 64:
            found[3] = ""  # not measured
        lines.append(",".join([*found, f"32,8,{h},{inter},{LLAMA.vocab},True,{m},1"]))
    (folder / "mlp.csv").write_text("\n".join(lines))
    times = "time_stats.attn_prefill.median,time_stats.attn_decode.median,n_embd,n_q_head,n_kv_head"
    lines = [f"{times},num_tensor_parallel_workers,batch_size,prefill_chunk_size,kv_cache_size,is_prefill"]
    for rows, context in product((16, 128, 512, 2048, 8192), (0, 1024, 8192)):
        op = Operator("prefill_attention", rows, context=context, heads=32, kv_heads=8, head_dim=128)
        lines.append(f"{TRUTH.seconds(op) * 1e3},,{h},32,8,1,1,{rows},{context},True")
    for rows, context in product((1, 4, 16, 64), (128, 1024, 8192)):
        op = Operator("decode_attention", rows, context=context, heads=32, kv_heads=8, head_dim=128)
        lines.append(f",{TRUTH.seconds(op) * 1e3},{h},32,8,1,{rows},0,{context},False")
    (folder / "attention.csv").write_text("\n".join(lines))


@pytest.mark.parametrize(("write", "read"), [(aiconfigurator, aiconfigurator_tables), (vidur, vidur_tables)])
def test_passes_are_composed_of_measured_tables(
    write: Callable[[Path], None], read: Callable[[Path], list[TimingRow]], tmp_path: Path
) -> None:
    write(tmp_path)
    timer = TableTimer(read(tmp_path), otherwise=TRUTH)
    got = compose(LLAMA, WANTED, timer)
    assert not got.left_out
    for ours, right in zip(got.rows, compose(LLAMA, WANTED, TRUTH).rows, strict=True):
        assert ours.seconds == pytest.approx(right.seconds, rel=0.1), ours.cell


def test_a_shape_that_was_not_measured_is_taken_from_a_near_one_or_refused() -> None:
    timer = TableTimer([TimingRow(Operator("gemm", m, inner=100, outer=100), 1e-3) for m in (1, 10)], otherwise=TRUTH)
    assert timer.seconds(Operator("gemm", 5, inner=100, outer=150)) == pytest.approx(1.5e-3)
    assert timer.seconds(Operator("gemm", 40, inner=100, outer=100)) == pytest.approx(4e-3)
    with pytest.raises(OperatorUnknownError, match="the tables have no gemm near 4096 x 4096; is it the right model"):
        timer.seconds(Operator("gemm", 5, inner=4096, outer=4096))
    attention = [
        TimingRow(Operator("decode_attention", b, context=9, heads=8, kv_heads=8, head_dim=64), b) for b in (1, 2)
    ]
    with pytest.raises(OperatorUnknownError, match="no decode_attention of 4 heads, 4 KV heads of 64"):
        TableTimer(attention, otherwise=TRUTH).seconds(
            Operator("decode_attention", 1, context=9, heads=4, kv_heads=4, head_dim=64)
        )
    assert EstimatedAllReduce(timer, LLAMA, H100).seconds(Operator("all_reduce", 1, outer=4096, count=2)) > 0


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("nan", "gemm_perf.csv line 2, latency: 'nan' is no time"),
        ("0", "gemm_perf.csv line 2, latency: '0' is no time"),
        ("-1", "gemm_perf.csv line 2, latency: '-1' is no time"),
    ],
)
def test_a_bad_time_in_a_table_is_named(value: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "gemm_perf.csv").write_text(f"gemm_dtype,m,n,k,latency\nbfloat16,1,2,3,{value}\n")
    with pytest.raises(MeasurementError, match=named):
        aiconfigurator_tables(tmp_path)


def test_a_folder_without_tables_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"holds none of Vidur's tables \(mlp\.csv, attention\.csv\)"):
        vidur_tables(tmp_path)
