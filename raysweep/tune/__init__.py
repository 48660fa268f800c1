"""Sweeps: which trials there are, Ray Tune as the engine that runs them, and the journal of what happened."""
