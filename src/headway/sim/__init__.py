"""Simulation: the scheduler that serves, on a virtual clock."""
