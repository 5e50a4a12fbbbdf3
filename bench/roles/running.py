"""Let each contender live through the day on a local cluster, one after the other."""

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.roles.day import PHASES, Day, judge, manifest

from weft_e2e import kube
from weft_e2e.checks import check_ready
from weft_e2e.demo.settings import SYSTEM_NAMESPACE
from weft_e2e.kube import Kube
from weft_e2e.scenarios.arriving import Arrivals, arriving
from weft_e2e.service import Service
from weft_e2e.waiting import WaitedTooLong, until
from weft_operator.render.plan_summary import plan_summary

Says = Callable[[str], None]

ROUND_S = 120.0
"""What a round may take; the SLO is missed long before."""
END_S = 180.0
"""How long the last sessions are waited for."""
READY_S = 300.0
TICKS = os.sysconf("SC_CLK_TCK")
WATCH_S = 5.0
"""Between two looks at the service's plan and pods."""


def live(client: Kube, contender: str, *, phase_s: float, start_s: int, say: Says) -> Day:
    """Apply a contender's service, let the day's sessions arrive, and return what became of them.

    Raises:
        CheckFailed: the service did not become ready.
    """
    with _service(client, contender, start_s=start_s) as service:
        check_ready(service, timeout_s=READY_S + start_s)
        say(f"{contender}: ready with {plan_summary(service.plan())}")
        pods = set(service.worker_uids().values())
        phases: list[int] = []
        layouts = []
        changes = [(0.0, plan_summary(service.plan()))]
        with (
            service.reachable(run=f"day-{time.time():.0f}-") as target,
            arriving(Arrivals(target, round_deadline_s=ROUND_S)) as arrivals,
        ):
            seen, starts, cpu = pods, time.monotonic(), _cpu_s()
            for number, (name, traffic) in enumerate(PHASES):
                arrivals.turn_to(traffic)
                ends = time.monotonic() + phase_s
                while (left := ends - time.monotonic()) > 0:
                    time.sleep(min(WATCH_S, left))
                    seen = seen | set(service.worker_uids().values())
                    if (now := plan_summary(service.plan())) != changes[-1][1]:
                        changes.append((time.monotonic() - starts, now))
                        say(f"{contender}: {now} at {changes[-1][0]:.0f} s")
                phases += [number] * (len(arrivals.transcripts) - len(phases))
                layouts.append(plan_summary(service.plan()))
                say(f"{contender}: {name} until {phase_s * (number + 1):.0f} s, {layouts[-1]}")
            used_s, all_s = (after - before for after, before in zip(_cpu_s(), cpu, strict=True))
            arrivals.turn_to(None)
            _wait_answered(arrivals, phases)
            transcripts = list(arrivals.transcripts)[: len(phases)]
        judged = judge(transcripts, phases)
        return Day(contender, tuple(layouts), judged, phase_s, len(seen - pods), tuple(changes), used_s / all_s)


def _cpu_s() -> tuple[float, float]:
    """Return the machine's CPU time that was used, and all of it, since its start (/proc/stat)."""
    times = [int(one) for one in Path("/proc/stat").read_text(encoding="utf-8").split("\n")[0].split()[1:9]]
    all_s, (idle, waits) = sum(times) / TICKS, times[3:5]
    return all_s - (idle + waits) / TICKS, all_s


def _wait_answered(arrivals: Arrivals, phases: list[int]) -> None:
    """Wait for the end of all sessions; those that do not end in time have missed the SLO anyway."""

    def over() -> bool:
        return all(
            len(one.records) == len(PHASES[phase][1].rounds) or any(not record.ok for record in one.records)
            for one, phase in zip(arrivals.transcripts, phases, strict=False)
        )

    try:
        until(over, what="the last answers", timeout_s=END_S)
    except WaitedTooLong:
        return


@contextmanager
def _service(client: Kube, contender: str, *, start_s: int) -> Iterator[Service]:
    namespace = f"bench-roles-{secrets.token_hex(2)}"
    made = manifest(contender, start_s=start_s, image=_mock_image(client))
    client.kubectl("create", "namespace", namespace)
    try:
        client.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(made))
        yield Service(client, namespace, made["metadata"]["name"])
    finally:
        client.kubectl("delete", "namespace", namespace, "--timeout=180s", timeout=200)


def _mock_image(client: Kube) -> str:
    """Return the image of mock engines, as the operator has it."""
    operator = kube.items(
        client, "deployments", namespace=SYSTEM_NAMESPACE, selector="app.kubernetes.io/component=operator"
    )
    (variables,) = [container["env"] for one in operator for container in one["spec"]["template"]["spec"]["containers"]]
    return str(next(one["value"] for one in variables if one["name"] == "WEFT_MOCK_IMAGE"))
