"""The group controller: it owns the workers of one WorkerGroup, one StatefulSet each."""
