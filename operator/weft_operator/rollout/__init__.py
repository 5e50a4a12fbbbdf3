"""How a service gets from the workers it has to those of its plan: within the budget, and back where it cannot.

Pure: ``advance`` computes the next step from the groups as they are; the ledger keeps the plan to return to.
"""
