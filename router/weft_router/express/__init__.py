"""Serve usual rounds by a straight way: no coroutine, few objects; whatever is not usual goes the general way."""
