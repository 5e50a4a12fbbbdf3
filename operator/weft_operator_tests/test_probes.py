"""The operator's own port, over real sockets."""

import aiohttp
import pytest

from weft_operator.api.objects import PassKey
from weft_operator.controllers.probes import OperatorMetrics, serve
from weft_operator.kube.request_stats import RequestStats
from weft_router_tests.stack import free_port

pytestmark = pytest.mark.component


class NoPasses:
    known: frozenset[PassKey] = frozenset()
    failing = 0


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_probes_and_metrics_answer_at_addresses_of_both_families(host: str) -> None:
    port = free_port()
    metrics = OperatorMetrics(stats=RequestStats(), work_queue=NoPasses(), leading=lambda: True)
    runner = await serve(port=port, alive=lambda: True, ready=lambda: "leading", metrics=metrics)
    try:
        async with aiohttp.ClientSession() as http:
            for path, words in (("healthz", "ok"), ("readyz", "leading"), ("metrics", "weft_operator_leading 1.0")):
                async with http.get(f"http://{host}:{port}/{path}") as response:
                    assert response.status == 200
                    assert words in await response.text()
    finally:
        await runner.cleanup()
