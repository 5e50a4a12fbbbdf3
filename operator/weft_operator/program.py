"""Put the operator together and run it until it is told to stop."""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

import kopf

from weft_operator import handlers, probes
from weft_operator.api.service import GROUP, VERSION
from weft_operator.apiserver import ApiServer, connect
from weft_operator.desired.identity import TOKEN_BYTES
from weft_operator.errors import ApiError, NotFoundError
from weft_operator.live_cluster import LiveCluster
from weft_operator.manifest import ServiceKey
from weft_operator.planning.child import Answer, Refused, solve
from weft_operator.planning.desk import PlannerDesk
from weft_operator.planning.request import Request
from weft_operator.reconcile import Outcome, Reconciler
from weft_operator.settings import Settings
from weft_operator.wakeups import Wakeups

CRD_POLL_S = 2.0

log = logging.getLogger(__name__)


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        ForbiddenError: there is no access to a cluster.
    """
    api = await asyncio.to_thread(connect)
    loop = asyncio.get_running_loop()
    watching = asyncio.Event()

    def wake(key: ServiceKey) -> None:
        wakeups.wake(key)

    async def ask(request: Request) -> Answer:
        answer = await solve(request, deadline=settings.planner_deadline)
        outcome = answer.reason if isinstance(answer, Refused) else "ok"
        metrics.planner_runs[outcome] = metrics.planner_runs.get(outcome, 0) + 1
        return answer

    desk = PlannerDesk(solve=ask, wake=wake, clock=loop.time)
    reconciler = Reconciler(
        cluster=LiveCluster(api),
        desk=desk,
        settings=settings,
        clock=lambda: datetime.now(UTC),
        new_token=lambda: secrets.token_hex(TOKEN_BYTES).encode(),
    )

    async def one_pass(key: ServiceKey) -> Outcome:
        try:
            outcome = await reconciler.reconcile(key)
        except BaseException:
            metrics.passes["error"] += 1
            raise
        metrics.passes["ok"] += 1
        metrics.actions += outcome.actions
        return outcome

    wakeups = Wakeups(one_pass, resync=settings.resync)
    metrics = probes.OperatorMetrics(requests=lambda: api.requests, services=lambda: len(wakeups.known))

    def alive() -> bool:
        # A loop that is stuck answers nothing at all; one whose resync stopped is as useless.
        return wakeups.last_resync is None or loop.time() - wakeups.last_resync < 3 * settings.resync

    registry = kopf.OperatorRegistry()
    handlers.register(
        registry,
        wake=wake,
        services_using=lambda namespace: [key for key in wakeups.known if key.namespace == namespace],
    )
    runner = await probes.serve(port=settings.port, alive=alive, ready=watching.is_set, metrics=metrics)
    background: asyncio.Task[None] | None = None
    try:
        await _crds(api, settings.watch_namespaces)
        background = asyncio.create_task(wakeups.run(), name="wakeups")
        await asyncio.sleep(0)  # kopf waits at its end for tasks that began after it; ours must have begun before
        log.info("started", extra={"namespaces": ",".join(settings.watch_namespaces) or "all"})
        await kopf.operator(
            registry=registry,
            settings=handlers.watch_settings(),
            standalone=True,
            clusterwide=not settings.watch_namespaces,
            namespaces=settings.watch_namespaces,
            ready_flag=watching,
        )
    finally:
        if background is not None:
            background.cancel()
            await asyncio.gather(background, return_exceptions=True)
        await desk.close()
        await runner.cleanup()
        log.info("stopped")


async def _crds(api: ApiServer, namespaces: Sequence[str]) -> None:
    """Wait until the API server lists our kinds where we work: Helm creates CRDs, rights and operator together."""
    told = False
    while True:
        try:
            # With a list of namespaces there is no right to ask for all of them.
            for namespace in namespaces or ("",):
                for kind in ("DisaggInferenceService", "CostProfile"):
                    await asyncio.to_thread(api.list, f"{GROUP}/{VERSION}", kind, namespace=namespace, limit=1)
        except NotFoundError:
            if not told:
                log.warning("crds_missing", extra={"group": GROUP, "fix": "apply the files in crds/"})
                told = True
        except ApiError as error:
            log.warning("api_not_ready", extra={"error": str(error)})
        else:
            return
        await asyncio.sleep(CRD_POLL_S)
