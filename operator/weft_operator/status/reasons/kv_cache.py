"""The reasons of the condition KVCacheTiers."""

from collections.abc import Mapping
from types import MappingProxyType

from weft_operator.status.reasons.reason import Reason

KV_CACHE_TIERS: Mapping[str, Reason] = MappingProxyType(
    {
        "TiersInUse": Reason("Workers that are ready run with the tiers, and nothing is known to be wrong with them."),
        "EventsFollowed": Reason(
            "There are no tiers. Routers follow the KV events of engines, and nothing is known to be wrong with them."
        ),
        "NotYetReady": Reason(
            "No worker is ready, so no tier is in use.",
            "Wait; if it stays so, `Ready` and `Progressing` say what workers wait for.",
            cause="Workers are starting, or the service is scaled to zero.",
        ),
        "TierTooLarge": Reason(
            "A worker's pod asks for more memory than the largest node of its pool has, and would fit without "
            "`spec.kvCache.cpu`. It stays unscheduled. Workers that run are not affected.",
            "Make `spec.kvCache.cpu.size` smaller, or add nodes with more memory to the pool. The size is of each "
            "worker, on top of the memory in `spec.engine.resources`.",
            cause="The size was meant for a node and not for each worker, or the pool has smaller nodes than assumed.",
        ),
        "ClaimMissing": Reason(
            "The PersistentVolumeClaim of `spec.kvCache.disk.claim` does not exist. No worker's pod starts.",
            "Create the claim in the service's namespace, or remove `claim`: then each worker gets a volume of its "
            "own.",
            cause="A wrong name, another namespace, or a claim that is yet to be created.",
        ),
        "ClaimNotBound": Reason(
            "The PersistentVolumeClaim of `spec.kvCache.disk.claim` has no volume yet, or has lost it. No worker's pod "
            "starts.",
            "See its events with `kubectl describe pvc`: an unknown storage class, no provisioner, or no volume of "
            "that size and access mode.",
            cause="The storage class cannot provide the volume.",
        ),
        "ClaimAccessMode": Reason(
            "The claim of `spec.kvCache.disk.claim` cannot be written to from all workers. Those on other nodes stay "
            "in ContainerCreating.",
            "Name a claim with the access mode ReadWriteMany, keep all workers on one node, or remove `claim`: then "
            "each worker gets a volume of its own.",
            cause="The claim is ReadWriteOnce, as of most block storage.",
        ),
        "DiskFull": Reason(
            "Other files leave less than half of `spec.kvCache.disk.size` to a worker, beside the 5 % of the disk that "
            "stay free. KV is deleted before it is used, or not written. Rounds are served all the same: what is not "
            "found is computed.",
            "Remove other files from the disk, make the volume larger, or make `spec.kvCache.disk.size` smaller. On a "
            "claim or a path that workers share, folders of deleted services stay: see docs/kv-cache.md.",
            cause="Several workers, or other programs, share a disk that is smaller than their tiers together.",
        ),
        "DiskSlow": Reason(
            "In most of the last five tries, 30 s apart, a worker's disk took longer than half a second to write 1 "
            "MiB. Loads from it delay rounds, and may take longer than computing the tokens.",
            "Use a faster disk: `storageClassName` or `path` of a local NVMe drive. Or remove `spec.kvCache.disk`.",
            cause="Network storage at its limit, or a disk that others keep busy.",
        ),
        "DiskUnavailable": Reason(
            "A worker's disk cannot be written to, or its sidecar `kv-disk`, which makes room there, does not answer. "
            "Without it the engine fills the disk. Rounds are served all the same.",
            "See the log of the container `kv-disk`: a folder that is not writable for the engine's user, a network "
            "volume that is away, or a disk with errors. It is tried again every 30 s.",
            cause="A folder of `spec.kvCache.disk.path` belongs to another user, or the storage is away.",
        ),
        "EventsMissing": Reason(
            "For half a minute and three prompts, an engine served prompts and published no KV events. Bindings "
            "and routes go by the estimate meanwhile; answers are the same.",
            "See the engine's log for `kv_events`, and the log of the container `router` for `kv_events_port`. Remove "
            "arguments that switch prefix caching off (`--no-enable-prefix-caching`). Delete the pod where events "
            "stopped. Or remove `spec.engine.kvEvents`.",
            cause="Prefix caching is off, or the engine's publisher has failed.",
        ),
        "BlockSizeDiffers": Reason(
            "An engine's KV events have blocks of another size than its first ones. Only blocks of the first size "
            "count. Prompts whose blocks do not count go by the estimate.",
            "Remove the arguments or variables that give some of its KV another block size, so that all blocks have "
            "that of `spec.engine.kvTransfer.blockTokens`.",
            cause="An argument or variable of the engine in `spec.engine`, or in the image.",
        ),
        "EventsDisagree": Reason(
            "For half a minute and three prompts, an engine published KV events without the prompts that it served. "
            "Bindings and routes go by the estimate meanwhile.",
            "Use an engine version that Weft supports. `weft_router_kv_events_refused_total` by `reason` says which "
            "events are not understood. Or remove `spec.engine.kvEvents`.",
            cause="Another version of the engine names or hashes blocks otherwise.",
        ),
        "EventsLost": Reason(
            "Three times in five minutes a worker's KV events were lost, out of order or unreadable. Each time its "
            "router forgets what is cached, and learns it again from later events.",
            "Give the router's sidecar more CPU (`spec.routing.resources`). See its log for `kv_events_lost`, "
            "`kv_events_restarted` and `kv_events_malformed`.",
            cause="The sidecar is more than 10,000 steps behind its engine, or two processes publish to its port.",
        ),
    }
)
