"""What router processes know of each other: workers, bindings, heartbeats."""
