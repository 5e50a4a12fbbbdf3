"""The planner as a child process: its requests, its answers, and a client that caches them."""
