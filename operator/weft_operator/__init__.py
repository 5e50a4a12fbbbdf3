"""Control plane: reconciles a DisaggInferenceService into workers, a coordinator and status."""
