"""A real API server for tests, the proxy before it, and what may be said of the writes that it saw."""

import http.client
import json
import secrets
import ssl
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft_e2e.api_proxy import ApiProxy, ProxiedRequest, api_proxy
from weft_e2e.cluster.bare import ADMIN, Bare, User, bare_cluster
from weft_operator.api.objects import Manifest
from weft_operator_tests.chart_roles import ChartRoles, chart_roles
from weft_operator_tests.cluster import Kube
from weft_operator_tests.replicas import Replica
from weft_operator_tests.valid import service

CRDS = Path(__file__).parents[2] / "crds"
NODES = 4
USERS = {name: User(f"token-{name}", f"replica-{name}") for name in ("a", "b", "c")}
"""Operators of tests; what they may do is what the chart says."""
LEASES = "leases"


@dataclass
class RealApi:
    """The API server, kubectl straight to it, and the proxy through which operators speak."""

    bare: Bare
    proxy: ApiProxy
    kube: Kube
    folder: Path
    roles: ChartRoles
    replicas: list[Replica] = field(default_factory=list)
    namespaces: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tls = ssl.create_default_context(cafile=str(self.bare.authority))

    def namespace(self) -> str:
        """Make a namespace and return its name."""
        name = f"t-{secrets.token_hex(3)}"
        self.kube.run("create", "namespace", name)
        self.allow(name)
        self.namespaces.append(name)
        return name

    def allow(self, namespace: str) -> None:
        """Let operators have their Lease in a namespace."""
        self.kube.apply(self.roles.beside(_names(), namespace))

    def replica(self, name: str, namespace: str, *, lease_s: float = 0.0, **env: str) -> Replica:
        """Return an operator that speaks through the proxy as a user of this name; with a Lease if it has seconds."""
        found = Replica(
            name=name,
            kubeconfig=self.bare.kubeconfig(USERS[name].token, server=self.proxy.url),
            namespace=namespace,
            folder=self.folder,
            lease=f"{namespace}/weft-operator" if lease_s else "",
            env={"WEFT_OPERATOR_LEASE_SECONDS": str(lease_s or 15), **env},
        )
        self.replicas.append(found)
        return found

    def read(self, path: str) -> Manifest | None:
        """Return what the API server has at a path, None when there is nothing."""
        return self.send("GET", path)

    def items(self, kind: str, namespace: str) -> list[Manifest]:
        """Return the objects of a kind (such as apis/apps/v1/deployments) in a namespace."""
        root, _, plural = kind.rpartition("/")
        found = self.read(f"{root}/namespaces/{namespace}/{plural}") or {}
        return list(found.get("items") or ())

    def send(self, method: str, path: str, body: Manifest | None = None) -> Manifest | None:
        """Send a request straight to the API server; kubectl would take a core for each."""
        status, found = self.attempt(method, path, body)
        if status == 404:
            return None
        assert status < 300, f"{method} {path}: {status} {found}"
        return found

    def attempt(self, method: str, path: str, body: Manifest | None = None) -> tuple[int, Manifest]:
        """Send a request straight to the API server; return the status of its answer and what it holds."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.bare.port, context=self._tls, timeout=30)
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/apply-patch+yaml"}
        try:
            connection.request(method, f"/{path}", None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status == 404:
            return 404, {}  # of a kind that is not defined it is plain text
        found: Manifest = json.loads(content)
        return answer.status, found

    def heal(self) -> None:
        """Let everything pass, and end the operators and the namespaces of the test: others need the nodes' GPUs."""
        self.proxy.fault = lambda _asked: None
        self.proxy.event = lambda _asked, _event: None
        self.proxy.before = self.proxy.after = lambda _asked: True
        for replica in self.replicas:
            replica.kill()  # also one that was frozen
        self.replicas.clear()
        for namespace in self.namespaces:
            self.kube.run("delete", "namespace", namespace, "--wait=false", "--ignore-not-found")
        self.namespaces.clear()


@contextmanager
def real_api(folder: Path, *, audit: bool = False, values: tuple[str, ...] = ()) -> Iterator[RealApi]:
    """Run it until the end of the block; with ``audit`` what operators ask for is kept (``bare.audit_log``).

    Operators have the rights of the chart with these ``values``.

    Raises:
        SetupError: its programs are not built.
    """
    roles = chart_roles(*values)
    with (
        bare_cluster(folder, users=USERS, nodes=NODES, audit=audit) as bare,
        api_proxy(bare.url, bare.authority) as proxy,
    ):
        kube = Kube(bare.kubeconfig())
        kube.run("apply", "--server-side", "-f", str(CRDS))
        kube.await_definitions(CRDS)
        kube.apply(roles.everywhere(_names()))
        yield RealApi(bare, proxy, kube, folder, roles)


def _names() -> list[str]:
    return [user.name for user in USERS.values()]


def small_service(namespace: str, name: str = "demo", **spec: Any) -> Manifest:
    """Return a service of the mock engine whose workers find room on the fake nodes."""
    body = service()
    body["metadata"] |= {"namespace": namespace, "name": name}
    body["spec"]["capacity"]["elastic"] = True
    body["spec"]["capacity"]["pools"][0]["degrees"] = [2]
    body["spec"]["rollout"] = {"drainTimeout": "1s"}
    body["spec"] |= spec
    return body


def writes(record: Iterable[ProxiedRequest], *, token: str = "") -> list[ProxiedRequest]:
    """Return the writes but those of Leases, of one user if named."""
    return [
        asked for asked in record if asked.writes and asked.resource != LEASES and (not token or asked.token == token)
    ]


def crowded(record: Iterable[ProxiedRequest]) -> list[str]:
    """Return which objects were written more than once a second; Events are new objects each.

    A request whose thread gets its turn late comes closer to the next one, so half a second is allowed for that, once.
    """
    at: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for asked in writes(record):
        if asked.resource != "events":
            at[asked.token, asked.path].append(asked.at)
    return [
        path
        for (_, path), times in at.items()
        for some in range(2, len(times) + 1)
        if times[some - 1] - times[max(0, some - 3)] < min(some - 1, 2) - 0.5
    ]


def strangers(record: Iterable[ProxiedRequest]) -> list[ProxiedRequest]:
    """Return the writes of users who did not hold the Lease when the API server got them."""
    holder, found = "", []
    names = {user.token: name for name, user in USERS.items()}
    for asked in sorted((asked for asked in record if asked.writes), key=lambda asked: asked.at):
        if asked.resource == LEASES:
            # That of the leader; others say whose the services of a namespace are.
            if asked.served in (200, 201) and asked.content["metadata"]["name"] == "weft-operator":
                holder = asked.content["spec"]["holderIdentity"]
        elif names.get(asked.token) != holder:
            found.append(asked)
    return found
