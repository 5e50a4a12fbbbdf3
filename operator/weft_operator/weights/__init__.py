"""The weights of a model in a cache: what is cached where, the Job that downloads it, and the program of this Job."""
