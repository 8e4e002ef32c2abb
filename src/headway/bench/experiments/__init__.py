"""`headway experiment NAME`: what the tuning guide claims, tried for real on this machine."""
