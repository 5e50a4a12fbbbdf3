"""Weft's plug-in for stock vLLM, loaded by the API server only. It imports nothing of vLLM, and nothing of Weft."""
