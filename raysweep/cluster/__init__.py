"""Joining a Ray cluster, or starting one on this machine, and what it can carry."""
