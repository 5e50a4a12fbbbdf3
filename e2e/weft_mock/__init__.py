"""A mock engine that follows a cost profile in real time and speaks the vLLM 0.32 prefill/decode protocol."""
