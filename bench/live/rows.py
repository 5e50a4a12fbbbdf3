"""Run one contender once: fresh engines and routers, the sessions of a seed at a rate, and what came of them."""

import asyncio
import json
import os
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from bench.live.cells import CELLS, Cell
from bench.live.contenders import Contender, contenders_of
from bench.live.prediction import predict
from bench.live.record import Predicted, Row
from bench.live.search import rate_of
from bench.live.workloads import sample_of
from bench.router.compiled import BenchError
from bench.router.peers import Backends
from bench.router.weft import free_ports

from weft_core.policies.inputs import LOCAL
from weft_core.slo import PER_SESSION
from weft_e2e.agreement.live import Measured, measure
from weft_e2e.forked import ProcessGroup
from weft_e2e.metrics import Growth, MetricMissing
from weft_e2e.stack import HOST, TOKEN, Stack, running
from weft_e2e.stack_config import Front
from weft_e2e.waiting import until
from weft_planner.simulation import Outcome
from weft_planner.simulation.records import SERVED
from weft_planner.simulation.statistics import met
from weft_router.ask import ask

READY_S = 60.0
WAIT_LIMIT_S = 0.4
"""How long a round's work may wait for a core, in all processes. A round has nearly a hundred tokens here, and engines
make up for late steps: where it waited 0.23 s, P95 TTFT and ITL were within 2 % of the prediction, and where it waited
0.36 s, attainment was that of a repetition in which it waited half as long."""
TRUSTED = "weft_router_predictions_trusted "


@dataclass(frozen=True, slots=True)
class Task:
    """One run to make; ``default`` is the policy of Weft's default in the cell, ``attempt`` numbers its repetitions.

    ``folder`` is where its files go; ``compiled`` the folder of modules that routers run with, "" for the sources.
    """

    cell: str
    contender: str
    default: str
    step: int
    seed: int
    sessions: int
    slow: float = 1.0
    front: Front = "sidecars"
    folder: str = ""
    compiled: str = ""
    attempt: int = 0


def run(task: Task) -> Row:
    """Make a run.

    Raises:
        BenchError: a peer is not available or does not serve.
        ReplayFailedError: a prompt had another length than the sample says.
    """
    cell = CELLS[task.cell]
    contender = contenders_of(cell, task.default)[task.contender]
    sample = sample_of(cell.kind, rate=rate_of(task.step), seed=task.seed, sessions=task.sessions, slow=task.slow)
    simulated, predicted = predict(cell, contender, sample, task.slow)
    began = time.monotonic()
    family, folder = _family(task.folder, task.compiled)
    words = f"{task.cell} {task.contender} {task.step} {task.seed} {task.attempt}"
    with ExitStack() as ends:
        config = contender.stack(cell, task.slow, task.front)
        stack = ends.enter_context(running(config, folder, family=family))
        if contender.peer is not None:
            _front(stack, contender)
        measured = asyncio.run(measure(stack, simulated, run=words.replace(" ", "-"), failures=True))
        trusted = contender.peer is not None or _trusted(stack)
        errors = {} if contender.peer is not None else prediction_errors(_decisions(stack))
    row = row_of(task, cell, measured, predicted=predicted, trusted=trusted, wall_s=time.monotonic() - began)
    return replace(row, errors=errors)


@cache
def _family(within: str, compiled: str) -> tuple[ProcessGroup, Path]:
    """Return the parent of all engines and routers that this process starts; they end with it."""
    folder = Path(mkdtemp(prefix="stack-", dir=within or None))
    if compiled:  # only for them: the simulator compiles the sources itself
        os.environ["PYTHONPATH"] = compiled
    return ProcessGroup(folder), folder


def _front(stack: Stack, contender: Contender) -> None:
    """Start a peer in front of a stack's engines and wait until it answers."""
    peer = contender.peer
    assert peer is not None  # noqa: S101 - asked for peers only
    names = {role: [w.name for w in stack.config.workers if w.role == role] for role in ("prefill", "decode")}
    engines = Backends(
        [stack.engine_ports[name] for name in names["prefill"]],
        [stack.engine_ports[name] for name in names["decode"]],
        [stack.side_ports[name] for name in names["prefill"]],
    )
    port, spare = free_ports(2)
    stack.start_front(peer.argv(engines, port, spare), port, env=contender.env)
    try:
        until(lambda: _answers(stack), what=f"{contender.name} to answer", timeout_s=READY_S, every_s=0.2)
    except TimeoutError as error:
        log = (stack.folder / "front.log").read_text(errors="replace")[-500:]
        raise BenchError(f"{error}; {log}") from error


def _answers(stack: Stack) -> bool:
    """Tell whether a small request is answered: a router may serve before it knows its engines."""
    body = {"model": stack.target.model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    headers = {"Content-Type": "application/json"}
    url = f"{stack.target.url}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=20):  # noqa: S310 - loopback
            return True
    except OSError:  # HTTP errors, too
        return False


def _trusted(stack: Stack) -> bool:
    """Tell whether all who decide trust their predictions now."""
    decide = {worker.name for worker in stack.config.workers if worker.role != "prefill"}
    names = decide if stack.config.front == "sidecars" else {"coordinator"}
    pages = stack.metrics_pages()
    lines = [line for name in names for line in pages[name].splitlines() if line.startswith(TRUSTED)]
    return all(float(line.split()[-1]) > 0 for line in lines)


def _decisions(stack: Stack) -> list[Mapping[str, Any]]:
    """Return the latest decisions of all who decide."""
    sidecars = [worker.name for worker in stack.config.workers if worker.role != "prefill"]
    found: list[Mapping[str, Any]] = []
    for name in sidecars if stack.config.front == "sidecars" else ["coordinator"]:
        url = f"http://{HOST}:{stack.router_ports[name]}/debug/decisions?n=1024"
        status, body = ask(url, token=TOKEN.encode())
        if status == 200:
            found += json.loads(body)["decisions"]
    return found


def prediction_errors(decisions: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, float, float]]:
    """Return observed over predicted TTFT by route: how many decisions tell both, the median and the P90."""
    ratios: dict[str, list[float]] = {}
    for one in decisions:
        if one["predicted_ttft"] and one["observed_ttft"] is not None:
            route = "local" if str(one["chosen"]).startswith("local") else "remote"
            ratios.setdefault(route, []).append(one["observed_ttft"] / one["predicted_ttft"])
    return {
        route: (len(values), _quantile(np.array(values), 0.5), _quantile(np.array(values), 0.9))
        for route, values in sorted(ratios.items())
    }


def row_of(
    task: Task, cell: Cell, measured: Measured, *, predicted: Predicted | None, trusted: bool, wall_s: float
) -> Row:
    """Return what a run showed, in seconds of the GPU."""
    outcome, slow = measured.outcome, task.slow
    sample = outcome.sample
    kept = met(outcome, PER_SESSION)
    first = sample.first_row
    ttft = outcome.ttft / slow
    served = outcome.state == SERVED
    late = np.logical_or.reduceat(~served | (ttft > cell.ttft_s), first)
    itl = session_itl(outcome) / slow
    later = np.ones(sample.rows, bool)
    later[first] = False
    counted = measured.counted
    return Row(
        cell=task.cell,
        contender=task.contender,
        step=task.step,
        rate=rate_of(task.step),
        seed=task.seed,
        slow=slow,
        rounds=sample.rows,
        failed=int((~served).sum()),
        met=tuple(int(one) for one in kept),
        late=int(late.sum()),
        stalled=int((itl > cell.itl_s).sum()),
        ttft_p50=_quantile(ttft, 0.5),
        ttft_p95=_quantile(ttft, 0.95),
        ttft_first_p95=_quantile(ttft[first], 0.95),
        ttft_later_p95=_quantile(ttft[later], 0.95),
        itl_p50=_quantile(itl, 0.5),
        itl_p95=_quantile(itl, 0.95),
        itl_mean=round(float(outcome.itl_mean.mean()) / slow, 5),
        gap_max=_quantile(np.maximum.reduceat(outcome.itl_max, first) / slow, 0.5),
        local=round(float((outcome.route == LOCAL).mean()), 4),
        reasons=decision_reasons(counted) if counted is not None else {},
        tokens=_tokens(counted) if counted is not None else {},
        trusted=trusted,
        waited_s=None if measured.waited_s is None else round(measured.waited_s, 4),
        lag_s=round(measured.load.lag_p99_s, 4),
        lost_s=round(measured.pace.lost_s, 3) if measured.pace is not None else 0.0,
        starved=measured.starved_beyond(WAIT_LIMIT_S * slow),
        wall_s=round(wall_s, 1),
        predicted=predicted,
    )


def session_itl(outcome: Outcome) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return each session's mean gap between tokens, in seconds; 0 without gaps."""
    first = outcome.sample.first_row
    seconds = np.add.reduceat(outcome.itl_mean * outcome.gaps, first)
    gaps = np.add.reduceat(outcome.gaps, first)
    return np.asarray(seconds / np.maximum(gaps, 1))


def _quantile(values: "np.ndarray[tuple[int], np.dtype[np.float64]]", share: float) -> float:
    """Return a quantile that was seen, rounded to a tenth of a millisecond; a round without an answer counts as 1e6."""
    if len(values) == 0:
        return 0.0
    return round(float(np.quantile(np.minimum(values, 1e6), share, method="higher")), 4)


def decision_reasons(counted: Growth) -> dict[str, int]:
    """Return how often the router decided for what, and why."""
    found: dict[str, int] = {}
    for page in counted.pages.values():
        for (name, labels), value in page.samples.items():
            if name == "weft_router_decisions_total" and value:
                of = dict(labels)
                key = f"{of['route']}: {of['reason']}"
                found[key] = found.get(key, 0) + int(value)
    return dict(sorted(found.items()))


KINDS_OF_TOKENS = {
    "history read": ("weft_router_history_tokens_total", {"kind": "read"}),
    "history cached": ("weft_router_history_tokens_total", {"kind": "cached"}),
    "history recomputed": ("weft_router_history_tokens_total", {"kind": "recomputed"}),
    "prompts": ("weft_mock_prompt_tokens_total", {}),
    "computed": ("weft_mock_prefilled_tokens_total", {}),
}
"""History by the router's count; prompts, and what of them was computed, by the engines' (both legs count)."""


def _tokens(counted: Growth) -> dict[str, int]:
    found = {}
    for key, (name, labels) in KINDS_OF_TOKENS.items():
        try:
            found[key] = int(counted.total(name, **labels))
        except MetricMissing:
            continue
    return found
