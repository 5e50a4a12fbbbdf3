"""TLS of the front door: the certificate changes without a restart, and broken files change nothing."""

import asyncio
import datetime
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from weft_router.auth.tls import ServerTls
from weft_router.config import ConfigError, TlsConfig

PLAIN = serialization.NoEncryption()


def write_pair(
    folder: Path, name: str, encryption: serialization.KeySerializationEncryption = PLAIN
) -> tuple[Path, Path]:
    """Write a self-signed certificate of a name and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / f"{name}.crt", folder / f"{name}.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return files


def config(certificate: Path, key: Path, **more: Any) -> TlsConfig:
    return TlsConfig.model_validate({"certFile": str(certificate), "keyFile": str(key), **more})


def install(folder: Path, name: str, **more: Any) -> TlsConfig:
    """Put a new pair where the server reads it, as a mounted Secret does: by renaming."""
    certificate, key = write_pair(folder, name)
    return config(certificate.rename(folder / "tls.crt"), key.rename(folder / "tls.key"), **more)


async def met(context: ssl.SSLContext, **client: Any) -> tuple[str, str | None, str | None]:
    """Shake hands with a server; return whose certificate it showed, the version and the protocol."""
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    asking.set_alpn_protocols(["h2", "http/1.1"])
    for name, value in client.items():
        setattr(asking, name, value)
    port = server.sockets[0].getsockname()[1]
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=asking)
        ssl_object = writer.get_extra_info("ssl_object")
        shown = x509.load_der_x509_certificate(ssl_object.getpeercert(binary_form=True))
        await reader.read()
        writer.close()
        names = shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(names[0].value), ssl_object.version(), ssl_object.selected_alpn_protocol()
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.component
async def test_a_new_certificate_is_shown_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tls = ServerTls(install(tmp_path, "one.example.com"))
    assert await met(tls.context) == ("one.example.com", "TLSv1.3", "http/1.1")
    assert not tls.reload()
    install(tmp_path, "two.example.com")
    assert tls.reload()
    assert (await met(tls.context))[0] == "two.example.com"
    assert [record.message for record in caplog.records if record.name.endswith("tls")] == ["certificate_read"]


@pytest.mark.component
async def test_broken_files_keep_the_old_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tls = ServerTls(install(tmp_path, "one.example.com"))
    key = (tmp_path / "tls.key").read_bytes()
    install(tmp_path, "two.example.com")
    (tmp_path / "tls.key").write_bytes(key)  # the key of another certificate
    assert not tls.reload()
    assert (await met(tls.context))[0] == "one.example.com"
    (tmp_path / "tls.crt").write_text("canary")
    assert not tls.reload()
    (tmp_path / "tls.crt").unlink()
    assert not tls.reload()
    assert (await met(tls.context))[0] == "one.example.com"
    assert {record.message for record in caplog.records} == {"certificate_unreadable"}
    assert "canary" not in caplog.text
    install(tmp_path, "three.example.com")
    assert tls.reload()
    assert (await met(tls.context))[0] == "three.example.com"


@pytest.mark.component
async def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    modern = ServerTls(install(tmp_path, "one.example.com", minVersion="1.3"))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await met(modern.context, maximum_version=ssl.TLSVersion.TLSv1_2)
    usual = ServerTls(install(tmp_path, "two.example.com"))
    assert (await met(usual.context, maximum_version=ssl.TLSVersion.TLSv1_2))[1] == "TLSv1.2"
    assert usual.context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.component
async def test_clients_show_a_certificate_where_one_is_asked_for(tmp_path: Path) -> None:
    authority, _ = write_pair(tmp_path, "clients.example.com")
    tls = ServerTls(install(tmp_path, "one.example.com", clientCaFile=str(authority)))
    with pytest.raises((ssl.SSLError, ConnectionError)):  # in TLS 1.3 a client learns of it only when it reads
        await met(tls.context, maximum_version=ssl.TLSVersion.TLSv1_2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"certFile": "/nowhere"}, "cannot be read"),
        ({"keyFile": "/nowhere"}, "cannot be read"),
        ({"keyFile": "encrypted"}, "the key is encrypted"),
        ({"keyFile": "other"}, "the certificate's own"),
        ({"certFile": "text"}, "must be PEM"),
        ({"clientCaFile": "text"}, "must be PEM"),
    ],
)
def test_a_process_does_not_start_with_files_it_cannot_use(tmp_path: Path, change: dict[str, str], says: str) -> None:
    certificate, key = write_pair(tmp_path, "one.example.com")
    _, other = write_pair(tmp_path, "two.example.com")
    _, encrypted = write_pair(tmp_path, "three.example.com", serialization.BestAvailableEncryption(b"secret-word"))
    (tmp_path / "text").write_text("canary")
    files = {"encrypted": encrypted, "other": other, "text": tmp_path / "text"}
    with pytest.raises(ConfigError, match=says) as caught:
        ServerTls(config(certificate, key, **{name: str(files.get(value, value)) for name, value in change.items()}))
    assert "canary" not in str(caught.value)
