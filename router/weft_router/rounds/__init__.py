"""One round on its way: its session, its route, its queue, its legs and its answer."""
