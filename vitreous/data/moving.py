"""From the host to the device without waiting: what goes there while a model works goes by this."""

import numpy as np
import torch
from torch import Tensor

SHARED = ("cpu", "mps")
"""Devices that use the host's own memory."""


def to_device(values: Tensor | np.ndarray, device: torch.device) -> Tensor:
    """Send values to the device; the host goes on while they are on their way.

    From memory that the system may move (pageable) the host would wait, for all that the stream still has to
    do: so they are copied to pinned memory first, which torch keeps until they have arrived.
    """
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if device.type in SHARED or tensor.device.type != "cpu":
        return tensor.to(device)
    return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)
