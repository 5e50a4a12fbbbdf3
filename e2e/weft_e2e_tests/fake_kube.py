"""Stand-ins for a cluster: one answers from objects, one remembers what it was told."""

# ruff: noqa: A002, ARG002 - the signatures are those of weft_e2e.kube.Kube

import json
import subprocess
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from weft_e2e.kube import Object

Done = subprocess.CompletedProcess[str]
GPU_NODE: Object = {
    "metadata": {"name": "gpu-node"},
    "spec": {},
    "status": {"allocatable": {"nvidia.com/gpu": "8", "rdma/ib": "8"}},
}


@dataclass
class FakeKube:
    """Answers ``kubectl get`` from the objects held here."""

    objects: list[Object] = field(default_factory=list)

    def kubectl(self, *args: str, input: str | None = None, timeout: float = 60.0, check: bool = True) -> Done:
        assert args[0] == "get"
        kinds = {k.split(".")[0].removesuffix("s") for k in args[1].split(",")}
        found = [o for o in self.objects if o["kind"].lower() in kinds]
        if args[2] != "-n":
            named = [o for o in found if o["metadata"]["name"] == args[2]]
            return subprocess.CompletedProcess(args, 0, json.dumps(named[0]) if named else "", "")
        if "-l" in args:
            wanted = dict(pair.split("=") for pair in args[args.index("-l") + 1].split(","))
            found = [o for o in found if wanted.items() <= o["metadata"].get("labels", {}).items()]
        return subprocess.CompletedProcess(args, 0, json.dumps({"items": found}), "")

    def helm(self, *args: str, timeout: float = 120.0, check: bool = True) -> Done:
        raise AssertionError("nothing here installs anything")

    def host_forward(
        self, service_namespace: str, service: str, port: int, local_port: int = 0
    ) -> AbstractContextManager[str]:
        raise AssertionError("nothing here sends requests")


@dataclass
class Recorder(FakeKube):
    """Remembers every command, and in ``made`` the objects it was given.

    ``marked`` are namespaces with the demo's mark, ``services`` those of Weft.
    """

    marked: set[str] = field(default_factory=set)
    services: list[str] = field(default_factory=list)
    release: bool = True
    calls: list[tuple[str, ...]] = field(default_factory=list)
    made: list[Object] = field(default_factory=list)

    def kubectl(self, *args: str, input: str | None = None, timeout: float = 60.0, check: bool = True) -> Done:
        self.calls.append(args)
        if input is not None:
            self.made.append(json.loads(input))
        out = ""
        if args[:2] == ("get", "namespace"):
            out = "\n".join(f"namespace/{n}" for n in sorted(self.marked) if "-l" in args or n == args[2])
        elif args[:2] == ("get", "nodes") and "json" in args:
            out = json.dumps({"items": [GPU_NODE, GPU_NODE]})
        elif args[0] == "get":
            out = "\n".join(self.services)
        return subprocess.CompletedProcess(args, 0, out, "")

    def helm(self, *args: str, timeout: float = 120.0, check: bool = True) -> Done:
        self.calls.append(("helm", *args))
        return subprocess.CompletedProcess(args, 0, "weft\n" if args[0] == "list" and self.release else "", "")

    @property
    def changes(self) -> list[tuple[str, ...]]:
        """Return the commands that change something."""
        return [c for c in self.calls if c[0] != "get" and c[:2] != ("helm", "list")]
