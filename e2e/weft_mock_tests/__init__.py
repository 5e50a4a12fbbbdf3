"""Tests of weft_mock."""
