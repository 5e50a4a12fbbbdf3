"""What the plug-in relies on in vLLM: ``python -m weft_vllm.contract`` names what a version broke.

These are public methods, and the fields of a KV handle, which are looked for in the source of vLLM's NixlConnector. It
needs neither a model nor an engine, and ends with status 1 where something is missing.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from importlib import import_module, metadata
from typing import Any

HANDLE_FIELDS = ("remote_request_id", "remote_blocks_expiry_time", "remote_num_tokens")
"""Fields of a KV handle that the guard asks for, or lets pass."""


def broken() -> list[str]:
    """Return what this vLLM lacks, a sentence each; nothing where the plug-in works."""
    return [line for check in (_hooks, _client, _values, _handles) for line in _findings(check)]


def _findings(check: Callable[[], Iterator[str]]) -> list[str]:
    try:
        return list(check())
    except (ImportError, AttributeError) as error:
        return [f"{check.__name__.strip('_')}: {error}"]


def _hooks() -> Iterator[str]:
    plugin = import_module("vllm.plugins.endpoint_plugins.interface").EndpointPlugin
    yield from _lacks(plugin.attach_router, "EndpointPlugin.attach_router", "app")
    yield from _lacks(plugin.init_state, "EndpointPlugin.init_state", "engine_client", "state", "args", awaits=True)
    group = import_module("vllm.plugins").ENDPOINT_PLUGINS_GROUP
    if group != "vllm.endpoint_plugins":
        yield f"the entry points of endpoint plug-ins are {group}, not vllm.endpoint_plugins"


def _client() -> Iterator[str]:
    client = import_module("vllm.engine.protocol").EngineClient
    yield from _lacks(client.generate, "EngineClient.generate", "prompt", "sampling_params", "request_id")
    rejected = client.notify_kv_transfer_request_rejected
    names = ("request_id", "kv_transfer_params")
    yield from _lacks(rejected, "EngineClient.notify_kv_transfer_request_rejected", *names, awaits=True)


def _values() -> Iterator[str]:
    sampling = import_module("vllm.sampling_params").SamplingParams(n=2, extra_args={"kv_transfer_params": {}})
    if (sampling.n, sampling.extra_args) != (2, {"kv_transfer_params": {}}):
        yield "SamplingParams keeps neither n nor extra_args as they were given"
    output = import_module("vllm.outputs").RequestOutput
    if "kv_transfer_params" not in inspect.signature(output.__init__).parameters:
        yield "RequestOutput has no kv_transfer_params"


def _handles() -> Iterator[str]:
    folder = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
    text = "".join(inspect.getsource(import_module(f"{folder}.{name}")) for name in ("metadata", "pull_scheduler"))
    for name in HANDLE_FIELDS:
        if name not in text:
            yield f"NixlConnector's handles have no {name}"


def _lacks(function: Any, name: str, *wanted: str, awaits: bool = False) -> Iterator[str]:
    """Say where a method does not take the parameters that are wanted first, in this order."""
    got = tuple(inspect.signature(function).parameters)
    if (first := got[1 : len(wanted) + 1]) != wanted:
        yield f"{name} takes ({', '.join(first)}, …), not ({', '.join(wanted)}, …)"
    if awaits and not inspect.iscoroutinefunction(function):
        yield f"{name} is not async"


def main() -> int:
    """Print what is broken; return the exit status."""
    version = metadata.version("vllm")
    lines = broken()
    for line in lines:
        print(f"vLLM {version}: {line}")  # noqa: T201 - the command's own words
    if not lines:
        print(f"vLLM {version} has all that weft_kv relies on")  # noqa: T201
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
