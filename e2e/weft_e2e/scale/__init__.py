"""A thousand services on fake nodes: what they cost the API server and the operator, and how soon it acts."""
