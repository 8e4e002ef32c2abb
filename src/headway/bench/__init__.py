"""Measurements: of the scheduler alone, for one."""
