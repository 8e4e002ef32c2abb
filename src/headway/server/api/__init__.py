"""The APIs, one module a path: what a client may send, and what it gets."""
