"""The rules, each a pure function from a window of readings to a finding.

Their thresholds are shares wherever they can be, so that they hold for a server of any size and for
a window of any length.
"""
