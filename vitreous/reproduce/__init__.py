"""The paper's experiments at the scale at hand: one short file each, through the public training code.

experiment   what one is: claim, points, judge, draw; `judging` has what rules are built of
points       one point: an ordinary run in a folder of its own, and its row
run          the story: what is left to run, then table, plot and verdict
catalogue    all of them
"""

from vitreous.reproduce.run import listing, reproduce, table

__all__ = ["listing", "reproduce", "table"]
