"""What each engine's protocol asks of the two legs of a round, and how its replies look."""
