"""Text towers, tokenizers, prompts, and the zero-shot classifiers that are made of them."""
