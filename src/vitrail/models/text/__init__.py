"""The text towers of models of images and text."""
