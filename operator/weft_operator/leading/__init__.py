"""One replica leads: the Lease, the term of leadership it grants, and the fence around every write."""
