"""Strategic merge patches of pods: merging them, and checking them against the allow-list and protected fields."""
