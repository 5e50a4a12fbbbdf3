"""Hold the router against its peers on one core, with a compiled mock engine and client: ``python -m bench.router``."""
