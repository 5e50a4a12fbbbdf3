"""Tests of weft_router."""
