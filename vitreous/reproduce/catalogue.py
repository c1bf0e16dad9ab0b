"""Every experiment by name, in the order in which they are listed."""

from vitreous.reproduce import (
    attention,
    compute,
    course,
    data_size,
    distill,
    positions,
    resolution,
    scaling,
    self_supervised,
    transfer,
)
from vitreous.reproduce.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    each.EXPERIMENT.name: each.EXPERIMENT
    for each in (
        course,
        positions,
        transfer,
        data_size,
        compute,
        scaling,
        resolution,
        self_supervised,
        distill,
        attention,
    )
}
