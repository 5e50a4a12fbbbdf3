"""Replay recorded agent sessions against an OpenAI-compatible endpoint and measure every round."""
