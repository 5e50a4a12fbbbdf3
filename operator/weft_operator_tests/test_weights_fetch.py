"""The program that fills a cache, against a hub and a bucket over real sockets that break, lie and refuse."""

import asyncio
import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from redis.asyncio import Redis

from weft_mock.weights import SHARDS, MockWeights
from weft_operator.api.objects import ServiceKey
from weft_operator.weights import download as downloads
from weft_operator.weights import fetch
from weft_operator.weights.download import digest_of, download_all, gigabytes
from weft_operator.weights.folder import MANIFEST, ModelFolder, remove_unused
from weft_operator.weights.progress import Progress, ProgressReader, _progress, progress_key, progress_value
from weft_operator.weights.remote import Body, FetchError, Listing, RemoteFile, TransientFetchError, select_files
from weft_router_tests.redis_server import RedisServer

pytestmark = pytest.mark.component

NAME = "team/demo/0123456789"
TOKEN = "hf_do-not-tell"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s3cret-do-not-tell"}


@contextmanager
def listening(app: web.Application) -> Iterator[str]:
    """Serve on a free port of loopback, in a thread, and give the URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()

    asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def served(model: MockWeights) -> AbstractContextManager[str]:
    """Serve a model, and give the URL."""
    return listening(model.app())


def answering(status: int, text: str, headers: Mapping[str, str]) -> AbstractContextManager[str]:
    """Answer every request alike, and give the URL."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return listening(app)


class Answer:
    """A source whose one answer is known."""

    def __init__(self, start: int, data: bytes) -> None:
        self._body = Body(start, iter([data]))

    def list_files(self) -> Listing:
        raise AssertionError

    @contextmanager
    def open(self, _file: RemoteFile, _offset: int) -> Iterator[Body]:
        yield self._body

    def close(self) -> None:
        pass


def hub(url: str, **parts: Any) -> dict[str, Any]:
    return {"kind": "hub", "endpoint": url, "repo": "acme/tiny", "revision": "main", **parts}


def bucket(url: str, **parts: Any) -> dict[str, Any]:
    return {"kind": "s3", "endpoint": url, "bucket": "models", "prefix": "tiny", "region": "us-east-1", **parts}


def run(
    tmp_path: Path, source: dict[str, Any], env: dict[str, str] | None = None, verb: str = "fetch"
) -> tuple[int, str]:
    """Run the program; return its exit code and last words."""
    say = tmp_path / "last-words"
    code = fetch.main(
        [verb, f"--root={tmp_path / 'cache'}", f"--model={NAME}", f"--say={say}", f"--ready={tmp_path / 'ready'}"],
        {fetch.SOURCE_VARIABLE: json.dumps(source), **(env or {})},
    )
    return code, say.read_text(encoding="utf-8")


def cached(tmp_path: Path) -> ModelFolder:
    return ModelFolder(tmp_path / "cache", NAME)


def check_whole(
    tmp_path: Path, model: MockWeights, *, beside: frozenset[str] = frozenset({"pytorch_model.bin"})
) -> None:
    """Every file that belongs there is as the source has it, and there is nothing else."""
    folder = cached(tmp_path)
    there = {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()} - {MANIFEST}
    assert there == model.files.keys() - beside
    assert all((folder.path / name).read_bytes() == model.files[name] for name in there)
    assert not folder.partial.exists()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let attempts follow each other soon, and undo what the program sets for its process."""
    monkeypatch.setattr(fetch, "download_all", lambda *args, **parts: download_all(*args, **parts, pause_s=0.01))
    term = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, term)


@pytest.mark.parametrize("kind", [hub, bucket])
def test_a_download_that_breaks_goes_on_where_it_stopped(tmp_path: Path, kind: Any) -> None:
    model = MockWeights(break_after=1 << 20)
    with served(model) as url:
        code, said = run(tmp_path, kind(url))
    assert (code, json.loads(said)["bytes"]) == (0, sum(map(len, model.files.values())) - 26)
    check_whole(tmp_path, model)
    assert max(model.offsets) > 0, "the second request of a shard began behind what was there"
    assert all(model.sent[name] <= model.shard_bytes + (1 << 20) for name in SHARDS), "nothing much was sent twice"


def test_a_program_that_is_ended_leaves_what_the_next_one_goes_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MockWeights(break_after=1 << 20)
    with served(model) as url:
        with monkeypatch.context() as impatient:
            impatient.setattr(downloads, "STALL_TIMEOUT_S", 0.0)
            code, said = run(tmp_path, hub(url))
        assert code == 1, said
        folder = cached(tmp_path)
        assert folder.version() is None
        assert folder.size() >= 1 << 20
        assert run(tmp_path, hub(url))[0] == 0
        check_whole(tmp_path, model)
        asked = dict(model.asked)
        assert run(tmp_path, hub(url))[0] == 0
        assert model.asked == asked, "what is there is not downloaded again"


def test_a_corrupt_answer_is_downloaded_again_and_a_source_that_stays_so_is_given_up(tmp_path: Path) -> None:
    model = MockWeights(corrupt=1)
    with served(model) as url:
        assert run(tmp_path, hub(url))[0] == 0
        check_whole(tmp_path, model)
        assert model.asked[SHARDS[0]] == 2
        model.corrupt, model.commit = 99, "f" * 40
        cached(tmp_path).remove()
        code, said = run(tmp_path, hub(url))
    assert (code, cached(tmp_path).version()) == (fetch.PERMANENT, None)
    assert said.startswith(f"{SHARDS[0]}: downloaded 3 times, never with the checksum")


@pytest.mark.parametrize("sums", [False, True])
def test_a_bucket_is_verified_by_etags_or_by_its_list_of_sums(tmp_path: Path, sums: bool) -> None:
    model = MockWeights(sums=sums, corrupt=1, access_key=KEYS["AWS_ACCESS_KEY_ID"])
    with served(model) as url:
        assert run(tmp_path, bucket(url), KEYS)[0] == 0
        check_whole(tmp_path, model)
        assert model.asked[SHARDS[0]] == 2, "the wrong byte was found"


def test_a_mirror_that_lists_names_alone_is_asked_for_each_file(tmp_path: Path) -> None:
    model = MockWeights(mirror=True, token=TOKEN, corrupt=1)
    with served(model) as url:
        assert run(tmp_path, hub(url), {"HF_TOKEN": TOKEN})[0] == 0
    check_whole(tmp_path, model)
    assert model.asked[SHARDS[0]] == 2, "the wrong byte was found"


def test_a_mirror_whose_repository_has_another_name_now_is_followed_for_sizes() -> None:
    def answer(request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/api/"):
            return web.json_response({"sha": "0" * 40, "siblings": [{"rfilename": "config.json"}]})
        if request.path.startswith("/acme/tiny/"):
            raise web.HTTPTemporaryRedirect(request.path.replace("/tiny/", "/renamed/"))
        return web.Response(body=b"{}", headers={"ETag": f'"{"a" * 40}"'})

    async def handle(request: web.Request) -> web.StreamResponse:
        return answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    with listening(app) as url, closing(fetch.source_of(hub(url), {})) as source:
        (file,) = source.list_files().files
    assert (file.size, file.version) == (2, "a" * 40)


def test_a_server_without_ranges_is_followed_from_the_beginning(tmp_path: Path) -> None:
    model = MockWeights(break_after=1 << 20, ignore_range=True)
    with served(model) as url:
        assert run(tmp_path, hub(url))[0] == 0
    check_whole(tmp_path, model)


def test_a_source_that_is_away_for_a_moment_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = fetch._list
    monkeypatch.setattr(fetch, "_list", lambda source, stop: listed(source, stop, 0.01))
    model = MockWeights(away=2)
    with served(model) as url:
        assert run(tmp_path, hub(url))[0] == 0


def test_tokens_go_to_the_hub_alone_and_into_no_word(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = MockWeights(token=TOKEN, break_after=1 << 20)
    with served(model) as url:
        code, said = run(tmp_path, hub(url), {"HF_TOKEN": TOKEN})
        assert (code, model.refused) == (0, 0)
        cached(tmp_path).remove()
        refused = run(tmp_path, hub(url), {"HF_TOKEN": "hf_wrong-do-not-tell"})
        without = run(tmp_path, hub(url))
    assert refused[0] == without[0] == fetch.PERMANENT
    assert "tokenSecretRef is valid" in refused[1]
    assert "give a token in spec.model.source.huggingFace.tokenSecretRef" in without[1]
    out, err = capfd.readouterr()
    words = "".join((said, refused[1], without[1], out, err))
    assert "download_interrupted" in words, "it does log"
    assert "do-not-tell" not in words
    assert "signed-url-secret" not in words


def test_keys_of_a_bucket_go_into_no_word(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = MockWeights(access_key="OTHER")
    with served(model) as url:
        code, said = run(tmp_path, bucket(url), KEYS)
    assert code == fetch.PERMANENT
    assert "credentialsSecretRef" in said
    assert "do-not-tell" not in said + "".join(capfd.readouterr())


def test_what_does_not_exist_is_reported_with_the_field(tmp_path: Path) -> None:
    with served(MockWeights()) as url:
        for source, field in (
            (hub(url, revision="v9"), "spec.model.source.huggingFace.revision"),
            (hub(url, repo="acme/other"), "spec.model.name"),
            (bucket(url, prefix="none"), "spec.model.source.s3.bucket or prefix"),
            (bucket(url, bucket="none"), "spec.model.source.s3.bucket or prefix"),
            (hub(url, include=["*.xyz"]), "include and exclude"),
        ):
            code, said = run(tmp_path, source)
            assert (code, field in said) == (fetch.PERMANENT, True), said


def test_a_new_version_takes_no_file_of_the_one_before_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "STALL_TIMEOUT_S", 0.0)
    model = MockWeights(break_after=1 << 20, extra={"tokenizer.json": b"version 1"})
    with served(model) as url:
        assert run(tmp_path, hub(url))[0] == 1
        model.commit, model.extra = "e" * 40, {"tokenizer.json": b"version 2"}
        code, said = run(tmp_path, hub(url))
    assert (code, json.loads(said)["version"]) == (0, "e" * 40)
    check_whole(tmp_path, model)


def test_a_damaged_model_gets_what_is_missing_only(tmp_path: Path) -> None:
    model = MockWeights()
    with served(model) as url:
        assert run(tmp_path, hub(url))[0] == 0
        (cached(tmp_path).path / SHARDS[1]).unlink()
        assert run(tmp_path, hub(url))[0] == 0
    check_whole(tmp_path, model)
    assert (model.asked[SHARDS[0]], model.asked[SHARDS[1]]) == (1, 2)


def test_two_programs_download_once(tmp_path: Path) -> None:
    model = MockWeights(rate=20e6)
    codes = []
    with served(model) as url:
        threads = [
            threading.Thread(
                target=lambda: codes.append(
                    fetch._fetch(cached(tmp_path), {fetch.SOURCE_VARIABLE: json.dumps(hub(url))}, threading.Event())
                )
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(codes) == 3
    assert dict(model.asked) == dict.fromkeys(model.files.keys() - {"pytorch_model.bin"}, 1)


@pytest.mark.parametrize("by_file", [False, True], ids=["url", "file"])
async def test_the_operator_reads_how_far_a_download_is(
    tmp_path: Path, redis_server: RedisServer, by_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "REPORT_INTERVAL_S", 0.05)
    (tmp_path / "url").write_text(redis_server.url)
    where = {"WEFT_REDIS_URL_FILE": str(tmp_path / "url")} if by_file else {"WEFT_REDIS_URL": redis_server.url}
    model = MockWeights(rate=4e6)
    reader = ProgressReader(redis_server.url)
    seen: list[Progress] = []
    with served(model) as url:
        env = {fetch.SOURCE_VARIABLE: json.dumps(hub(url)), "POD_NAME": "demo-weights-x", **where}
        work = asyncio.create_task(asyncio.to_thread(fetch._fetch, cached(tmp_path), env, threading.Event()))
        while not work.done():
            seen += (await reader.read(ServiceKey("team", "demo"), ["demo-weights-x", "other"])).values()
            await asyncio.sleep(0.02)
        await work
    await reader.close()
    total = sum(len(data) for name, data in model.files.items() if name != "pytorch_model.bin")
    assert {progress.total for progress in seen} == {total}
    done = [progress.done for progress in seen]
    assert done == sorted(done)
    assert any(0 < size < total for size in done)
    assert max(progress.rate for progress in seen) > 1e5


async def test_what_others_write_as_progress_costs_nothing_and_spoils_no_other(redis_server: RedisServer) -> None:
    service, pods = ServiceKey("team", "demo"), ["honest", "huge", "list", "deep", "none", "absent"]
    honest = Progress(2**62, 2**62, 123456789.123456789)
    honest_key, huge, other_type, deep, none, _ = (progress_key("team", "demo", pod) for pod in pods)
    async with Redis.from_url(redis_server.url) as redis:
        await redis.set(honest_key, progress_value(honest))
        await redis.set(huge, " " * 8_000_000 + progress_value(Progress(1, 2, 3.0)))
        await redis.rpush(other_type, "1")
        await redis.set(deep, "[" * 100_000)
        await redis.set(none, "none")
        reader = ProgressReader(redis_server.url)
        sent = (await redis.info("stats"))["total_net_output_bytes"]
        assert await reader.read(service, pods) == {"honest": honest}
        sent = (await redis.info("stats"))["total_net_output_bytes"] - sent
        await reader.close()
    assert sent < 50_000


def test_progress_that_is_nested_deeply_is_none() -> None:
    assert _progress(b"[" * 100_000) is None


def test_a_redis_that_is_away_holds_up_no_download(tmp_path: Path) -> None:
    with served(MockWeights()) as url:
        assert run(tmp_path, hub(url), {"WEFT_REDIS_URL": "redis://127.0.0.1:1/0"})[0] == 0


def test_a_model_in_use_stays_and_an_unused_one_goes(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    keys = ("used", "unused", "recent", "wanted", "foreign")
    used, unused, recent, wanted, foreign = (ModelFolder(root, f"team/demo/{key}") for key in keys)
    for model in (used, unused, recent, wanted, foreign):
        model.path.mkdir(parents=True)
        model.lock_file.touch()
        if model is not foreign:
            (model.path / MANIFEST).write_text("{}")
    for model in (used, unused, foreign):
        os.utime(model.lock_file, (time.time() - 1000, time.time() - 1000))
    with used.locked(shared=True) as held:
        assert held is not None
        os.utime(used.lock_file, (time.time() - 1000, time.time() - 1000))
        os.utime(wanted.lock_file, (time.time() - 1000, time.time() - 1000))
        assert remove_unused(root, 100, except_for="team/demo/wanted") == ["team/demo/unused"]
    assert [model.path.exists() for model in (used, unused, recent, wanted, foreign)] == [True, False, True, True, True]


def test_a_sidecar_removes_what_nobody_used_for_long_but_what_it_is_about_to_hold(tmp_path: Path) -> None:
    model, halt = MockWeights(), threading.Event()
    with served(model) as url:
        source = hub(url)
        assert run(tmp_path, source)[0] == 0
        other = ModelFolder(tmp_path / "cache", "team/demo/other")
        other.path.mkdir()
        (other.path / MANIFEST).write_text("{}")
        for item in (cached(tmp_path), other):
            item.lock_file.touch()
            os.utime(item.lock_file, (time.time() - 1000, time.time() - 1000))
        asked = sum(model.asked.values())
        given = fetch._arguments(
            ["hold", f"--root={tmp_path / 'cache'}", f"--model={NAME}", f"--ready={tmp_path / 'ready'}"]
        )
        thread = threading.Thread(
            target=lambda: fetch._run_verb(given, cached(tmp_path), {fetch.SOURCE_VARIABLE: json.dumps(source)}, halt)
        )
        thread.start()
        deadline = time.monotonic() + 30
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        halt.set()
        thread.join(10)
    assert not other.path.exists()
    assert sum(model.asked.values()) == asked, "its own is downloaded once"


def test_all_workers_on_a_node_hold_what_one_of_them_downloads(tmp_path: Path) -> None:
    model, halt = MockWeights(), threading.Event()
    with served(model) as url:
        env = {fetch.SOURCE_VARIABLE: json.dumps(hub(url))}

        def sidecar(number: int) -> threading.Thread:
            ready = tmp_path / f"ready-{number}"
            given = fetch._arguments(["hold", f"--root={tmp_path / 'cache'}", f"--model={NAME}", f"--ready={ready}"])
            thread = threading.Thread(target=lambda: fetch._run_verb(given, cached(tmp_path), env, halt))
            thread.start()
            return thread

        def wait_for(*numbers: int) -> None:
            deadline = time.monotonic() + 30
            while not all((tmp_path / f"ready-{number}").exists() for number in numbers):
                assert time.monotonic() < deadline, numbers
                time.sleep(0.01)

        threads = [sidecar(1), sidecar(2)]  # one of them waits while the other downloads
        wait_for(1, 2)
        downloaded = sum(model.asked.values())
        threads.append(sidecar(3))  # both others hold it
        wait_for(3)
        halt.set()
        for thread in threads:
            thread.join(10)
    assert sum(model.asked.values()) == downloaded
    told = [json.loads((tmp_path / f"ready-{number}").read_text())["seconds"] for number in (1, 2, 3)]
    assert len([seconds for seconds in told if seconds]) <= 1, "one download"


def test_a_sidecar_says_that_the_model_is_there_and_holds_it(tmp_path: Path) -> None:
    model = MockWeights()
    halt, said = threading.Event(), []
    with served(model) as url:
        given = fetch._arguments(
            [
                "hold",
                f"--root={tmp_path / 'cache'}",
                f"--model={NAME}",
                f"--ready={tmp_path / 'ready'}",
                "--keep-unused-seconds=5",
            ]
        )
        env = {fetch.SOURCE_VARIABLE: json.dumps(hub(url))}
        thread = threading.Thread(target=lambda: said.append(fetch._run_verb(given, cached(tmp_path), env, halt)))
        thread.start()
        deadline = time.monotonic() + 60
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        check_whole(tmp_path, model)
        with cached(tmp_path).locked() as alone:
            assert alone is None, "the sidecar holds the model"
        with cached(tmp_path).locked(shared=True) as beside:
            assert beside is not None, "with others"
        halt.set()
        thread.join(10)
    assert said == ["ended"]


def test_a_program_that_waits_for_another_one_ends_when_it_is_told(tmp_path: Path) -> None:
    halt = threading.Event()
    halt.set()
    with cached(tmp_path).locked() as held:
        assert held is not None
        with pytest.raises(TransientFetchError, match="the next attempt resumes it"):
            fetch._fetch(cached(tmp_path), {}, halt)


def test_remove_ends_a_model_with_its_lock(tmp_path: Path) -> None:
    folder = cached(tmp_path)
    folder.path.mkdir(parents=True)
    folder.partial.mkdir()
    assert run(tmp_path, {}, verb="remove") == (0, "removed")
    assert list((tmp_path / "cache").rglob("*0123456789*")) == []


def test_a_volume_without_room_is_reported_before_the_download(tmp_path: Path) -> None:
    listing = Listing((RemoteFile("model.safetensors", 10**18),))
    with pytest.raises(FetchError, match=r"1000000000 GB are still to be downloaded; enlarge it"):
        download_all(None, listing, tmp_path)  # type: ignore[arg-type]


def test_a_volume_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/weights/team")

    monkeypatch.setattr(ModelFolder, "begin_download", denied)
    with served(MockWeights()) as url:
        code, said = run(tmp_path, hub(url))
    assert (code, said) == (fetch.PERMANENT, "/weights/team cannot be written; make it writable for user 65532")


def test_one_format_of_the_weights_is_chosen_and_no_path_leads_out() -> None:
    names = (
        "config.json",
        "model.safetensors",
        "consolidated.safetensors",
        "pytorch_model.bin",
        "original/x.pth",
        ".gitattributes",
    )
    files = [RemoteFile(name, 1) for name in names]
    assert [file.path for file in select_files(files, (), ())] == ["config.json", "model.safetensors"]
    assert [file.path for file in select_files(files, ("*.bin",), ())] == ["pytorch_model.bin"]
    assert "original/x.pth" in [file.path for file in select_files(files, (), ("*.bin",))]
    assert [file.path for file in select_files([RemoteFile("pytorch_model.bin", 1)], (), ())] == ["pytorch_model.bin"]
    for path in ("../x", "/etc/passwd", "a/../../x"):
        with pytest.raises(FetchError, match="outside the model's folder"):
            select_files([RemoteFile(path, 1)], (), ())


def test_files_that_would_be_written_as_one_are_refused_and_those_of_the_cache_left_out() -> None:
    with pytest.raises(FetchError, match="lists 'a' twice"):
        select_files([RemoteFile("a", 1), RemoteFile("./a", 1)], (), ())
    with pytest.raises(FetchError, match="size of -1 bytes"):
        select_files([RemoteFile("a", -1)], (), ())
    files = [RemoteFile("a", 1), RemoteFile("a.partial", 1)]
    assert [file.path for file in select_files(files, (), ())] == ["a"], "what is not whole of a has this name"


def test_a_hub_that_lists_no_sizes_of_files_is_reported(tmp_path: Path) -> None:
    for size in ("Infinity", '"many"'):
        text = f'{{"sha": "{"0" * 40}", "siblings": [{{"rfilename": "a", "size": {size}}}]}}'
        with answering(200, text, {}) as url:
            code, said = run(tmp_path, hub(url))
        assert (code, "does not list acme/tiny as the Hugging Face hub does" in said) == (fetch.PERMANENT, True)


def test_an_answer_that_leaves_a_hole_or_is_too_long_is_not_gone_on_with(tmp_path: Path) -> None:
    file = RemoteFile("a", 8)
    (tmp_path / "a.partial").write_bytes(b"half")
    stop = threading.Event()
    with pytest.raises(TransientFetchError, match="begins at 6, and 4 bytes are there"):
        downloads._receive(Answer(6, b"ab"), file, tmp_path / "a.partial", 4, stop)
    assert (tmp_path / "a.partial").read_bytes() == b"half"
    with pytest.raises(FetchError, match="sends more than the 8 bytes"):
        downloads._receive(Answer(4, b"more than half"), file, tmp_path / "a.partial", 4, stop)
    assert (tmp_path / "a.partial").read_bytes() == b""


def test_a_part_is_where_the_server_says_that_it_is() -> None:
    headers = {"Content-Range": "bytes 2-7/8"}
    with (
        answering(206, "others", headers) as url,
        closing(fetch.source_of(hub(url), {})) as source,
        source.open(RemoteFile("a", 8), 4) as body,
    ):
        assert body.start == 2


def test_objects_that_consoles_make_for_folders_are_no_files(tmp_path: Path) -> None:
    model = MockWeights(extra={"": b"", "sub/": b"", "sub/x.json": b"{}", "empty.txt": b""})
    with served(model) as url:
        code, said = run(tmp_path, bucket(url))
    assert (code, (cached(tmp_path).path / "sub/x.json").read_bytes()) == (0, b"{}"), said
    assert (cached(tmp_path).path / "empty.txt").read_bytes() == b""


def test_an_object_whose_name_is_no_path_is_reported(tmp_path: Path) -> None:
    with served(MockWeights(extra={"a//b": b"x"})) as url:
        code, said = run(tmp_path, bucket(url))
    assert (code, said) == (
        fetch.PERMANENT,
        "s3://models/tiny has an object whose name is no path of a file, such as a//b; rename it",
    )


@pytest.mark.parametrize(
    ("source", "env", "words"),
    [
        (hub("http://h"), {"HF_TOKEN": "do-not-t\u00e4ll"}, "HF_TOKEN has a character"),
        (bucket("http://h"), {**KEYS, "AWS_ACCESS_KEY_ID": "do-not\ntell"}, "AWS_ACCESS_KEY_ID has a character"),
        (bucket("http://h"), {"AWS_ACCESS_KEY_ID": "do-not-tell"}, "AWS_SECRET_ACCESS_KEY is empty"),
        (hub("http://[::1"), {}, "is no URL of a server"),
        (bucket("http://[::1"), {}, "is no URL of a server"),
    ],
)
def test_what_cannot_be_sent_is_reported_without_the_secret(
    tmp_path: Path, source: dict[str, Any], env: dict[str, str], words: str
) -> None:
    code, said = run(tmp_path, source, env)
    assert (code, words in said, "do-not" in said) == (fetch.PERMANENT, True, False), said


def test_a_model_of_another_user_keeps_no_sidecar_from_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cache"
    for key in ("foreign", "gone", "unused"):
        model = ModelFolder(root, f"team/demo/{key}")
        model.path.mkdir(parents=True)
        (model.path / MANIFEST).write_text("{}")
        model.lock_file.touch()
        os.utime(model.lock_file, (time.time() - 1000, time.time() - 1000))
    remove = ModelFolder.remove

    def refused(model: ModelFolder) -> None:
        if model.name.endswith("foreign"):
            raise PermissionError(13, "Permission denied")
        if model.name.endswith("gone"):
            raise FileNotFoundError(2, "No such file or directory")
        remove(model)

    monkeypatch.setattr(ModelFolder, "remove", refused)
    assert remove_unused(root, 100) == ["team/demo/unused"]


def test_git_names_files_by_these_sums(tmp_path: Path) -> None:
    path = tmp_path / "hello"
    path.write_bytes(b"hello\n")
    assert digest_of(path, "git-blob") == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert digest_of(path, "sha256") == hashlib.sha256(b"hello\n").hexdigest()


def test_sizes_are_for_people() -> None:
    assert [gigabytes(size) for size in (141.2e9, 12.34e9, 3e6, 1500, 2.5e12)] == [
        "141 GB",
        "12.3 GB",
        "3 MB",
        "1.5 kB",
        "2500 GB",
    ]


def test_an_answer_that_ends_early_is_no_whole_file(tmp_path: Path) -> None:
    model = MockWeights(away=99)
    with (
        served(model) as url,
        closing(fetch.source_of(hub(url), {})) as source,
        pytest.raises(TransientFetchError, match="answers 503"),
    ):
        source.list_files()
