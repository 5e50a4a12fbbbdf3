"""`weft cluster …`: the local cluster on the command line."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

from weft_e2e.cluster import kubectl, lifecycle, packages, preflight, state, status, toolchain
from weft_e2e.cluster.config import MAX_NODES, ClusterConfig
from weft_e2e.cluster.errors import ClusterError
from weft_e2e.cluster.handle import Cluster
from weft_e2e.cluster.paths import ClusterPaths

DEFAULT = ClusterConfig()


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb `cluster`."""
    parser = subparsers.add_parser("cluster", help="a real Kubernetes on this machine, with simulated GPUs")
    _add_commands(parser)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="weft cluster", description="A real Kubernetes on this machine.")
    _add_commands(parser)
    args = parser.parse_args(argv)
    result = args.run(args)
    return int(result)


def _add_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--name", default=DEFAULT.name, help="which cluster (default: %(default)s)")
        command.set_defaults(run=_reporting(run))
        return command

    setup = add("setup", _setup, "install and build everything the cluster needs (idempotent)")
    setup.add_argument(
        "--client-only", action="store_true", help="for a cluster of your own: only look for its clients"
    )
    start = add("up", _up, "start the cluster, or make sure it runs")
    start.add_argument("--nodes", type=int, help=f"real nodes, 1 to {MAX_NODES} (default: {DEFAULT.nodes})")
    start.add_argument("--gpus", type=int, help=f"simulated GPUs per node (default: {DEFAULT.gpus})")
    start.add_argument("--rdma", type=int, help=f"simulated RDMA devices per node (default: {DEFAULT.rdma})")
    start.add_argument("--gpu-type", help=f"value of the label weft.dev/gpu-type (default: {DEFAULT.gpu_type})")
    start.add_argument("--api-port", type=int, help="port on 127.0.0.1 (default: 16443, or any free one)")
    add("down", _down, "end the cluster and remove all of it")
    add("status", _status, "show the cluster").add_argument("--json", action="store_true", help="for programs")
    load = add("load", _load, "bring images to every node")
    load.add_argument("images", nargs="+", metavar="IMAGE", help="name in buildah's storage, or OCI/Docker archive")
    for name, run, text in (
        ("power-off", _power_off, "cut the power of a node"),
        ("power-on", _power_on, "switch a node on again"),
    ):
        add(name, run, text).add_argument("node", metavar="NODE")
    fake = add("fake-nodes", _fake_nodes, "set the number of fake (KWOK) nodes")
    fake.add_argument("count", type=int, metavar="N")
    expose = add("forward", _forward, "lead a port of this machine to a Service until interrupted")
    expose.add_argument("service", metavar="NAMESPACE/SERVICE:PORT")
    expose.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: any free one)")
    for name, run in (("kubectl", _kubectl), ("helm", _helm)):
        # No word is an option of ours, so that every option reaches the client; --name is looked for by hand.
        client = commands.add_parser(
            name, help=f"run {name} on the cluster: {name} [--name NAME] …", prefix_chars="\0", add_help=False
        )
        client.add_argument("args", nargs=argparse.REMAINDER)
        client.set_defaults(run=_reporting(run))


def _reporting(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Turn our own errors into one line and exit status 1."""

    def wrapped(args: argparse.Namespace) -> int:
        try:
            return run(args)
        except ClusterError as error:
            print(f"weft cluster: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        except BrokenPipeError:  # the reader (`| head`) has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0

    return wrapped


def _progress() -> Callable[[str], None]:
    begin = time.monotonic()
    return lambda line: print(f"[{time.monotonic() - begin:6.1f} s] {line}", flush=True)


def _setup(args: argparse.Namespace) -> int:
    progress = _progress()
    if args.client_only:
        packages.check_clients()
        return 0
    preflight.check_setup()
    packages.install(progress)
    toolchain.build_all(progress)
    progress("everything the local cluster needs is here")
    return 0


def _up(args: argparse.Namespace) -> int:
    paths = ClusterPaths.of(args.name)
    known = state.read(paths)
    base = known.config if known is not None else ClusterConfig(name=args.name)
    asked = {key: getattr(args, key) for key in ("nodes", "gpus", "rdma", "gpu_type", "api_port")}
    config = ClusterConfig(**(base.to_dict() | {key: value for key, value in asked.items() if value is not None}))
    lifecycle.up(config, _progress())
    print(status.table(status.read(paths)))
    print(f"\nuse it: export KUBECONFIG={paths.kubeconfig}")
    return 0


def _down(args: argparse.Namespace) -> int:
    there = lifecycle.down(args.name)
    print(f"cluster {args.name!r} {'removed' if there else 'was not there'}")
    return 0


def _status(args: argparse.Namespace) -> int:
    found = status.read(ClusterPaths.of(args.name))
    print(found.to_json() if args.json else status.table(found))
    return 0 if found.healthy else 1


def _load(args: argparse.Namespace) -> int:
    Cluster(args.name).load(args.images, _progress())
    return 0


def _power_off(args: argparse.Namespace) -> int:
    lifecycle.power_off(args.name, args.node)
    print(f"{args.node} is off; Kubernetes notices in about 20 s")
    return 0


def _power_on(args: argparse.Namespace) -> int:
    lifecycle.power_on(args.name, args.node, _progress())
    print(f"{args.node} is on and Ready")
    return 0


def _fake_nodes(args: argparse.Namespace) -> int:
    Cluster(args.name).fake_nodes(args.count)
    print(f"{args.count} fake nodes Ready")
    return 0


def _forward(args: argparse.Namespace) -> int:
    service, _, port = args.service.rpartition(":")
    namespace, slash, name = service.partition("/")
    if not slash or not port.isdigit():
        raise ClusterError(f"{args.service!r}: expected NAMESPACE/SERVICE:PORT, as weft/my-service:8000")
    with Cluster(args.name).host_forward(namespace, name, int(port), args.port) as url:
        print(f"{url} leads to {args.service}; end with Ctrl-C", flush=True)
        while True:
            time.sleep(3600)


def _kubectl(args: argparse.Namespace) -> int:
    return _client(args.args, kubectl.kubectl_argv)


def _helm(args: argparse.Namespace) -> int:
    return _client(args.args, kubectl.helm_argv)


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
