"""Tests of weft_e2e."""
