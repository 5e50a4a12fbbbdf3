"""Tests of weft_operator."""
