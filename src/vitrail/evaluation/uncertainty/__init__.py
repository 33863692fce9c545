"""What a model doesn't know: temperature, answers withheld, images unlike the training images."""
