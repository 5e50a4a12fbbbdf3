"""TLS on the front: certificates that change while it serves, and handshakes that do not get on."""

import asyncio
import datetime
import ssl
from pathlib import Path
from time import monotonic

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from weft_router.http.limits import HttpLimits
from weft_router_tests.http_kit import QUICK, Backend, connected, echo, fronted, listening, on_uvloop, until

pytestmark = pytest.mark.component

GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"


def certificate(folder: Path, serial: int) -> tuple[Path, Path]:
    """Write a self-made certificate for localhost and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / f"{serial}.crt", folder / f"{serial}.key"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


def serving(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(*certificate(folder, 1))
    return context


def trusting(folder: Path, *serials: int, alpn: list[str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for serial in serials:
        context.load_verify_locations(folder / f"{serial}.crt")
    if alpn:
        context.set_alpn_protocols(alpn)
    return context


@on_uvloop
async def test_requests_are_served_over_tls(tmp_path: Path) -> None:
    async with listening(echo, tls=serving(tmp_path)) as listener:
        trust = trusting(tmp_path, 1, alpn=["h2", "http/1.1"])
        async with connected(listener.port, trust) as client:
            assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
            for _ in range(3):
                await client.send(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000)
                status, body = await client.response()
                assert (status, len(body)) == (200, 100_009)
            await client.send(b"GET / HTTP/1.1\r\n\r\n")
            status, headers = await client.head()
            assert (status, headers["connection"]) == (400, "close")
        await until(lambda: len(listener.connections) == 0)


@on_uvloop
async def test_a_new_certificate_is_used_by_new_connections(tmp_path: Path) -> None:
    context = serving(tmp_path)
    async with listening(echo, tls=context) as listener, connected(listener.port, trusting(tmp_path, 1)) as old:
        certificate(tmp_path, 2)
        context.load_cert_chain(tmp_path / "2.crt", tmp_path / "2.key")
        async with connected(listener.port, trusting(tmp_path, 2)) as new:
            for client in (old, new):
                await client.send(GET)
                assert (await client.response())[0] == 200
        with pytest.raises(ssl.SSLError):
            async with connected(listener.port, trusting(tmp_path, 1)):
                raise AssertionError("the old certificate was shown")


@on_uvloop
async def test_slow_handshakes_hold_no_places_and_end(tmp_path: Path) -> None:
    limits = HttpLimits(max_connections=2, handshake_s=0.3, sweep_s=0.05)
    async with listening(echo, limits, tls=serving(tmp_path)) as listener:
        slow = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(20)]
        began = monotonic()
        async with connected(listener.port, trusting(tmp_path, 1)) as client:
            await client.send(GET)
            assert (await client.response())[0] == 200
            assert len(listener.connections) == 1
            for _, writer in slow[:10]:
                writer.write(b"\x16\x03\x01\x02\x00\x01\x00")
            ends = await asyncio.gather(*(reader.read() for reader, _ in slow), return_exceptions=True)
            assert all(end == b"" or isinstance(end, ConnectionError) for end in ends)
            assert monotonic() - began < 2.0
        for _, writer in slow:
            writer.close()


@on_uvloop
async def test_plain_words_to_a_tls_port_are_not_served(tmp_path: Path) -> None:
    async with listening(echo, QUICK, tls=serving(tmp_path)) as listener, connected(listener.port) as client:
        await client.send(GET)
        assert b"200" not in await client.rest()
        assert len(listener.connections) == 0


@on_uvloop
async def test_a_client_that_goes_is_missed_over_tls(tmp_path: Path) -> None:
    async def never(backend: Backend, writer: asyncio.StreamWriter) -> None:
        del backend, writer
        await asyncio.sleep(30)

    backend = Backend(never)
    async with fronted(backend, tls=serving(tmp_path)) as (listener, front):
        for abort in (True, False):
            async with connected(listener.port, trusting(tmp_path, 1)) as client:
                await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
                await until(lambda: front.running == 1 and backend.open == 1)
                if abort:
                    client.abort()
                else:
                    client.close()
                await until(lambda: front.running == 0 and backend.open == 0, 0.5)
