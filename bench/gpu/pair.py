"""Hold rounds over a vLLM pair of this machine: one GPU's, or CPU engines for a trial."""

import tempfile
from pathlib import Path

from bench.gpu.card import card_state
from bench.gpu.engines import GpuEnv, trio
from bench.gpu.record import Record, say
from bench.gpu.rounds import Figures, hold
from bench.profile.engines import NoEnginesError, pair

NAME = "rounds.json"


def run(out: Path, *, rounds: int, model: str, vllm: str, trial: bool) -> bool | None:
    """Hold the rounds and write them; None where there are no engines, else whether everything was right."""
    if not trial and not vllm:
        say("rounds: there is no vllm on the path; give it by --vllm PATH")
        return None
    try:
        figures = _trial(rounds) if trial else _on_gpu(rounds, model, vllm)
    except NoEnginesError as error:
        say(f"rounds: {error}")
        return None
    body = {"step": "rounds", "model": "weft/tiny" if trial else model, "card": card_state(), "rounds": figures.dump()}
    record = Record(out / NAME, body)
    record.save()
    say(f"rounds: {figures.equal} of {figures.rounds} answers equal the plain engine's; KV went both ways"
        if figures.right else f"rounds: not right: {figures.dump()}")  # fmt: skip
    return figures.right


def _trial(rounds: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder, pair(Path(folder), plain=True) as engines:
        # Its words are single characters: ids 0 to 95; answers of more than a block leave KV at the decode engine.
        return hold(engines, tuple(range(96)), rounds=rounds, first=300, added=150, tokens=160)


def _on_gpu(rounds: int, model: str, vllm: str) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        env = GpuEnv(Path(folder), program=vllm, served=model)
        with trio(env, Path(folder), context=8192) as engines:
            return hold(engines, tuple(range(1000, 9000)), rounds=rounds, first=2000, added=500, tokens=100)
