"""Rollouts: from the workers of a service to those of its plan, within the budget, with canary and rollback.

Pure: ``advance`` computes the next step from the observed groups; the ledger has the plan to roll back to.
"""
