"""Leader election with a Lease: the lease term, and the fencing of writes by it."""
