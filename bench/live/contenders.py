"""Everything that is compared: Weft's default, its modes, the rules of the literature, and other projects' routers."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bench.live.cells import CHUNK, CONTEXT, Cell
from bench.router.peers import QUIET, SGLANG, VLLM, Backends, sglang_command, vllm_command
from bench.router.processes import LAUNCH

from weft_core.policies.registry import MODES
from weft_e2e.agreement.scenario import OPTIONS, policy_choice, slicing_options
from weft_e2e.stack_config import Front, Protocol, StackConfig
from weft_planner.simulation import Options, PolicyChoice
from weft_planner.simulation.inputs import slices

DEFAULT = "default"
"""Weft's rule in the mode that the planner takes for the cell."""
AMPD = "ampd"
PEER_BINDING = "least-requests"
"""How peers choose a decode worker, as far as the simulator can say."""


@dataclass(frozen=True, slots=True)
class PeerRouter:
    """Another project's router: its version, what its engines speak, and its command line."""

    version: str
    protocol: Protocol
    policy: str
    command: Callable[[Backends, int, int], Sequence[str]]

    def argv(self, engines: Backends, port: int, spare: int) -> list[str]:
        """Return the command line of a process that ends with the one who starts it."""
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        return [sys.executable, "-c", LAUNCH, cores, *self.command(engines, port, spare)]


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to route: a policy of Weft's (``weft/imd`` names its mode, too) with a binding, or a peer."""

    name: str
    policy: str = ""
    binding: str = ""
    peer: PeerRouter | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def choice(self, cell: Cell) -> PolicyChoice | None:
        """Return the rules as the simulator takes them; None where it does not know them: peers' co-located ones."""
        if self.peer is not None:
            if cell.colocated:
                return None
            return PolicyChoice(self.peer.policy.replace("_", "-"), "", PEER_BINDING, "fcfs")
        choice = policy_choice(self.policy)
        return PolicyChoice(choice.route, choice.mode, self.binding or choice.binding, choice.order)

    def options(self, cell: Cell, slow: float) -> Options:
        """Return how engines behave in the simulator."""
        choice = self.choice(cell)
        if choice is not None and slices(choice, OPTIONS):
            return slicing_options(cell.profile(slow).degrees[cell.layout.decode[0].degree])
        if cell.colocated:  # the engine takes all that waits into its next step
            return Options(
                chunked=True, chunk_limit=CHUNK, chunk_fraction=float("inf"), links="none", warm_up=0.0, cool_down=0.0,
                handover="pull",
            )  # fmt: skip
        if self.peer is not None and self.peer.protocol == "sglang":
            return replace(OPTIONS, handover="push")
        return OPTIONS

    def stack(self, cell: Cell, slow: float, front: Front) -> StackConfig:
        """Return the processes to start in a cell."""
        slo = cell.slo(slow)
        choice = self.choice(cell) if self.peer is None else None
        return StackConfig(
            profile=cell.profile(slow * cell.profile_error),
            time_scale=1 / cell.profile_error,
            workers=cell.workers,
            policy="weft" if choice is None else choice.route,
            mode="" if choice is None else choice.mode,
            binding="" if choice is None else choice.binding,
            ttft_s=slo.ttft_s,
            itl_s=slo.itl_s,
            max_model_len=CONTEXT + 256,
            chunk=CHUNK,
            bidirectional=self.peer is None,
            front=front if self.peer is None else "none",
            protocol="vllm" if self.peer is None else self.peer.protocol,
        )


def _peers() -> dict[str, Contender]:
    found = {}
    for short, package, protocol, command, policies in (
        ("vllm", VLLM, "vllm", vllm_command, ("cache_aware", "sticky_least_loaded", "consistent_hash", "power_of_two")),
        ("sglang", SGLANG, "sglang", sglang_command, ("cache_aware", "power_of_two")),
    ):
        for policy in policies:
            router = PeerRouter(package.version, protocol, policy, partial(command, policy=policy))  # type: ignore[arg-type]
            found[f"{short} {policy}"] = Contender(f"{short} {policy}", peer=router, env=QUIET)
    return found


PEERS = _peers()
MODE_NAMES = tuple(f"weft/{mode}" for mode in MODES)
RULES = ("remote-jsq", AMPD, "ppd", "always-remote", "always-local")
PROFILE_FREE = frozenset({"remote-jsq", *PEERS})
"""They route alike whatever a cost profile says: by counts, or by comparing predictions that are wrong alike."""
BINDINGS = ("round-robin", "kv-headroom", "prefix-aware")
"""Of co-located workers, beside the default: there is nothing else to choose."""


def contenders_of(cell: Cell, default: str) -> dict[str, Contender]:
    """Return all that can run in a cell; ``default`` is the policy of Weft's default there.

    A mode that the default runs in is not run twice: they are one service.
    """
    found = {DEFAULT: Contender(DEFAULT, default)}
    if cell.colocated:
        for binding in BINDINGS:
            found[f"colocated/{binding}"] = Contender(f"colocated/{binding}", "colocated", binding)
    else:
        for name in (*MODE_NAMES, *RULES):
            if name != default:
                found[name] = Contender(name, name)
    return found if cell.both else found | PEERS
