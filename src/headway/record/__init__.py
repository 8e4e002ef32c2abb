"""Recordings of what a scheduler did, their replay, and what differs between two.

A recording holds every call that changes a scheduler, in order, and what came of it: see
`lines`. It starts in `recorder`, is run again by `replay`, and told apart by `compare`.
"""
