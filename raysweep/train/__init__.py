"""Training one experiment: the loop, its runtimes (this process, a process group, Ray Train) and its checkpoints."""
