"""How one worker splits a model over its GPUs: by tensors alone, or by stages, ranks and experts, too.

A *degree* is a number of GPUs that share every layer by tensors, or a ``Parallelism``. GPUs of both are counted by
``gpus_of``. Text and JSON have 8 for the first and ``tp4pp2`` or ``dp16ep`` for the second, layouts
``P8x1 D[dp16ep]x2``.
"""

import re
from dataclasses import dataclass
from typing import TypeAlias

_FORM = re.compile(r"(?:tp(\d{1,4}))?(?:pp(\d{1,4}))?(?:dp(\d{1,4}))?(ep)?")


@dataclass(frozen=True, slots=True)
class Parallelism:
    """One worker on tp x pp x dp GPUs.

    ``tp`` GPUs share a layer by tensors; ``pp`` stages have consecutive layers each; ``dp`` ranks have attention and
    batches of their own and step together. Routed experts lie over all tp x dp GPUs of a stage: with ``ep`` whole
    experts, otherwise a part of each. ``degree_of`` makes one, so that 8 GPUs by tensors alone have one form.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no worker.

        Raises:
            ValueError: a part is below 1.
        """
        for name, value in (("tp", self.tp), ("pp", self.pp), ("dp", self.dp)):
            if value < 1:
                raise ValueError(f"{name}: {value} is below 1; give 1 or more")

    @property
    def gpus(self) -> int:
        """Return how many GPUs the worker has."""
        return self.tp * self.pp * self.dp

    @property
    def batches(self) -> int:
        """Return how many batches run at a time: one in each stage of each rank."""
        return self.pp * self.dp

    @property
    def expert_gpus(self) -> int:
        """Return over how many GPUs the experts of a layer lie."""
        return self.tp * self.dp

    def __str__(self) -> str:
        """Return the form that ``parse_degree`` reads: tp4pp2, dp16ep, tp2dp8ep."""
        parts = [f"{name}{value}" for name, value in (("tp", self.tp), ("pp", self.pp), ("dp", self.dp)) if value > 1]
        return "".join(parts + ["ep"] * self.ep) or "1"

    def __lt__(self, other: "Degree") -> bool:
        """Order degrees by their GPUs, then by how these are used."""
        return _order(self) < _order(other)

    def __gt__(self, other: "Degree") -> bool:
        """Order degrees by their GPUs, then by how these are used."""
        return _order(self) > _order(other)


Degree: TypeAlias = int | Parallelism


def degree_of(*, tp: int = 1, pp: int = 1, dp: int = 1, ep: bool = False) -> Degree:
    """Return a degree: the number of GPUs where they share layers by tensors alone.

    Raises:
        ValueError: a part is below 1.
    """
    found = Parallelism(tp, pp, dp, ep)
    return tp if found == Parallelism(tp) else found


def parallelism_of(degree: Degree) -> Parallelism:
    """Return the parts of a degree."""
    return Parallelism(degree) if isinstance(degree, int) else degree


def gpus_of(degree: Degree) -> int:
    """Return how many GPUs a worker of a degree has."""
    return degree if isinstance(degree, int) else degree.gpus


def batches_of(degree: Degree) -> int:
    """Return how many batches a worker of a degree runs at a time."""
    return 1 if isinstance(degree, int) else degree.batches


def links_between(source: Degree, destination: Degree) -> int:
    """Return how many pairs of GPUs move a prompt's KV: the tp x pp of one rank, on the side that has fewer."""
    return min(parts.tp * parts.pp for parts in (parallelism_of(source), parallelism_of(destination)))


def gpus_words(degree: Degree) -> str:
    """Return how people say it: 1 GPU, 8 GPUs, 16 GPUs (dp16ep)."""
    gpus = gpus_of(degree)
    words = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    return words if isinstance(degree, int) else f"{words} ({degree})"


def degree_key(degree: Degree) -> str:
    """Return a text that sorts by GPUs."""
    return f"{gpus_of(degree):04d}" if isinstance(degree, int) else f"{gpus_of(degree):04d} {degree}"


def in_layout(degree: Degree) -> str:
    """Return a degree as layouts have it: 8 in P8x1, [dp16ep] in D[dp16ep]x2."""
    return str(degree) if isinstance(degree, int) else f"[{degree}]"


def parse_degree(text: str) -> Degree:
    """Return the degree of a text: 8, tp4pp2, dp16ep.

    Raises:
        ValueError: it is none; the message says how to write one.
    """
    if text.isascii() and text.isdigit() and 0 < int(text) < 10_000:
        return int(text)
    match = _FORM.fullmatch(text)
    if not text or match is None or "0" in match.groups():
        raise ValueError(
            f"{text!r} is not a degree; write a number of GPUs, or the parts above 1 in this order: tp4pp2, dp16ep"
        )
    tp, pp, dp, ep = match.groups()
    return degree_of(tp=int(tp or 1), pp=int(pp or 1), dp=int(dp or 1), ep=bool(ep))


def degree_to_json(degree: Degree) -> int | str:
    """Return a degree as JSON has it: a number, or a text."""
    return degree if isinstance(degree, int) else str(degree)


def degree_from_json(value: object) -> Degree:
    """Return the degree of a JSON value.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, str) and not value.isdigit():
        return parse_degree(value)
    raise ValueError(f"{value!r} is not a degree; write a number of GPUs, or parts as text, such as tp4pp2 or dp16ep")


def _order(degree: Degree) -> tuple[int, int, int, int, bool]:
    parts = parallelism_of(degree)
    return parts.gpus, parts.tp, parts.pp, parts.dp, parts.ep
