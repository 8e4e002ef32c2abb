"""What a server's signals say: what is healthy, what is not, why, and what to change."""
