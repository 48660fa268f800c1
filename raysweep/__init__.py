"""raysweep: train a convolutional autoencoder, or your own model, on every GPU you have, and sweep its settings."""

__version__ = "0.1.0"
