"""The gRPC port of an endpoint picker: health checks, TLS, and the end of a process."""

import asyncio
import json
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from weft_router_tests.envoy import Envoy, Route
from weft_router_tests.picker_kit import CHAT, USER, answers, picker_process
from weft_router_tests.stack import MODEL, TOKEN, Stack, free_port, router_json, until
from weft_router_tests.test_tls import write_pair

pytestmark = pytest.mark.component


async def test_health_is_told_by_grpc(sidecars: Stack) -> None:
    import grpc

    await sidecars.router("epp", "e0")
    port = sidecars.processes["e0"].settings.port
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"\x0a\x08liveness") == b"\x08\x01"
        assert await check(b"") == b"\x08\x02", "no decode worker was ready yet"
        await sidecars.worker("decode", "d0")

        async def ready() -> bool:
            return bool(await check(b"\x0a\x09readiness") == b"\x08\x01")

        await until(ready)
        with pytest.raises(grpc.aio.AioRpcError):
            await check(b"\x0a\x05other")
        async with aiohttp.ClientSession() as http, http.get(sidecars.processes["e0"].url + "/readyz") as response:
            assert response.status == 200


async def test_grpc_is_encrypted_by_the_certificate_of_the_front_door(sidecars: Stack, tmp_path: Path) -> None:
    import grpc

    certificate, key = write_pair(tmp_path, "picker.example.com")
    sidecars.config["tls"] = {"certFile": str(certificate), "keyFile": str(key)}
    await sidecars.router("epp", "e0")
    where = f"127.0.0.1:{sidecars.processes['e0'].settings.port}"
    names = [("grpc.ssl_target_name_override", "picker.example.com")]
    trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
    async with grpc.aio.secure_channel(where, trusted, options=names) as channel:
        assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"\x0a\x08liveness") == b"\x08\x01"
    renewed, renewed_key = write_pair(tmp_path, "renewed.example.com")
    certificate.write_bytes(renewed.read_bytes())
    key.write_bytes(renewed_key.read_bytes())
    names = [("grpc.ssl_target_name_override", "renewed.example.com")]
    trusted = grpc.ssl_channel_credentials(renewed.read_bytes())
    async with grpc.aio.secure_channel(where, trusted, options=names) as channel:
        assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"\x0a\x08liveness") == b"\x08\x01"


@pytest.mark.parametrize(("oldest", "spoken"), [("1.2", ["TLSv1.2", "TLSv1.3"]), ("1.3", ["TLSv1.3"])])
async def test_grpc_speaks_no_older_tls_than_the_front_door(
    redis_stack: Stack, tmp_path: Path, oldest: str, spoken: list[str]
) -> None:
    """In a process of its own: gRPC reads its cipher suites once in each."""
    certificate, key = write_pair(tmp_path, "picker.example.com")
    tls = {"certFile": str(certificate), "keyFile": str(key), "minVersion": oldest}
    config = tmp_path / "router.json"
    config.write_text(json.dumps({**router_json(), "tls": tls}))
    (tmp_path / "token").write_text(TOKEN)
    port = free_port()
    picker = picker_process(redis_stack, port, free_port(), config=config)

    async def listens() -> bool:
        assert picker.poll() is None, (tmp_path / "picker.log").read_text()
        return await handshake(port, ssl.TLSVersion.TLSv1_3) is not None

    try:
        await until(listens, seconds=60)
        found = [await handshake(port, version) for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)]
        assert [version for version in found if version is not None] == spoken
    finally:
        picker.kill()
        picker.wait()


async def handshake(port: int, version: ssl.TLSVersion) -> str | None:
    """Return the version of TLS in which a server answers a client that speaks this one alone; None if it does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except OSError:  # of which an SSLError is one
        return None
    found: str = writer.get_extra_info("ssl_object").version()
    writer.transport.abort()
    return found


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_picker_process_finishes_its_streams_before_it_ends(redis_stack: Stack, processes: str) -> None:
    await redis_stack.up(coordinators=0, prefill=0)
    engine = redis_stack.engines["d0"]
    engine.script.gap_s = 0.1
    engine.script.length = 20
    port, health = free_port(), free_port()
    picker = picker_process(redis_stack, port, health, "--processes", processes)
    envoy = Envoy(redis_stack.folder, [Route("svc", f"127.0.0.1:{port}")])
    try:
        await until(lambda: answers(redis_stack, health), seconds=60)
        await envoy.start()
        body = {"model": MODEL, "messages": [USER], "stream": True, "max_tokens": 20}
        async with redis_stack.http.post(envoy.url + CHAT, json=body) as response:
            assert response.status == 200
            await response.content.readuntil(b"\n\n")
            picker.send_signal(signal.SIGTERM)
            rest = await response.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        assert await asyncio.to_thread(picker.wait, 30) == 0
    finally:
        envoy.close()
        picker.kill()
        picker.wait()


def test_other_roles_load_no_grpc() -> None:
    code = (
        "import sys, weft_router.process; print([name for name in ('grpc', 'envoy', 'google') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
