"""What a plan is asked for: the request, its parts, and the manifest it comes from."""
