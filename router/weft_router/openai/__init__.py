"""What clients may send and what they get back: bodies, sessions, prompt histories, replies, errors."""
