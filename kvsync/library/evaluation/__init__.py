"""What a library brings: problems asked with and without it, in one signed receipt."""
