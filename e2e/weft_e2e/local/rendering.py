"""What one machine runs for a service: the operator's own rendering of it, with addresses of loopback. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from weft_cli.errors import BadInputError
from weft_core.layouts import WorkerRole
from weft_core.plan import canonical_json
from weft_e2e.local.fork_server import Part
from weft_e2e.local.ports import HOST
from weft_e2e.local.roles import role_file
from weft_operator.api.objects import ServiceKey
from weft_operator.api.service import DisaggInferenceService, DisaggInferenceServiceSpec
from weft_operator.planning.planner_process import Planned
from weft_operator.render.config_maps import front_config, live_config, profile_key, router_config
from weft_operator.render.engines import mock
from weft_operator.render.engines.container import EngineRequest
from weft_operator.render.inputs import PlanRecord, Rendering
from weft_operator.settings import Settings
from weft_operator.workers.fleet import Worker, first_workers

ROUTER = "router"
DRAIN_S = 0.5
"""How long live requests may finish once all is to end: whoever pressed Ctrl-C waits for it."""

NAMESPACE = "local"
MOVABLE = frozenset({"vllm", "mock"})
"""Types of engines that do both at any time; others are started for one role."""
Layout = Literal["planned", "symmetric", "hybrid"]
TOKEN = "token"  # noqa: S105 - the name of a file
"""The file of the token that /debug/decisions asks for."""

_NO_CLUSTER = Settings(router_image="", mock_image="", redis_url="memory://")


@dataclass(frozen=True, slots=True)
class Given:
    """An engine that runs already: its role and URL."""

    role: WorkerRole
    url: str


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine the router stands in front of; ``side_port`` is where a mock engine hands out KV."""

    name: str
    worker: Worker
    url: str
    role: WorkerRole
    """The role that it begins with."""
    side_port: int = 0


def rendering_of(service: DisaggInferenceService, planned: Planned) -> Rendering:
    """Return what the operator would render a service and its plan from."""
    metadata = service.metadata
    record = PlanRecord(
        spec=service.spec, plan=planned.plan, profile=planned.profile, request_hash="", profiles=planned.profiles
    )
    key = ServiceKey(metadata.namespace or NAMESPACE, metadata.name)
    return Rendering(key=key, uid="", record=record, settings=_NO_CLUSTER)


def workers_of(rendering: Rendering) -> tuple[Worker, ...]:
    """Return the workers of the plan, named by role: here no role changes."""
    return first_workers(rendering.record.plan.groups)


def mock_engines(rendering: Rendering, ports: Sequence[int]) -> tuple[Engine, ...]:
    """Return a mock engine for every planned worker; each takes two of ``ports``."""
    pairs = zip(ports[::2], ports[1::2], strict=True)
    return tuple(
        Engine(worker.name(rendering.key.name), worker, f"http://{HOST}:{port}", worker.role, side)
        for worker, (port, side) in zip(workers_of(rendering), pairs, strict=True)
    )


def given_engines(rendering: Rendering, given: Sequence[Given]) -> tuple[Engine, ...]:
    """Return engines that run already, each as a planned worker of its role: its degree and pool cost what it costs.

    Raises:
        BadInputError: a role of the plan has no engine, or an engine has a role that the plan has not.
    """
    planned: dict[WorkerRole, list[Worker]] = {}
    for worker in workers_of(rendering):
        planned.setdefault(worker.role, []).append(worker)
    roles = {one.role for one in given}
    if lacking := sorted(set(planned) - roles):
        words = f"the plan has {lacking[0]} workers; add --engine {lacking[0]}=http://HOST:PORT for each"
        raise BadInputError("--engine", words)
    if spare := sorted(roles - set(planned)):
        raise BadInputError("--engine", f"{spare[0]}=…: the plan has no {spare[0]} workers; leave it out")
    engines = []
    count: dict[WorkerRole, int] = {}
    for one in given:
        index = count[one.role] = count.get(one.role, -1) + 1
        of_role = planned[one.role]
        like = of_role[min(index, len(of_role) - 1)]
        engines.append(Engine(f"{one.role}-{index}", like, one.url, one.role))
    return tuple(engines)


def movable(rendering: Rendering) -> bool:
    """Return whether workers' roles may change: their engines do both with the same settings, and hand KV over."""
    engine = rendering.spec.engine
    alike = engine.prefill is None and engine.decode is None
    return rendering.record.paired and engine.type in MOVABLE and alike


def lay_out(rendering: Rendering, engines: Sequence[Engine], layout: Layout) -> tuple[Engine, ...]:
    """Return the engines with the roles of another layout than the plan's.

    ``symmetric``: all have the role both; ``hybrid``: those that decode do, beside the plan's prefill workers.

    Raises:
        BadInputError: the roles of these engines are fixed.
    """
    if layout == "planned":
        return tuple(engines)
    if not movable(rendering):
        words = (
            "the roles of its workers are fixed: a layout of the engine types vllm and mock, not co-located, has others"
        )
        raise BadInputError(f"--layout {layout}", words)
    symmetric = layout == "symmetric"
    return tuple(replace(one, role="both") if symmetric or one.role == "decode" else one for one in engines)


def files(rendering: Rendering, engines: Sequence[Engine]) -> dict[str, str]:
    """Return every file that router and mock engines read, by name: the operator's ConfigMaps, and the workers."""
    files: dict[str, str] = dict(router_config(rendering)["data"])
    front = front_config(rendering)
    if front is not None:
        files |= front["data"]
    files |= live_config(rendering)["data"]
    files["router.json"] = canonical_json(_of_this_machine(orjson.loads(files["router.json"])))
    files["workers.json"] = canonical_json(
        {
            "workers": [
                {
                    "name": engine.name,
                    "role": engine.role,
                    "url": engine.url,
                    "degree": engine.worker.degree,
                    "pool": engine.worker.pool,
                    **({"roleFile": role_file(engine.name)} if movable(rendering) else {}),
                }
                for engine in engines
            ]
        }
    )
    if movable(rendering):
        files |= {role_file(engine.name): f"{engine.role}\n" for engine in engines}
    return files


def _of_this_machine(router: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what needs things of a cluster: Secrets, an identity provider, a collector (see ``left_out``)."""
    return {name: value for name, value in router.items() if name not in ("auth", "tls", "telemetry")}


def left_out(spec: DisaggInferenceServiceSpec, *, given: bool) -> tuple[str, ...]:
    """Say what is not as in the file."""
    auth, said = spec.coordinator.auth, []
    if auth.api_key_secret_ref is not None:
        said.append("spec.coordinator.auth.apiKeySecretRef: no key is asked for; name a file in WEFT_API_KEYS_FILE")
    if auth.jwt is not None:
        said.append("spec.coordinator.auth.jwt: no token is asked for")
    if spec.coordinator.tls is not None:
        said.append("spec.coordinator.tls: plain HTTP, on loopback only")
    if spec.telemetry is not None and spec.telemetry.otlp_endpoint is not None:
        said.append("spec.telemetry.otlpEndpoint: no spans are sent")
    if spec.engine.type != "mock" and not given:
        said.append(f"spec.engine.type {spec.engine.type}: mock engines stand in for it; --engine names real ones")
    if spec.engine.kv_events is not None:
        said.append("spec.engine.kvEvents: the router is one process, which estimates what engines have cached")
    if spec.kv_cache is not None and not given:
        if spec.engine.type not in ("mock", "vllm"):
            said.append(f"spec.kvCache: mock engines that stand in for {spec.engine.type} keep KV in none of its tiers")
        elif spec.kv_cache.remote is not None:
            said.append("spec.kvCache.remote: mock engines have no store")
    return tuple(said)


def engine_part(rendering: Rendering, engine: Engine, *, folder: Path, time_scale: float | None) -> Part:
    """Return the process of a mock engine: the arguments it has in a pod, with this machine's addresses after them."""
    record, worker, spec = rendering.record, engine.worker, rendering.spec
    if spec.engine.type != "mock":  # arguments of the real engine mean nothing to its stand-in
        real = rendering.engine(worker.role)
        spec = spec.model_copy(update={"engine": real.model_copy(update={"args": []})})
    # A mock engine loads no weights, and here nothing has downloaded any; nobody listens to KV events.
    spec = spec.model_copy(
        update={
            "model": spec.model.model_copy(update={"source": None}),
            "engine": spec.engine.model_copy(update={"kv_events": None}),
        }
    )
    profile = profile_key(worker.pool) if worker.pool in record.profiles else "profile.json"
    request = EngineRequest(
        role=worker.role,
        degree=worker.degree,
        default_image="",
        paired=record.paired,
        profile_file=str(folder / profile),
    )
    own = [
        f"--listen={engine.url.removeprefix('http://')}",
        f"--side-channel-host={HOST}",
        f"--side-channel-port={engine.side_port}",
        f"--engine-id={engine.name}",
        f"--drain-seconds={DRAIN_S}",
    ]
    if spec.engine.type != "mock":
        own += [f"--protocol={spec.engine.type}", "--no-plugin"]
    if movable(rendering):
        own.append("--role=both")
    if time_scale is not None:
        own.append(f"--time-scale={time_scale:g}")
    args = mock.build_container(spec, request).args
    return Part(engine.name, "mock-engine", (*args[1:], *own), str(folder / f"{engine.name}.log"))


def router_part(*, folder: Path, port: int) -> Part:
    """Return the process of the router, which has the duties of coordinator and sidecars."""
    args = (
        "--role=standalone",
        f"--config={folder / 'router.json'}",
        f"--workers={folder / 'workers.json'}",
        f"--listen={HOST}:{port}",
        f"--drain-seconds={DRAIN_S}",
    )
    env = {"WEFT_LIVE_FILE": str(folder / "live.json"), "WEFT_TOKEN_FILE": str(folder / TOKEN)}
    return Part(ROUTER, "router", args, str(folder / "router.log"), env)
