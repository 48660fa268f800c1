"""Images in: samples from the sources, their split and order, the noise, the batches. No torch in reading, no Ray anywhere."""
