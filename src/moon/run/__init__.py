"""One run in its folder: images, training, what is written and read back."""
