"""Strategic merge patches of pods: how they are merged, and which fields they may not touch."""
