"""The metrics of the tier on a worker's disk, as the sidecar ``kv-disk`` reports it."""

from weft_router.telemetry.instruments import Counter, Gauge


class KvDiskMetrics:
    """The gauges and counters of one disk."""

    def __init__(self) -> None:
        self.sizes = Gauge(
            "weft_router_kv_disk_bytes",
            "The tier on this worker's disk: its size (limit), what it may hold beside other files (allowed); and of "
            "the whole disk, what is used and what is free",
            ["kind"],
        )
        self.deleted = Counter("weft_router_kv_disk_deleted_bytes", "KV deleted from this worker's disk to make room")
        self.write_seconds = Gauge(
            "weft_router_kv_disk_write_seconds", "Time of the last try to write 1 MiB to this worker's disk"
        )
        self.faults = Gauge(
            "weft_router_kv_disk_faults", "1 for what is wrong with the tier on this worker's disk", ["fault"]
        )
