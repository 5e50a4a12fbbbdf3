"""The roles of a process: coordinator, prefill and decode sidecar, standalone."""
