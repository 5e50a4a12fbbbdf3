"""Cost profiles against the operator times that NVIDIA measured on its GPUs."""
