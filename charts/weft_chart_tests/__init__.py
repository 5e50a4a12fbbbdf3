"""Tests of the Helm chart: what it renders, what it refuses, and what it does in a cluster."""
