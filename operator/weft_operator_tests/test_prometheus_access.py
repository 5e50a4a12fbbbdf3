"""What is sent to a Prometheus behind Mimir, Thanos or OpenShift's querier: headers, tokens that rotate, trust."""

import base64
import datetime
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from weft_e2e.cluster.certs import Authority, Subject
from weft_operator.api.objects import Manifest, ServiceKey
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.errors import ForbiddenError, Right
from weft_operator.metrics.credentials import Credentials, access_of, credentials_for
from weft_operator.metrics.observation import NoMetricsError
from weft_operator.metrics.prometheus import ask
from weft_operator.metrics.query_target import QueryTarget, target_of
from weft_operator.settings import PrometheusAccess, SettingsError, settings_from_env
from weft_operator_tests.valid import changed, service, spec

KEY = ServiceKey("llm", "demo")
OWN_URL = "https://mimir.example.com/prometheus"
ANSWER = b'{"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}'


@dataclass
class Gateway:
    """A server before Prometheus that answers whoever has its certificate's trust, its token and a tenant."""

    url: str = ""
    ca: str = ""
    token: str = "first"
    tenant: str = "team-a"
    asked: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    found = Gateway()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wrong = [
                name
                for name, value in (("Authorization", f"Bearer {found.token}"), ("X-Scope-OrgID", found.tenant))
                if self.headers.get_all(name) != [value]
            ]
            if wrong:
                found.refused.append(",".join(wrong))
                self.send_response(401)
                self.end_headers()
                return
            found.asked += parse_qs(urlsplit(self.path).query)["query"]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ANSWER)

        def log_message(self, *_: object) -> None:
            pass

    authority = Authority(datetime.datetime.now(datetime.UTC))
    certificate, key = authority.issue(Subject("thanos-querier", server=True))
    for name, content in (("tls.crt", certificate), ("tls.key", key)):
        (tmp_path / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found.url = f"https://127.0.0.1:{server.server_address[1]}/api"
    found.ca = authority.certificate_pem.decode()
    yield found
    server.shutdown()
    server.server_close()


def files(folder: Path, gateway: Gateway) -> PrometheusAccess:
    """Write what a pod of the operator has mounted."""
    (folder / "headers").mkdir()
    (folder / "headers" / "..data").mkdir()
    (folder / "headers" / "X-Scope-OrgID").write_text(f"{gateway.tenant}\n")
    (folder / "token").write_text(f"{gateway.token}\n")
    (folder / "ca.crt").write_text(gateway.ca)
    return PrometheusAccess(
        headers_folder=str(folder / "headers"), token_file=str(folder / "token"), ca_file=str(folder / "ca.crt")
    )


@pytest.mark.component
def test_a_server_that_checks_tenant_token_and_trust_is_asked(gateway: Gateway, tmp_path: Path) -> None:
    ask(gateway.url, access_of(files(tmp_path, gateway)), ["up"])
    assert gateway.asked == ["time()", "up"]
    assert gateway.refused == []


@pytest.mark.component
def test_a_token_that_rotates_is_read_for_every_request(gateway: Gateway, tmp_path: Path) -> None:
    credentials = access_of(files(tmp_path, gateway))
    ask(gateway.url, credentials, [])
    gateway.token = "second"
    with pytest.raises(NoMetricsError) as refused:
        ask(gateway.url, credentials, [])
    assert refused.value.availability.reason == "PrometheusUnauthorized"
    (tmp_path / "token").write_text("second")
    ask(gateway.url, credentials, [])
    assert gateway.asked == ["time()", "time()"]
    (tmp_path / "token").unlink()
    with pytest.raises(NoMetricsError, match="the operator cannot read") as gone:
        ask(gateway.url, credentials, [])
    assert "second" not in gone.value.availability.message


@pytest.mark.component
@pytest.mark.component
@pytest.mark.parametrize("text", ["", "two\nlines"])
def test_a_file_without_a_token_is_named_without_what_it_holds(gateway: Gateway, tmp_path: Path, text: str) -> None:
    access = files(tmp_path, gateway)
    (tmp_path / "token").write_text(text)
    with pytest.raises(NoMetricsError) as caught:
        ask(gateway.url, access_of(access), ())
    assert caught.value.availability.reason == "PrometheusUnauthorized"
    assert f"{tmp_path}/token is empty, or holds no token" in caught.value.availability.message
    assert "lines" not in caught.value.availability.message
    assert gateway.refused == [], "nothing is sent"


def test_a_certificate_of_nobody_known_is_refused_before_anything_is_sent(gateway: Gateway, tmp_path: Path) -> None:
    access = files(tmp_path, gateway)
    other = Authority(datetime.datetime.now(datetime.UTC)).certificate_pem.decode()
    for ca in ("", other):
        with pytest.raises(NoMetricsError, match="certificate is not trusted"):
            ask(gateway.url, replace(access_of(access), ca=ca), ["up"])
    with pytest.raises(NoMetricsError, match="no certificate in PEM form"):
        ask(gateway.url, replace(access_of(access), ca="-----BEGIN CERTIFICATE-----\nx\n"), ["up"])
    assert gateway.asked == gateway.refused == []


def asked(**prometheus: object) -> DisaggInferenceServiceSpec:
    return spec(changed(service(), "spec.planning.prometheus", prometheus))


def target(access: PrometheusAccess, **prometheus: object) -> QueryTarget:
    return target_of(asked(**prometheus), (), default_url=OWN_URL, access=access)


async def sent(at: QueryTarget, **secrets: Mapping[str, str]) -> Credentials:
    async def read(_key: ServiceKey, name: str) -> Manifest | None:
        if name == "forbidden":
            raise ForbiddenError("no", status=403, right=Right("get", "secrets", "", "llm"))
        if name not in secrets:
            return None
        metadata = {"name": name, "labels": {"weft.dev/use": "prometheus"}}
        data = {key: base64.b64encode(text.encode()).decode() for key, text in secrets[name].items()}
        return {"metadata": metadata, "data": data}

    return await credentials_for(KEY, at, read)


OWN = PrometheusAccess(
    headers=(("X-Scope-OrgID", "platform"),), matchers=(("cluster", "a"),), token_file="/var/run/token", ca_file=""
)


async def test_a_service_without_a_server_of_its_own_is_queried_with_the_operators_access() -> None:
    found = target(OWN)
    assert (found.url, found.matchers) == (OWN_URL, (("cluster", "a"),))
    credentials = await sent(found)
    assert credentials.token_file == "/var/run/token"
    assert credentials.headers == {"X-Scope-OrgID": "platform"}
    assert "platform" not in repr(credentials)


async def test_nothing_of_the_operators_access_goes_to_a_server_that_a_service_names() -> None:
    found = target(OWN, url="https://mine.example.com")
    assert found.matchers == ()
    assert await sent(found) == Credentials(foreign=True)


async def test_a_service_adds_headers_and_matchers_and_cannot_take_the_operators_tenant() -> None:
    found = target(
        OWN,
        headers=[{"name": "x-scope-orgid", "value": "other"}, {"name": "X-Team", "value": "llm"}],
        matchers=[{"name": "cluster", "value": "a"}, {"name": "region", "value": "eu"}],
    )
    assert found.matchers == (("cluster", "a"), ("region", "eu"))
    assert (await sent(found)).headers == {"X-Scope-OrgID": "platform", "X-Team": "llm"}


async def test_a_service_signs_with_its_own_secret_and_takes_header_values_from_secrets() -> None:
    found = target(
        OWN,
        url="https://mine.example.com",
        authSecretRef={"name": "prom"},
        headers=[{"name": "X-Scope-OrgID", "secretKeyRef": {"name": "tenant", "key": "id"}}],
    )
    credentials = await sent(found, prom={"token": "t"}, tenant={"id": "canary\n"})
    assert (credentials.token, credentials.headers) == ("t", {"X-Scope-OrgID": "canary"})
    assert "canary" not in repr(credentials)


@pytest.mark.parametrize(
    ("name", "secrets", "words"),
    [
        ("tenant", {}, "key id of Secret tenant is missing"),
        ("tenant", {"tenant": {"other": "x"}}, "key id of Secret tenant is missing"),
        ("tenant", {"tenant": {"id": "canary\r\nX-Evil: 1"}}, "holds no text that a header can have"),
        ("forbidden", {}, "spec.planning.prometheus.headers cannot be read: the operator may not get secrets"),
    ],
)
async def test_a_header_that_cannot_be_sent_is_named(name: str, secrets: dict[str, dict[str, str]], words: str) -> None:
    found = target(OWN, headers=[{"name": "X-Team", "secretKeyRef": {"name": name, "key": "id"}}])
    with pytest.raises(NoMetricsError, match=words) as caught:
        await sent(found, **secrets)
    assert caught.value.availability.reason == "PrometheusUnauthorized"
    assert "canary" not in caught.value.availability.message


def test_a_mounted_header_that_cannot_be_sent_is_named_without_its_value(tmp_path: Path) -> None:
    (tmp_path / "X Team").write_text("canary")
    with pytest.raises(NoMetricsError, match="is no header") as caught:
        access_of(PrometheusAccess(headers_folder=str(tmp_path)))
    assert "canary" not in caught.value.availability.message
    with pytest.raises(NoMetricsError, match="cannot read /nowhere"):
        access_of(PrometheusAccess(ca_file="/nowhere"))


ENV = {"WEFT_ROUTER_IMAGE": "router:1"}


def test_the_operators_access_comes_from_its_environment() -> None:
    found = settings_from_env(
        {
            **ENV,
            "WEFT_PROMETHEUS_HEADERS": '{"X-Scope-OrgID": "a|b"}',
            "WEFT_PROMETHEUS_HEADERS_FOLDER": "/etc/headers",
            "WEFT_PROMETHEUS_MATCHERS": '{"cluster": "a", "az": "é"}',
            "WEFT_PROMETHEUS_TOKEN_FILE": "/var/run/token",
            "WEFT_PROMETHEUS_CA_FILE": "/etc/ca.crt",
        }
    ).prometheus_access
    assert found == PrometheusAccess(
        headers=(("X-Scope-OrgID", "a|b"),),
        headers_folder="/etc/headers",
        matchers=(("az", "é"), ("cluster", "a")),
        token_file="/var/run/token",
        ca_file="/etc/ca.crt",
    )
    assert settings_from_env(ENV).prometheus_access == PrometheusAccess()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("WEFT_PROMETHEUS_HEADERS", "X-Scope-OrgID"),
        ("WEFT_PROMETHEUS_HEADERS", '["a"]'),
        ("WEFT_PROMETHEUS_HEADERS", '{"X-Scope-OrgID": 1}'),
        ("WEFT_PROMETHEUS_HEADERS", '{"X Scope": "a"}'),
        ("WEFT_PROMETHEUS_HEADERS", '{"X-Scope-OrgID": "canary\\n"}'),
        ("WEFT_PROMETHEUS_MATCHERS", '{"a-b": "c"}'),
        ("WEFT_PROMETHEUS_MATCHERS", '{"a": ""}'),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(variable: str, text: str) -> None:
    with pytest.raises(SettingsError, match=variable) as caught:
        settings_from_env({**ENV, variable: text})
    assert "canary" not in str(caught.value)
