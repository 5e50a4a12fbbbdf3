"""Cost profiles that are shipped with Weft, fitted to operator times that NVIDIA measured on its GPUs."""
