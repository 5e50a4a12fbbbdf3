"""A tier of files for real engines without a GPU: vLLM's ExampleConnector beside NIXL, under MultiConnector.

vLLM's connectors for tiers copy over CUDA streams (OffloadingConnector, SimpleCPUOffloadConnector) or need a server.
ExampleConnector writes the whole blocks of each prompt to a file for each layer. It finds a prompt again whose whole
blocks are the same, and no part of one.
"""

import json
from dataclasses import replace
from pathlib import Path

from weft_e2e.engines.command import Command

_FLAG = "--kv-transfer-config="


def with_files(command: Command, folder: Path) -> Command:
    """Return the command of an engine with NIXL that writes KV to files in a folder, too, as the operator adds tiers.

    Raises:
        ValueError: the engine hands no KV over.
    """
    (flag,) = (word for word in command.argv if word.startswith(_FLAG))
    nixl = json.loads(flag.removeprefix(_FLAG))
    files = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
    both = {
        "kv_connector": "MultiConnector",
        "kv_role": nixl["kv_role"],
        "kv_connector_extra_config": {"connectors": [nixl, files]},
    }
    argv = tuple(_FLAG + json.dumps(both) if word is flag else word for word in command.argv)
    return replace(command, argv=argv)
