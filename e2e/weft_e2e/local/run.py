"""From a manifest to a service that answers, and to its end."""

import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from weft_core.layouts import ROLES, WorkerRole
from weft_core.worker_roles import has_duty
from weft_e2e.demo.steps import Say, Steps
from weft_e2e.local import ports, roles
from weft_e2e.local.planner import Planner
from weft_e2e.local.supervisor import Fell, ProcessSupervisor, answers, page

if TYPE_CHECKING:
    from weft_e2e.local.manifest import ServiceManifest
    from weft_e2e.local.rendering import Engine, Layout
    from weft_e2e.replay.selection import Limits
    from weft_operator.render.inputs import Rendering

ENGINE_ANSWER_S = 5.0
"""How long an engine that is said to run may take to answer."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for.

    ``given`` are role and URL of engines that run already; ``replay`` names a trace, None means to serve until Ctrl-C.
    """

    file: str
    name: str | None = None
    profiles: Sequence[str] = ()
    port: int | None = None
    given: Sequence[tuple[WorkerRole, str]] = ()
    time_scale: float | None = None
    replay: str | None = None
    sessions: int | None = None
    limits: "Limits | None" = None
    """Of the replayed sessions; None: those of the trace, at the arrival rate of the file."""
    report: Path = Path("out/local/report.html")
    logs: Path | None = None
    layout: "Layout" = "planned"


@dataclass(frozen=True, slots=True)
class Running:
    """A service that answers; ``mock`` tells whether its engines are mock engines."""

    service: "ServiceManifest"
    rendering: "Rendering"
    engines: "Sequence[Engine]"
    url: str
    folder: Path
    mock: bool

    def metrics_pages(self) -> dict[str, str]:
        """Return the metrics pages of the router and of every engine that answers."""
        wanted = {"router": self.url} | {f"{engine.name}/engine": engine.url for engine in self.engines}
        pages = {name: page(url, "/metrics") for name, url in wanted.items()}
        return {name: text for name, text in pages.items() if text is not None}


def run(options: Options, say: Say) -> int:
    """Plan, start, serve until Ctrl-C or replay; end everything. Return the exit status.

    Raises:
        BadInputError: the manifest is refused, or the engines given cannot serve the plan.
        PortTaken: somebody listens on the port asked for.
        NoPlan: there is no plan for this service.
        Fell: a part ended by itself.
        KeyboardInterrupt: Ctrl-C before everything was done.
    """
    steps = Steps(say)
    port = ports.router_port(options.port)
    folder = _folder(options.logs)
    with ExitStack() as ends:
        planner = Planner()
        ends.callback(planner.end)
        stage = ProcessSupervisor(folder, engines=not options.given)
        ends.callback(stage.end)
        signal.signal(signal.SIGTERM, _like_ctrl_c)
        try:
            running = _bring_up(options, steps, planner, stage, port=port)
            ends.enter_context(roles.announced(folder))
            if options.replay is None:
                return _serve(stage, say)
            from weft_e2e.local.replaying import replay_and_report

            return replay_and_report(running, options, steps, say)
        except KeyboardInterrupt:
            stage.check()  # the interruption was a part's end, or it was Ctrl-C
            raise


def _bring_up(options: Options, steps: Steps, planner: Planner, stage: ProcessSupervisor, *, port: int) -> Running:
    begun = time.monotonic()
    with steps.step(f"Check {options.file} and plan it") as detail:
        from weft_e2e.local import manifest

        given_roles = [role for role, _ in options.given]
        # The planner thinks while the manifest is checked as the API server would check it.
        asked = manifest.question(options.file, name=options.name, profiles=options.profiles)
        if asked is not None:
            planner.ask(manifest.for_engines(asked, given_roles))
        service = manifest.read(options.file, name=options.name, profiles=options.profiles)
        if asked is None:
            planner.ask(manifest.for_engines(service.request, given_roles))
        if options.replay is not None:
            from weft_e2e.demo.baseline import with_baseline

            service = service.with_spec(with_baseline(service.manifest["spec"]))
        from weft_core.durations import parse_duration
        from weft_core.slo import Slo
        from weft_e2e.demo.facts import gpu_words
        from weft_e2e.local import rendering, table

        found = rendering.rendering_of(service.object, planner.answer(detail))
    planned_s = time.monotonic() - begun
    given = tuple(rendering.Given(role, url) for role, url in options.given)
    if given:
        engines = rendering.given_engines(found, given)
    else:
        engines = rendering.mock_engines(found, ports.free_ports(2 * len(rendering.workers_of(found))))
    engines = rendering.lay_out(found, engines, options.layout)
    what = f"{len(engines)} {'given' if given else 'mock'} engine{'s' if len(engines) > 1 else ''}"
    with steps.step(f"{'Find' if given else 'Start'} {what}, start the router"):
        for name, text in rendering.files(found, engines).items():
            (stage.folder / name).write_text(text)
        token = stage.folder / rendering.TOKEN
        token.touch(mode=0o600)
        token.write_text(secrets.token_urlsafe(24))
        if not given:
            for engine in engines:
                stage.start(rendering.engine_part(found, engine, folder=stage.folder, time_scale=options.time_scale))
        for engine in engines:
            _wait_engine(stage, engine, given=bool(given))
        url = f"http://{ports.HOST}:{port}"
        stage.start(rendering.router_part(folder=stage.folder, port=port))
        stage.wait("the router", _ready(url, engines))
    spec, model = service.object.spec, service.object.spec.model.name
    slo = Slo(
        ttft_s=parse_duration(spec.slo.ttft),
        itl_s=parse_duration(spec.slo.itl),
        percentile=spec.slo.percentile,
        attainment=spec.slo.attainment,
    )
    said = table.render(
        name=service.object.metadata.name,
        model=model,
        plan=found.record.plan,
        slo=slo,
        engines=f"{what} for {gpu_words(service.spec)}",
        url=url,
        ready_s=steps.total_s,
        plan_s=planned_s,
        folder=stage.folder,
        workers=[(engine.name, engine.role) for engine in engines] if rendering.movable(found) else [],
        left_out=rendering.left_out(spec, given=bool(given)),
    )
    steps.say(f"\n{said}")
    return Running(service, found, engines, url, stage.folder, mock=not given)


def _wait_engine(stage: ProcessSupervisor, engine: "Engine", *, given: bool) -> None:
    if not given:
        stage.wait(engine.name, lambda: answers(engine.url, "/health"))
        return
    try:
        stage.wait(engine.name, lambda: answers(engine.url, "/health"), timeout_s=ENGINE_ANSWER_S)
    except Fell:
        stage.check()
        raise Fell(
            f"--engine {engine.worker.role}={engine.url}: no answer to GET /health within {ENGINE_ANSWER_S:g} s; "
            "start the engine first, or correct the URL"
        ) from None


def _ready(url: str, engines: "Sequence[Engine]") -> Callable[[], bool]:
    """Return a probe: the router serves, and knows every engine."""
    wanted = {duty: sum(has_duty(engine.role, duty) for engine in engines) for duty in ROLES}

    def ready() -> bool:
        if not answers(url, "/readyz"):
            return False
        from weft_e2e.metrics import growth

        known = growth({}, {"router": page(url, "/metrics") or ""})
        return all(
            known.total("weft_router_workers", role=duty, state="ready") == count for duty, count in wanted.items()
        )

    return ready


def _serve(stage: ProcessSupervisor, say: Say) -> int:
    try:
        say("\nCtrl-C ends it.")
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        stage.check()
        say("ending")
        return 0


def _folder(logs: Path | None) -> Path:
    if logs is None:
        return Path(tempfile.mkdtemp(prefix="weft-local-"))
    logs.mkdir(parents=True, exist_ok=True)
    return logs.resolve()


def _like_ctrl_c(_number: int, _frame: FrameType | None) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as scripts start what runs beside them
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)  # a running event loop has its own way to be interrupted
