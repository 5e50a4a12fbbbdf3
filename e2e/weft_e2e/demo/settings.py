"""What the demo runs and where: names, files, and the words of its command line."""

from dataclasses import dataclass, field
from pathlib import Path

from weft_e2e.replay.selection import Limits

CLUSTER = "demo"
# Real engines have one of their own: the demo's service takes all of the other one's GPUs.
ENGINES_CLUSTER = "demo-engines"
RELEASE = "weft"
SYSTEM_NAMESPACE = "weft-system"
NAMESPACE = "weft-demo"
EXAMPLE = "docs/examples/llama-3.1-70b.yaml"
CHART = "charts/weft"
# Marks the namespaces that the demo made itself, so that `down` removes those and no others.
MARK = "weft.dev/demo"
READY_S = 180.0
REPLAY_DEADLINE_S = 240.0

DEFAULT_TRACE = "claude_code"
# Sessions arrive at about the highest rate at which the plan for them holds the SLO. Each trace is replayed twice.
TRACE_LIMITS = {
    "claude_code": Limits(sessions=12, max_rounds=4, max_decode_tokens=128, arrivals_within_s=24),
    "gaia_whowhen": Limits(max_rounds=4, max_decode_tokens=160, arrivals_within_s=28),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the demo; ``context`` names the user's own cluster, None means the local one."""

    context: str | None = None
    trace: str = DEFAULT_TRACE
    limits: Limits = field(default_factory=lambda: TRACE_LIMITS[DEFAULT_TRACE])
    out: Path = Path("out/demo")
    helm_set: tuple[str, ...] = ()
    registry: str | None = None
    tag: str | None = None
    simulate_gpus: bool = False
    """Whether nodes of the user's cluster that have no GPUs shall announce some that do nothing."""
    drift: bool = True
    """Whether the traffic of a second service changes; on the local cluster only, whose GPUs are simulated."""

    @property
    def names_images(self) -> bool:
        """Return whether the command line says where a cluster finds Weft's images."""
        keys = {pair.partition("=")[0] for pair in self.helm_set}
        return self.registry is not None or bool(keys & {"image.registry", "operator.image"})

    def image_arguments(self) -> list[str]:
        """Return Helm's arguments for images in a registry."""
        arguments = []
        if self.registry:
            arguments += ["--set-string", f"image.registry={self.registry}"]
        if self.tag:
            arguments += ["--set-string", f"image.tag={self.tag}"]
        for pair in self.helm_set:
            arguments += ["--set", pair]
        return arguments


def repository_root() -> Path:
    """Return the checkout that holds chart and examples.

    Raises:
        FileNotFoundError: the package was installed without its checkout.
    """
    root = Path(__file__).resolve().parents[3]
    for needed in (CHART, EXAMPLE):
        if not (root / needed).exists():
            raise FileNotFoundError(f"{needed} is not beside the package: run the demo from a checkout of Weft")
    return root
