"""What each engine expects on the wire, and how its health and load are read."""
