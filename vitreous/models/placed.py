"""What a ViT knows of where its tokens are: the fixed codes of positions, what attention needs of them, and
other grids of patches. E_pos is added in `vit.py` (Eq. 1), by the functions of `positions.py`.

Letters: B batch, N patches, n of them kept, D width, H heads.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models import positions
from vitreous.models.architecture import ViTConfig, pair
from vitreous.models.positions import Grid
from vitreous.models.protocol import ImageModel, Size

if TYPE_CHECKING:
    from vitreous.models.vit import Block, PatchEmbed

CODES = ("grid_embed", "cosine", "sine", "offsets")
"""Names of the fixed position codes; each kind of positions has its own."""


class Geometry(NamedTuple):
    """What every attention of one forward pass shares: where tokens are, and which may be looked at."""

    rotation: tuple[Tensor, Tensor] | None = None  # cosines and sines, (N, D/H) each
    offsets: Tensor | None = None  # (N, N) rows of the relative table
    visible: Tensor | None = None  # (B, 1, 1, N) keys that may be attended to
    weight: Tensor | None = None  # (B, 1, 1, N) logs of how often each key counts


class Placed(ImageModel):
    """A model of tokens that have places: in a grid of patches, behind the tokens that stand before them."""

    config: ViTConfig
    patch_embed: "PatchEmbed"
    blocks: nn.ModuleList
    # Fixed position codes, where the kind has them: see `build_codes`.
    grid_embed: Tensor  # (N, D)
    cosine: Tensor  # (prefix + N, D/H)
    sine: Tensor
    offsets: Tensor  # (prefix + N, prefix + N)

    def select_patches(self, x: Tensor, kept: Tensor) -> Tensor:  # (B, prefix + N, D) → (B, prefix + n, D)
        """Return the prefix tokens, followed by the patches that are kept (B, n)."""
        return x.gather(1, self._rows(kept)[..., None].expand(-1, -1, x.shape[-1]))

    def _rows(self, kept: Tensor) -> Tensor:  # (B, n) → (B, prefix + n)
        prefix = torch.arange(self.config.prefix, device=kept.device)
        return torch.cat([prefix.expand(kept.shape[0], -1), kept + self.config.prefix], dim=1)

    def geometry(
        self, mask: Tensor | None = None, grid: Grid | None = None, kept: Tensor | None = None
    ) -> Geometry:
        """Return what the attentions need to know besides the tokens, for one forward pass.

        `kept` (B, n): the patches that are there, if not all of them are.
        """
        rotation = None
        if self.config.positions == "rope":
            codes = self.codes(grid or self.config.grid)
            rotation = codes["cosine"], codes["sine"]
            if kept is not None:
                rows = self._rows(kept)  # each image has its own
                rotation = codes["cosine"][rows][:, None], codes["sine"][rows][:, None]
        offsets = self.offsets if self.config.positions == "relative" else None
        if mask is None:
            return Geometry(rotation, offsets)
        if mask.dtype != torch.bool or mask.ndim != 2 or mask.shape[1] != self.config.patches:
            raise ModelError(
                f"mask of {mask.dtype} and shape {tuple(mask.shape)} does not fit: "
                f"expected booleans (B, {self.config.patches}), True for patches to see"
            )
        return Geometry(rotation, offsets, F.pad(mask, (self.config.prefix, 0), value=True)[:, None, None])

    def build_codes(self) -> None:
        """Compute the fixed position codes of the grid; they are derived, so no checkpoint holds them."""
        self._other_codes: dict[tuple[Grid, torch.device], dict[str, Tensor]] = {}
        for name, code in self._fixed_codes(self.config.grid).items():
            self.register_buffer(name, code, persistent=False)

    def codes(self, grid: Grid) -> dict[str, Tensor]:
        """Return the fixed position codes of a grid; those of other grids than the model's are cached."""
        if grid == self.config.grid:
            return {name: getattr(self, name) for name in CODES if hasattr(self, name)}
        key = grid, self.patch_embed.proj.weight.device
        if key not in self._other_codes:
            self._other_codes[key] = self._fixed_codes(grid)
        return self._other_codes[key]

    def _fixed_codes(self, grid: Grid) -> dict[str, Tensor]:
        config, device = self.config, self.patch_embed.proj.weight.device
        codes: dict[str, Tensor] = {}
        with torch.device("cpu"):
            if config.positions == "sincos2d":
                codes["grid_embed"] = positions.sincos2d(grid, config.width)
            elif config.positions == "rope":
                head_width = config.width // config.heads
                codes["cosine"], codes["sine"] = positions.rotary2d(grid, head_width, config.prefix)
            elif config.positions == "relative":
                codes["offsets"] = positions.relative_offsets(grid, config.prefix)
        return {name: code.to(device) for name, code in codes.items()}

    def require_shape(self, x: Tensor) -> None:
        """Refuse images of another shape than the model takes, with the remedy."""
        config = self.config
        if tuple(x.shape[1:]) == config.input_shape:
            return
        remedy = "check the order of the axes"
        if x.ndim == 1 + len(config.input_shape):
            if x.shape[1] != config.in_channels:
                remedy = f"create the model with in_channels={x.shape[1]}"
            elif tuple(x.shape[-2:]) != config.image_size:
                remedy = f"resize the images, or call set_image_size(({x.shape[-2]}, {x.shape[-1]}))"
            else:
                remedy = f"create the model with frames={x.shape[2]}"
        wanted = ", ".join(map(str, config.input_shape))
        raise ModelError(f"input of shape {tuple(x.shape)} does not fit: expected (B, {wanted}); {remedy}")

    @torch.no_grad()
    def set_image_size(self, image_size: Size) -> None:
        """Take images of another size from now on; learned positions are interpolated in 2D (section 3.2)."""
        self._resize(replace(self.config, image_size=pair(image_size, "image_size")))

    @torch.no_grad()
    def set_patch_size(self, patch_size: Size, image_size: Size | None = None) -> None:
        """Cut images, of this size if given, into other patches from now on (filters: FlexiViT's resize)."""
        size = self.config.image_size if image_size is None else pair(image_size, "image_size")
        new = replace(self.config, patch_size=pair(patch_size, "patch_size"), image_size=size)
        proj = self.patch_embed.proj
        proj.weight = nn.Parameter(positions.resample_patches(proj.weight, new.patch_size))
        proj.kernel_size = proj.stride = tuple(proj.weight.shape[2:])
        self._resize(new)

    def _resize(self, new: ViTConfig) -> None:
        old, self.config = self.config, new
        if new.positions == "learned":
            resampled = positions.resample_positions(self.pos_embed, old.grid, new.grid, new.placed_prefix)
            self.pos_embed = nn.Parameter(resampled)
        elif new.positions == "learned2d":
            self.pos_embed_y = nn.Parameter(positions.resample_axis(self.pos_embed_y, new.grid[0]))
            self.pos_embed_x = nn.Parameter(positions.resample_axis(self.pos_embed_x, new.grid[1]))
        elif new.positions == "relative":
            for attention in (block.attn for block in cast("Iterable[Block]", self.blocks)):
                table = positions.resample_relative(attention.offset_embed, old.grid, new.grid)
                attention.offset_embed = nn.Parameter(table)
        self.build_codes()
