"""Pure builders of every object that a service owns, and of the workers of a WorkerGroup."""
