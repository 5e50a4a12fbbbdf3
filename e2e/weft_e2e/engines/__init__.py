"""Real engines: stock vLLM of its CPU build with NIXL and a tiny model, for tests that a mock engine cannot answer."""
