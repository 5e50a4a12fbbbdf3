"""What clients may send and what they get back: bodies, sessions, transcripts, replies, errors."""
