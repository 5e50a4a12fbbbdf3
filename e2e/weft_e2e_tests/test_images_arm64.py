"""The router's image for arm64, built and run under emulation in front of two scripted engines."""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from weft_e2e import images
from weft_router_tests.fake_engine import FakeEngine, prompt_ids, reply_text
from weft_router_tests.stack import MODEL, TOKEN, free_port, router_json, until

pytestmark = [
    pytest.mark.component,
    pytest.mark.timeout(3600),
    pytest.mark.skipif("WEFT_E2E_ARM64" not in os.environ, reason="set WEFT_E2E_ARM64=1 (make e2e-arm64)"),
]

EM_AARCH64 = 183  # ELF's number of the machine
ANSWER_TOKENS = 12


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """Give the root folder of the image, mounted."""
    ref = images.build(["weft-router"], arch="arm64", report=print)["weft-router"]
    container = output_of("buildah", "from", "--arch", "arm64", "--pull-never", ref)
    try:
        yield Path(output_of("buildah", "mount", container))
    finally:
        output_of("buildah", "rm", container)


def output_of(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_every_program_and_library_is_for_arm64(root: Path) -> None:
    machines = set()
    for file in root.rglob("*"):
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as opened:
                head = opened.read(20)
            if head.startswith(b"\x7fELF"):
                machines.add(int.from_bytes(head[18:20], "little"))
    assert machines == {EM_AARCH64}


@pytest.fixture
async def engines() -> AsyncIterator[dict[str, FakeEngine]]:
    """Give a prefill and a decode engine."""
    found: dict[str, FakeEngine] = {}
    for name in ("p0", "d0"):
        found[name] = FakeEngine(name, peers=found)
        found[name].script.length = ANSWER_TOKENS
        await found[name].start(free_port())
    yield found
    for engine in found.values():
        await engine.stop()


async def test_the_router_serves_a_disaggregated_round_under_emulation(
    root: Path, engines: dict[str, FakeEngine]
) -> None:
    (root / "config").mkdir()
    entries = [
        {"name": name, "role": role, "url": engines[name].url, "degree": 1}
        for name, role in (("p0", "prefill"), ("d0", "decode"))
    ]
    (root / "config/router.json").write_text(json.dumps(router_json()))
    (root / "config/workers.json").write_text(json.dumps({"workers": entries}))
    (root / "config/token").write_text(TOKEN)
    port = free_port()
    words = [
        "chroot",
        str(root),
        "/opt/weft/bin/weft",
        "router",
        "--role",
        "standalone",
        "--config",
        "/config/router.json",
    ]
    words += ["--workers", "/config/workers.json", "--listen", f"127.0.0.1:{port}"]
    router = subprocess.Popen(  # noqa: ASYNC220  # it is waited for below
        words, env=os.environ | {"WEFT_TOKEN_FILE": "/config/token"}
    )
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as http:

            async def ready() -> bool:
                assert router.poll() is None
                try:
                    async with http.get(f"http://127.0.0.1:{port}/readyz") as response:
                        return response.status == 200
                except aiohttp.ClientError:
                    return False

            await until(ready, seconds=180)
            body = {"model": MODEL, "messages": [{"role": "user", "content": "a prompt"}], "temperature": 0}
            async with http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as response:
                answer = await response.json()
                assert response.status == 200, answer
                assert answer["choices"][0]["message"]["content"] == reply_text(prompt_ids(body), ANSWER_TOKENS)
    finally:
        router.terminate()
        assert router.wait(timeout=120) == 0
