"""Lay out the curves of a sweep."""

from collections.abc import Iterator

from weft_core.parallelism import gpus_of, gpus_words
from weft_planner.profiling.sweep_file import Sweep
from weft_planner.tables import figures
from weft_planner.tables.writing import QUIET, Paragraph, Part, TextTable


def sweep_parts(sweep: Sweep) -> list[Part]:
    """Return what to print of a sweep."""
    return [*_parts(sweep)]


def _parts(sweep: Sweep) -> Iterator[Part]:
    gpus = gpus_of(sweep.degree)
    where = f" on {sweep.gpu}" if sweep.gpu else ""
    held = f"; its KV cache holds {sweep.kv_capacity_tokens} tokens" if sweep.kv_capacity_tokens else ""
    yield Paragraph(
        f"{sweep.model}{where}, {sweep.engine}, {gpus_words(sweep.degree)}: {sweep.requests} requests in "
        f"{sweep.duration:.0f} s{held}."
    )
    if sweep.context:
        yield TextTable(
            ["PROMPT>", "CLIENTS>", "TTFT P50>", "TTFT P95>", "PROMPTS/S>", "TOKENS/S/GPU>"],
            [
                [
                    str(row.prompt_tokens),
                    str(row.concurrency),
                    figures.latency(row.ttft.p50),
                    figures.latency(row.ttft.p95),
                    figures.rate(row.prompts_per_second),
                    figures.rate(row.prompts_per_second * row.prompt_tokens / gpus),
                ]
                for row in sorted(sweep.context, key=lambda r: (r.prompt_tokens, r.concurrency))
            ],
            title="Context",
        )
    if sweep.generation:
        yield TextTable(
            ["CONTEXT>", "SEQUENCES>", "ITL>", "TOKENS/S/USER>", "TOKENS/S/GPU>"],
            [
                [
                    str(row.context_tokens),
                    str(row.concurrency),
                    figures.latency(row.itl),
                    figures.rate(1 / row.itl),
                    figures.rate(row.concurrency / row.itl / gpus),
                ]
                for row in sorted(sweep.generation, key=lambda r: (r.context_tokens, r.concurrency))
            ],
            title="Generation",
        )
    if sweep.aggregated:
        shape = sweep.aggregated[0]
        yield TextTable(
            ["CLIENTS>", "TTFT P50>", "TTFT P95>", "ITL>", "TOKENS/S/USER>", "TOKENS/S/GPU>"],
            [
                [
                    str(row.concurrency),
                    figures.latency(row.ttft.p50),
                    figures.latency(row.ttft.p95),
                    figures.latency(row.itl),
                    figures.rate(1 / row.itl),
                    figures.rate(row.tokens_per_second / gpus),
                ]
                for row in sorted(sweep.aggregated, key=lambda r: r.concurrency)
            ],
            title=f"Aggregated, prompts of {shape.prompt_tokens} and answers of {shape.answer_tokens} tokens",
        )
    for note in sweep.notes:
        yield Paragraph(note, lead="note:", style=QUIET)
