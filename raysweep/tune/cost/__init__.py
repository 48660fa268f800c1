"""What a sweep will cost: a few steps of each model size are measured, and the sweep is played."""
