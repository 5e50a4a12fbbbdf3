"""Measure engines and operators, check and import measured tables, and fit cost profiles to them."""
