"""Certificates of a cluster: one authority, and one certificate per component, made anew with the cluster."""

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from weft_e2e.cluster.addresses import IPV4, IPV6, LOOPBACK
from weft_e2e.cluster.config import CLUSTER_DOMAIN

LIFETIME = datetime.timedelta(days=365)
CLOCK_SLACK = datetime.timedelta(hours=1)
API_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    f"kubernetes.default.svc.{CLUSTER_DOMAIN}",
)
API_ADDRESSES = (LOOPBACK, *(ip for family in (IPV4, IPV6) for ip in (family.api_service, family.control_plane)))


@dataclass(frozen=True)
class Subject:
    """Who a certificate speaks for: Kubernetes reads the user from CN and the groups from O."""

    user: str
    group: str | None = None
    server: bool = False


def subjects(nodes: tuple[str, ...]) -> dict[str, Subject]:
    """Return every certificate of a cluster by file name."""
    return {
        "apiserver": Subject("kube-apiserver", server=True),
        "apiserver-kubelet": Subject("kube-apiserver-kubelet-client", "system:masters"),
        "admin": Subject("weft-admin", "system:masters"),
        "controller-manager": Subject("system:kube-controller-manager"),
        "scheduler": Subject("system:kube-scheduler"),
        "proxy": Subject("system:kube-proxy"),
    } | {node: Subject(f"system:node:{node}", "system:nodes") for node in nodes}


class Authority:
    """The cluster's certificate authority; `now` is the time from which its certificates count."""

    def __init__(self, now: datetime.datetime) -> None:
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "weft-local-cluster")])
        self.certificate = (
            self._builder(name, name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def key_pem(self) -> bytes:
        return _key_pem(self._key)

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, subject: Subject) -> tuple[bytes, bytes]:
        """Return (certificate, key) for `subject`, both PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, subject.user)]
        if subject.group is not None:
            attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, subject.group))
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH if subject.server else ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            self._builder(x509.Name(attributes), self.certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            # Without it, strict verifiers (OpenSSL's VERIFY_X509_STRICT, Python's default from 3.13) refuse the chain.
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if subject.server:
            alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in API_NAMES]
            alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in API_ADDRESSES]
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key)

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - CLOCK_SLACK)
            .not_valid_after(self._now + LIFETIME)
        )


def write_all(folder: Path, nodes: tuple[str, ...]) -> None:
    """Write the authority, every component's pair and the service-account signing key into `folder`."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = Authority(datetime.datetime.now(datetime.UTC))
    files = {"ca.crt": authority.certificate_pem, "ca.key": authority.key_pem}
    for name, subject in subjects(nodes).items():
        files[f"{name}.crt"], files[f"{name}.key"] = authority.issue(subject)
    signing = ec.generate_private_key(ec.SECP256R1())
    files["service-account.key"] = _key_pem(signing)
    files["service-account.pub"] = signing.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for name, content in files.items():
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
