"""The scheduler and the KV cache: pure Python, no I/O, no clock of its own.

A step begins in `scheduler`; `plan` is the seam to whatever computes.
"""
