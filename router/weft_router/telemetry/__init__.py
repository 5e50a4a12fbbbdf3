"""What a router process tells of itself: metrics, logs, decisions, traces."""
