"""What happens to images: records, and what runs them."""
