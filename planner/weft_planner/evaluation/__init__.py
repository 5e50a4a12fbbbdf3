"""Decide: make a short list of layouts and simulate it with the policy that will run."""
