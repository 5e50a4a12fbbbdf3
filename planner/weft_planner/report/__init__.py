"""One self-contained page about a plan: what to run, what it should achieve, how sure that is, and what it rests on."""
