"""Training: one loop for every task, from a plan to a sealed model; the verbs `train`, `finetune`, `distill`,
`pretrain`.

plan       everything that makes a run what it is; `defaults` chooses it by `facts`, `sizing` the model,
           `recipes` repeat one
setup      which plan a run follows; `loaders` feed it
run        the story of a run: held, planned, assembled, taken up, trained, concluded
assembly   what is learned, what feeds it, what moves it, put together
resume     where a run begins or goes on
loop       steps, evaluations, checkpoints, signals; `budget` fits them into a time
step       one update, decided on the device; `gradients` adds them up in parts
state      tensors by name and where the run is; `checkpoints` keep them
schedule   the stages of a run, and the learning rate
log        what is shown and journalled
results    what a run leaves behind
"""

from vitreous.training.caller import Caller
from vitreous.training.distill import distill
from vitreous.training.finetune import finetune, suite
from vitreous.training.initial import train
from vitreous.training.pretrain import pretrain
from vitreous.training.results import Result

__all__ = ["Caller", "Result", "distill", "finetune", "pretrain", "suite", "train"]
