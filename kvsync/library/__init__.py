"""What a verifier has passed is stored as an artifact and answers again."""
