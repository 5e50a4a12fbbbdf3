"""Collect the KV events of a step in the form of vLLM 0.32: blocks that became full, and blocks that were evicted.

Of tiers below the GPUs events have hashes alone, as those of vLLM's connectors without ``self_describing_kv_events``.
vLLM's tier of files publishes events only where its settings say so, and no removals.
"""

from typing import Any, Final

from weft_mock.sequence import Sequence

Event = dict[str, Any]
_MEDIA: Final = {"cpu": ("CPU", None), "disk": ("STORAGE", None), "remote": ("STORAGE", "REMOTE")}


class KvEventLog:
    """Collects the events of a step; nothing where they are not wanted."""

    def __init__(self, *, block_size: int, wanted: bool, disk: bool = True) -> None:
        """Collect what is ``wanted``, of files only if ``disk`` says so."""
        self._block_size = block_size
        self._wanted = wanted
        self._disk = disk
        self._gpu: list[Event] = []
        self._tiers: list[Event] = []

    def sealed(self, sequence: Sequence, index: int) -> None:
        """Note that a block of a sequence is cached now."""
        if not self._wanted:
            return
        key, size = sequence.key(index), self._block_size
        parent = sequence.key(index - 1) if index else None
        ids = sequence.tokens[index * size : (index + 1) * size]
        named = [name for name in (sequence.adapter, sequence.cache_salt if not index else "") if name]
        extra = named or None
        last = self._gpu[-1] if self._gpu else None
        if last is not None and last["type"] == "BlockStored" and last["block_hashes"][-1] == parent:
            last["block_hashes"].append(key)
            last["token_ids"] += ids
            last["extra_keys"].append(extra)
            return
        self._gpu.append(
            {
                "type": "BlockStored", "block_hashes": [key], "parent_block_hash": parent, "token_ids": ids,
                "block_size": size, "lora_id": None, "medium": "GPU", "lora_name": sequence.adapter or None,
                "extra_keys": [extra], "group_idx": 0,
            }
        )  # fmt: skip

    def evicted(self, key: int) -> None:
        """Note that a block left the GPUs' memory."""
        if self._wanted:
            self._gpu.append({"type": "BlockRemoved", "block_hashes": [key], "medium": "GPU", "group_idx": 0})

    def tier(self, name: str, key: int, kept: bool) -> None:
        """Note that a tier has a block now, or has not any more; files are deleted without an event."""
        if not self._wanted or (name == "disk" and not (self._disk and kept)):
            return
        medium, locality = _MEDIA[name]
        event: Event = {"block_hashes": [key], "medium": medium, "group_idx": 0, "locality": locality}
        if kept:
            event |= {"parent_block_hash": None, "token_ids": [], "block_size": 0, "lora_id": None, "lora_name": None}
        self._tiers.append({"type": "BlockStored" if kept else "BlockRemoved", **event})

    def take(self) -> list[Event]:
        """Return the events since the last time: those of the GPUs first, as vLLM's scheduler collects them."""
        events = self._gpu + self._tiers
        self._gpu, self._tiers = [], []
        return events
