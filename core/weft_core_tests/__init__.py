"""Tests of weft_core."""
