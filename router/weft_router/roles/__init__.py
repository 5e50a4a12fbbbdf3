"""The duties of a process: coordinator, prefill and decode sidecar, standalone."""
