"""The engine in a process of its own: what the server says to it and hears from it, and what
becomes of both when one of them fails."""
