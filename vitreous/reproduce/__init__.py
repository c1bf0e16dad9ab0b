"""The paper's experiments at the scale at hand: one short file each, through the public training code.

experiment   what an experiment is: claim, points, judge, draw; `judging` has the parts of its rules
points       one point: an ordinary run in a folder of its own, and its row
run          the story: what is left to run, then table, plot and verdict
catalogue    all of them
"""

from vitreous.reproduce.run import listing, reproduce, table

__all__ = ["listing", "reproduce", "table"]
