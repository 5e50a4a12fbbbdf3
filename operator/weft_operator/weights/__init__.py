"""The weights of a model in a cache: the Job that downloads it, the program of this Job, and its progress."""
