"""Whether a running service has drifted from what its plan was made for, and whether another plan is better."""
