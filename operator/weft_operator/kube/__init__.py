"""The only code that talks to the API server: client, watches, observation, apply, leader election."""
