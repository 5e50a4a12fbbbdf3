"""`weft cluster …`: the local cluster on the command line."""

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from weft_cli.running import INTERRUPTED, run
from weft_e2e.cluster import kubectl, lifecycle, packages, prerequisites, state, status, toolchain
from weft_e2e.cluster.addresses import IP_FAMILIES
from weft_e2e.cluster.config import MAX_NODES, ClusterConfig
from weft_e2e.cluster.errors import ClusterError
from weft_e2e.cluster.handle import Cluster
from weft_e2e.cluster.paths import ClusterPaths

DEFAULT = ClusterConfig()
Function = TypeVar("Function", bound=Callable[..., object])


class _Reporting(click.Group):
    """Commands whose own errors become one line and exit status 1."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ClusterError as error:
            click.echo(f"weft cluster: {error}", err=True)
            return 1
        except KeyboardInterrupt:
            return INTERRUPTED


class _Client(click.Command):
    """A command of which no word is an option of ours, so that every option reaches the client."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take all words as they are."""
        ctx.params = {"words": list(args)}
        return []


@click.group(cls=_Reporting)
def cluster() -> None:
    """A real Kubernetes on this machine, with simulated GPUs."""


def main(argv: list[str] | None = None) -> int:
    """Run ``python -m weft_e2e.cluster`` and return the exit status."""
    return run(cluster, argv, prog="weft cluster")


def _named(function: Function) -> Function:
    return click.option("--name", default=DEFAULT.name, show_default=True, help="Which cluster.")(function)


def _progress() -> Callable[[str], None]:
    begin = time.monotonic()
    return lambda line: click.echo(f"[{time.monotonic() - begin:6.1f} s] {line}")


@cluster.command()
@_named
@click.option("--client-only", is_flag=True, help="For a cluster of your own: only look for its clients.")
@click.option(
    "--also",
    multiple=True,
    type=click.Choice([tool.name for tool in toolchain.TOOLS.values() if tool.module]),
    help="Build this one, too, which is otherwise built when it is first asked for; may be repeated.",
)
def setup(*, name: str, client_only: bool, also: Sequence[str]) -> None:  # noqa: ARG001  one store serves all clusters
    """Install and build everything the cluster needs (idempotent)."""
    if client_only:
        packages.check_clients()
        return
    prerequisites.install(_progress(), also=also)


@cluster.command()
@click.argument("tool", type=click.Choice([tool.name for tool in toolchain.TOOLS.values() if tool.package]))
def program(*, tool: str) -> None:
    """Build one of the cluster's programs unless it is there, and print its path."""
    if toolchain.missing(frozenset({tool})):
        toolchain.build_all(lambda line: click.echo(line, err=True), frozenset({tool}))
    click.echo(toolchain.tool_path(tool))


@cluster.command()
@_named
@click.option("--nodes", type=int, help=f"Real nodes, 1 to {MAX_NODES} (default: {DEFAULT.nodes}).")
@click.option("--gpus", type=int, help=f"Simulated GPUs per node (default: {DEFAULT.gpus}).")
@click.option("--rdma", type=int, help=f"Simulated RDMA devices per node (default: {DEFAULT.rdma}).")
@click.option("--gpu-type", help=f"Value of the label weft.dev/gpu-type (default: {DEFAULT.gpu_type}).")
@click.option(
    "--ip-family", type=click.Choice(IP_FAMILIES), help=f"Of pods and Services (default: {DEFAULT.ip_family})."
)
@click.option("--api-port", type=int, help="Port on 127.0.0.1 (default: 16443, or any free one).")
def up(*, name: str, **asked: Any) -> None:
    """Start the cluster, or make sure it runs."""
    paths = ClusterPaths.of(name)
    known = state.read(paths)
    base = known.config if known is not None else ClusterConfig(name=name)
    config = ClusterConfig(**(base.to_dict() | {key: value for key, value in asked.items() if value is not None}))
    lifecycle.up(config, _progress())
    click.echo(status.table(status.read(paths)))
    click.echo(f"\nuse it: export KUBECONFIG={paths.kubeconfig}")


@cluster.command()
@_named
def down(*, name: str) -> None:
    """End the cluster and remove all of it."""
    there = lifecycle.down(name)
    click.echo(f"cluster {name!r} {'removed' if there else 'was not there'}")


@cluster.command("status")
@_named
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status_command(*, name: str, as_json: bool) -> int:
    """Show the cluster; exit status 1 when it is not healthy."""
    found = status.read(ClusterPaths.of(name))
    click.echo(found.to_json() if as_json else status.table(found))
    return 0 if found.healthy else 1


@cluster.command()
@_named
@click.argument("images", nargs=-1, required=True, metavar="IMAGE...")
def load(*, name: str, images: Sequence[str]) -> None:
    """Bring images to every node: names in buildah's storage, or OCI or Docker archives."""
    Cluster(name).load(list(images), _progress())


@cluster.command("power-off")
@_named
@click.argument("node")
def power_off(*, name: str, node: str) -> None:
    """Cut the power of a node."""
    lifecycle.power_off(name, node)
    click.echo(f"{node} is off; Kubernetes notices in about 20 s")


@cluster.command("power-on")
@_named
@click.argument("node")
def power_on(*, name: str, node: str) -> None:
    """Switch a node on again."""
    lifecycle.power_on(name, node, _progress())
    click.echo(f"{node} is on and Ready")


@cluster.command("fake-nodes")
@_named
@click.argument("count", type=int, metavar="N")
def fake_nodes(*, name: str, count: int) -> None:
    """Set the number of fake (KWOK) nodes."""
    Cluster(name).fake_nodes(count, _progress())
    click.echo(f"{count} fake nodes Ready")


@cluster.command()
@_named
@click.argument("service", metavar="NAMESPACE/SERVICE:PORT")
@click.option("--port", type=int, default=0, help="Port on 127.0.0.1 (default: any free one).")
def forward(*, name: str, service: str, port: int) -> None:
    """Lead a port of this machine to a Service until interrupted."""
    asked, _, service_port = service.rpartition(":")
    namespace, slash, service_name = asked.partition("/")
    if not slash or not service_port.isdigit():
        raise ClusterError(f"{service!r}: expected NAMESPACE/SERVICE:PORT, as weft/my-service:8000")
    with Cluster(name).host_forward(namespace, service_name, int(service_port), port) as url:
        click.echo(f"{url} leads to {service}; end with Ctrl-C")
        while True:
            time.sleep(3600)


@cluster.command("kubectl", cls=_Client, add_help_option=False)
def kubectl_command(*, words: list[str]) -> int:
    """Run kubectl on the cluster: kubectl [--name NAME] …"""
    return _client(words, kubectl.kubectl_argv)


@cluster.command("helm", cls=_Client, add_help_option=False)
def helm_command(*, words: list[str]) -> int:
    """Run helm on the cluster: helm [--name NAME] …"""
    return _client(words, kubectl.helm_argv)


def split_name(words: list[str]) -> tuple[str, list[str]]:
    """Return (cluster, the client's words): only a --name in front of them is ours."""
    if len(words) >= 2 and words[0] == "--name":
        return words[1], words[2:]
    if words and words[0].startswith("--name="):
        return words[0].removeprefix("--name="), words[1:]
    return DEFAULT.name, words


def _client(words: list[str], argv: Callable[..., list[str]]) -> int:
    name, rest = split_name(words)
    paths = ClusterPaths.of(name)
    state.require(paths)
    return subprocess.run(argv(*rest), env=kubectl.environment(paths.kubeconfig), check=False).returncode
