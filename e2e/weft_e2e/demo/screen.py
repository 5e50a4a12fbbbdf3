"""Lay out a scene as one screen of a terminal. Pure."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weft_core.parallelism import gpus_words
from weft_e2e.demo.scene import ReplanTimeline, Worker

_BAR = 24
_FACTS = 8
_STYLES = {"starting": "yellow", "ready": "green", "draining": "magenta"}
_NAMES = 10


def screen(scene: ReplanTimeline) -> RenderableType:
    """Return the whole screen: what arrives, what is seen, what was decided and why, who serves, what became of it."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", width=_NAMES, no_wrap=True)
    rows.add_column()
    rows.add_row("arrives", Text(scene.arrives, style="bold"))
    rows.add_row("is seen", _seen(scene))
    rows.add_row("", _lengths(scene))
    rows.add_row("plan", _plan(scene))
    if scene.why:
        rows.add_row("because", Text(scene.why))
    for number, line in enumerate(scene.diff):
        rows.add_row("changes" if number == 0 else "", Text(line))
    for number, worker in enumerate(scene.workers):
        rows.add_row("workers" if number == 0 else "", _worker(worker))
    rows.add_row("rounds", _rounds(scene))
    for number, (at_s, words) in enumerate(scene.facts[-_FACTS:]):
        rows.add_row("so far" if number == 0 else "", Text.assemble((f"{at_s:5.1f} s  ", "dim"), words))
    return Group(Text(f"The traffic has changed: second {scene.at_s:.0f}", style="bold underline"), rows)


def _seen(scene: ReplanTimeline) -> Text:
    rate, bound = scene.seen_rate, scene.bound_rate
    if rate is None:
        return Text(
            f"nothing for now ({scene.metrics_reason}), so nothing is concluded"
            if len(scene.plans) > 1
            else "nothing yet"
        )
    words = Text(f"{rate:.2f} sessions/s  ")
    if bound:
        scale = max(rate, bound) * 1.15
        full, mark = round(_BAR * rate / scale), min(_BAR - 1, round(_BAR * bound / scale))
        beyond = "red" if rate > bound else "green"
        for cell in range(_BAR):
            words.append("│" if cell == mark else "█" if cell < full else "·", style=beyond if cell < full else "dim")
        words.append(f"  the active plan holds the SLO up to {bound:.2f}", style="dim")
    return words


def _lengths(scene: ReplanTimeline) -> Text:
    words = Text()
    for name, seen, bound in (
        ("a first prompt", scene.seen_prompt, scene.bound_prompt),
        ("an answer", scene.seen_answer, scene.bound_answer),
    ):
        if seen is not None and bound:
            words.append(", " if words else "", style="dim")
            words.append(f"{seen:.0f} tokens in {name}", style="red" if seen > 1.2 * bound else "green")
            words.append(f" (plan: {bound:.0f})", style="dim")
    return words


def _plan(scene: ReplanTimeline) -> Text:
    if len(scene.plans) == 1:
        return Text(scene.plans[0], style="bold")
    return Text.assemble(scene.plans[0], " → ", (scene.plans[-1], "bold green"))


def _worker(worker: Worker) -> Text:
    gpus = gpus_words(worker.degree)
    words = Text(f"{worker.name:<24} {worker.role:<8} {gpus:<7}")
    words.append(f"{worker.state:<10}", style=_STYLES[worker.state])
    if worker.sessions is not None:
        words.append(f"{worker.sessions} sessions")
    return words


def _rounds(scene: ReplanTimeline) -> Text:
    rounds = scene.rounds
    words = Text(f"{rounds.served} served, {rounds.running} running, ")
    return words.append(f"{rounds.failed} failed", style="bold red" if rounds.failed else "green")
