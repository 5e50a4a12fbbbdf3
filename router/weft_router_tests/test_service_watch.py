"""The services of a cluster: read in pages, followed event by event, and kept while the API server is away."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weft_router.config.gateway import KubernetesConfig
from weft_router.gateway import service_watch
from weft_router.gateway.kube_api import KubeApi
from weft_router.gateway.served_service import ServedService, service_of
from weft_router.gateway.service_watch import ServiceWatch
from weft_router_tests.gateway_kit import gateway, watching
from weft_router_tests.kube_services import KubeServices, kube_services, service
from weft_router_tests.stack import Stack, is_so, router_json, until

pytestmark = pytest.mark.component


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have failures tried again soon."""
    monkeypatch.setattr(service_watch, "RETRY_S", 0.02)


async def knows(watch: ServiceWatch, *keys: str) -> None:
    """Wait until a watch knows these services and no other."""
    await until(lambda: is_so(watch.listed and {one.key for one in watch.services()} == set(keys)), 10.0)


def lists(kube: KubeServices) -> int:
    """Return how often the first page of a list was asked for."""
    return sum("watch" not in query and "continue" not in query for _, query, _ in kube.asked)


async def test_services_are_listed_in_pages_and_followed(tmp_path: Path) -> None:
    many = [service(f"s{i}", f"ns{i}") for i in range(5)]
    async with kube_services(tmp_path, *many) as kube, watching(kube.access()) as watch:
        changes: list[int] = []
        watch.on_change = lambda: changes.append(len(list(watch.services())))
        assert not watch.listed
        await knows(watch, *(f"ns{i}/s{i}" for i in range(5)))
        assert sum("continue" in query for _, query, _ in kube.asked) == 2
        kube.put(service("new"))
        await knows(watch, *(f"ns{i}/s{i}" for i in range(5)), "team-a/new")
        kube.put(service("new", aliases=["gpt-4"]))
        await until(lambda: is_so(any("gpt-4" in one.names for one in watch.services())))
        for i in range(5):
            kube.drop(f"s{i}", f"ns{i}")
        await knows(watch, "team-a/new")
        assert changes == [5, 6, 6, 5, 4, 3, 2, 1]
        assert lists(kube) == 1
        assert watch.age() < 5.0


async def test_a_changed_status_changes_nothing(tmp_path: Path) -> None:
    async with kube_services(tmp_path, service("a")) as kube, watching(kube.access()) as watch:
        await knows(watch, "team-a/a")
        changes: list[bool] = []
        watch.on_change = lambda: changes.append(True)
        for i in range(3):
            kube.put({**service("a"), "status": {"url": f"http://{i}"}})
        kube.put(service("b"))
        await knows(watch, "team-a/a", "team-a/b")
        assert changes == [True]


async def test_the_last_known_services_stay_while_the_api_server_is_away(tmp_path: Path) -> None:
    async with kube_services(tmp_path, service("a")) as kube, watching(kube.access()) as watch:
        await knows(watch, "team-a/a")
        await kube.stop()
        kube.put(service("b"))
        await until(lambda: is_so(watch._scopes[0]._failures > 2))
        assert watch.listed
        assert [one.key for one in watch.services()] == ["team-a/a"]
        await kube.start()
        await knows(watch, "team-a/a", "team-a/b")
        assert lists(kube) == 1, "it goes on where it was"


async def test_a_version_that_is_too_old_is_listed_again(tmp_path: Path) -> None:
    async with kube_services(tmp_path, service("a")) as kube, watching(kube.access()) as watch:
        await knows(watch, "team-a/a")
        await kube.stop()
        kube.drop("a")
        kube.put(service("b"))
        kube.forget()
        await kube.start()
        await knows(watch, "team-a/b")
        assert lists(kube) == 2
        kube.tell({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})
        await until(lambda: is_so(lists(kube) == 3))
        kube.put(service("c"))
        await knows(watch, "team-a/b", "team-a/c")


async def test_events_of_another_form_are_no_end(tmp_path: Path) -> None:
    async with kube_services(tmp_path, service("a")) as kube, watching(kube.access()) as watch:
        await knows(watch, "team-a/a")
        kube.tell({"type": "ADDED", "object": {}})
        kube.put(service("b"))
        await knows(watch, "team-a/a", "team-a/b")
        kube.tell({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(kube.version + 1)}}})
        kube.put({**service("b"), "spec": {"model": {"name": ""}}})
        await knows(watch, "team-a/a")
        kube.put(service("b"))
        await knows(watch, "team-a/a", "team-a/b")


async def test_each_namespace_is_watched_by_itself_with_the_selector_and_the_token_of_now(tmp_path: Path) -> None:
    some = (service("a", "team-a"), service("b", "team-b"), service("c", "team-c"))
    chosen = {"namespaces": ["team-a", "team-b"], "selector": "team=search,!old"}
    async with kube_services(tmp_path, *some) as kube, watching(kube.access(), **chosen) as watch:
        await knows(watch, "team-a/a", "team-b/b")
        assert {path for path, _, _ in kube.asked} == {
            f"/apis/weft.dev/v1alpha1/namespaces/{name}/disagginferenceservices" for name in ("team-a", "team-b")
        }
        assert {query["labelSelector"] for _, query, _ in kube.asked} == {"team=search,!old"}
        assert {header for *_, header in kube.asked} == {"Bearer token-1"}
        kube.access().token_file.write_text("token-2")
        kube.hang_up()
        kube.put(service("d", "team-b"))
        await knows(watch, "team-a/a", "team-b/b", "team-b/d")
        assert kube.asked[-1][2] == "Bearer token-2"


async def test_without_rights_or_token_nothing_is_listed_and_that_mends_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with kube_services(tmp_path, service("a")) as kube:
        kube.status = 403
        async with watching(kube.access()) as watch:
            await until(
                lambda: is_so("answered 403: not allowed" in str([vars(r).get("error") for r in caplog.records]))
            )
            assert not watch.listed
            kube.access().token_file.unlink()
            await until(lambda: is_so("cannot be read" in str([vars(r).get("error") for r in caplog.records])))
            kube.status = 200
            kube.access()
            await knows(watch, "team-a/a")


async def test_a_gateway_follows_the_cluster(tmp_path: Path) -> None:
    """A service that is created is served without a restart, and one that is deleted is not."""
    folder = tmp_path / "llama"
    folder.mkdir()
    stack = Stack(folder, "standalone", config=router_json())
    await stack.up(prefill=0)

    def here(manifest: Mapping[str, Any]) -> ServedService:
        return replace(service_of(manifest), url=stack.front)

    async with kube_services(tmp_path / "kube") as kube:
        kube.status = 503
        source = ServiceWatch(KubernetesConfig(), KubeApi(kube.access()), read=here)
        async with gateway(tmp_path / "gateway", source=source) as front:
            assert (await front.send("/readyz", method="GET")).status == 503
            assert (await front.send()).status == 503, "nobody knows yet what there is"
            kube.status = 200
            await until(lambda: is_so(source.listed))
            assert (await front.send("/readyz", method="GET")).status == 200
            assert (await front.send()).status == 404
            kube.put(service("llama", servedName="test/model"))
            await front.knows(1)
            assert (await front.send(stream=True)).whole
            await kube.stop()
            assert (await front.send(stream=True)).whole, "the API server is not on the way of requests"
            assert (await front.send("/readyz", method="GET")).status == 200
            await kube.start()
            kube.drop("llama")
            await front.knows(0)
            assert (await front.send()).status == 404
    await asyncio.wait_for(stack.close(), 15)
