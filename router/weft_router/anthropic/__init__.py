"""Anthropic's Messages API, as a second form of chat completions: requests, answers, streams and errors."""
