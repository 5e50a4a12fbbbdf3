"""What happens at an event, one module each; ``event_loop`` calls them."""
