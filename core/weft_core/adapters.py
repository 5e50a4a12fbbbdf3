"""Name a LoRA adapter as heartbeats, sessions and cached prefixes know it."""

from hashlib import blake2b


def adapter_version(name: str, source: str) -> str:
    """Return an adapter's name and a digest of its source: from another source it is another adapter.

    KV that one version made is never read by another, though both have the same name.
    """
    return f"{name}@{blake2b(source.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


def adapter_name(version: str) -> str:
    """Return the name that clients ask for."""
    return version.rpartition("@")[0]
