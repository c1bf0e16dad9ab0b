"""Where the tokens of a ViT are: E_pos of Eq. 1, what attention knows of places, and other grids of patches.

Letters: B batch, N patches, n of them kept, D width, H heads. The functions on which all this rests are in
`positions.py`; what is computed from the tokens is in `vit.py`.
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
    cls_token: Tensor | None
    dist_token: Tensor | None
    reg_token: Tensor | None
    pos_drop: nn.Dropout
    # Fixed position codes, where the kind has them: see `place_tokens`.
    grid_embed: Tensor  # (N, D)
    cosine: Tensor  # (prefix + N, D/H)
    sine: Tensor
    offsets: Tensor  # (prefix + N, prefix + N)

    def create_positions(self) -> None:
        """Make the parameters of learned positions, where the kind has them; others are computed."""
        config = self.config
        if config.positions == "learned":
            self.pos_embed = nn.Parameter(torch.empty(1, config.placed_prefix + config.patches, config.width))
        elif config.positions == "learned2d":
            self.pos_embed_y = nn.Parameter(torch.empty(1, config.grid[0], config.width // 2))
            self.pos_embed_x = nn.Parameter(torch.empty(1, config.grid[1], config.width // 2))

    def place(self, x: Tensor, grid: Grid | None = None) -> Tensor:  # (B, N, D) → (B, prefix + N, D)
        """Put the prefix tokens before projected patches, and add the positions (Eq. 1).

        `grid`: that of the patches, if it is not the model's: positions are resampled to it.
        """
        placed = self._placed(x, grid)
        # In training the residual sums have the type of the patches: bf16 halves the memory traffic.
        return self.pos_drop(placed.to(x.dtype) if self.training else placed)

    def _placed(self, x: Tensor, grid: Grid | None) -> Tensor:
        tokens = [token for token in (self.cls_token, self.dist_token, self.reg_token) if token is not None]
        prefix = [token.expand(x.shape[0], -1, -1) for token in tokens]
        placed_on: Grid = grid or self.config.grid
        height, width = placed_on
        if self.config.positions == "learned":
            placed = self.config.placed_prefix
            learned = positions.resample_positions(self.pos_embed, self.config.grid, placed_on, placed)
            if placed == self.config.prefix:
                return torch.cat([*prefix, x], dim=1) + learned
            if placed:  # only the leading prefix tokens have a position: DINOv2 with registers
                head = torch.cat(prefix, dim=1)
                prefix = [head[:, :placed] + learned[:, :placed], head[:, placed:]]
            x = x + learned[:, placed:]
        elif self.config.positions == "sincos2d":
            x = x + self.codes(placed_on)["grid_embed"]
        elif self.config.positions == "learned2d":
            rows = positions.resample_axis(self.pos_embed_y, height)[:, :, None].expand(-1, -1, width, -1)
            columns = positions.resample_axis(self.pos_embed_x, width)[:, None].expand(-1, height, -1, -1)
            x = x + torch.cat([rows, columns], dim=-1).flatten(1, 2)
        return torch.cat([*prefix, x], dim=1)

    def keep(self, x: Tensor, kept: Tensor) -> Tensor:  # (B, prefix + N, D) → (B, prefix + n, D)
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

    def place_tokens(self) -> None:
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
        self.place_tokens()
