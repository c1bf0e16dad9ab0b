"""Every experiment by name, in the order of a reader of the paper."""

from vitreous.reproduce import attention, course, positions, resolution, scaling, self_supervised

EXPERIMENTS = {
    each.EXPERIMENT.name: each.EXPERIMENT
    for each in (course, positions, scaling, resolution, attention, self_supervised)
}
