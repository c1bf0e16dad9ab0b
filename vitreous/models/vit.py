"""The Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929), equations 1 to 4.

    z_0  = [x_class; x_p¹E; …; x_pᴺE] + E_pos          Eq. 1   `VisionTransformer.place`
    z'_l = MSA(LN(z_{l-1})) + z_{l-1}                  Eq. 2   `Block.forward`
    z_l  = MLP(LN(z'_l)) + z'_l                        Eq. 3   `Block.forward`
    y    = LN(z_L⁰)                                    Eq. 4   `VisionTransformer.pool`

Letters: B batch, N tokens, D width, H heads, L layers, P patch, C channels, K classes, T frames.
What is computed, and nothing else: no ranks, no compilation, no files. Other grids of patches, and positions
that act inside attention, are in `placed.py`; the paper's start in `initialize.py`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models import kernels, positions
from vitreous.models.architecture import ViTConfig
from vitreous.models.initialize import initialize
from vitreous.models.placed import Geometry, Placed
from vitreous.models.positions import Grid
from vitreous.models.protocol import FeaturePooling
from vitreous.models.resnet import trunk


class PatchEmbed(nn.Module):
    """x_p E: cut the image into patches and project each to width D, as one convolution of stride P."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.backbone = trunk(config.stem, config.in_channels) if config.stem else None
        channels = config.stem.channels[-1] if config.stem else config.in_channels
        if config.frames is None:
            self.proj = nn.Conv2d(channels, config.width, config.patch_size, config.patch_size)
        else:
            tube = (config.tubelet, *config.patch_size)
            self.proj = nn.Conv3d(channels, config.width, tube, tube)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W) or (B, C, T, H, W)
        if self.backbone is not None:
            x = self.backbone(x)
        if x.is_cuda and isinstance(self.proj, nn.Conv2d):
            return kernels.patches(x, self.proj.weight, self.proj.bias)
        return self.proj(x).flatten(2).mT  # (B, N, D)


class Attention(nn.Module):
    """Multi-head self-attention: MSA of Eq. 2, appendix A of the paper."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.head_width = config.width // config.heads
        self.scale = self.head_width**-0.5
        self.dropout = config.attention_dropout
        self.cudnn = False
        """Whether cuDNN's kernels may compute it: set when the model is prepared for a GPU."""
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.proj = nn.Linear(config.width, config.width)
        self.proj_drop = nn.Dropout(config.dropout)
        if config.positions == "relative":
            rows = positions.relative_rows(config.grid)
            self.offset_embed = nn.Parameter(torch.empty(rows, self.head_width))

    def forward(self, x: Tensor, geometry: Geometry) -> Tensor:  # (B, N, D)
        return self.attend(*self.project(x, geometry), geometry)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, geometry: Geometry) -> Tensor:  # → (B, N, D)
        """Return what the tokens gather from each other, through the last projection."""
        dropout = self.dropout if self.training else 0.0
        bias = self.bias(q, geometry)
        x = kernels.attention(q, k, v, scale=self.scale, bias=bias, dropout=dropout, cudnn=self.cudnn)
        return self.proj_drop(self.proj(x.transpose(1, 2).flatten(2)))

    def project(self, x: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (B, H, N, D/H)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        if geometry.rotation is not None:
            q, k = positions.rotate(q, *geometry.rotation), positions.rotate(k, *geometry.rotation)
        return q, k, v

    def bias(self, q: Tensor, geometry: Geometry) -> Tensor | None:
        """Return what is added to the logits: offset embeddings as extra keys (section D.4), mask, weight."""
        if geometry.offsets is None:
            # Boolean: hidden keys get no weight. Merged tokens (models/merge.py) are never hidden.
            return geometry.visible if geometry.weight is None else geometry.weight
        logits = q @ self.offset_embed.mT * self.scale  # (B, H, N, rows)
        bias = logits.gather(-1, geometry.offsets.expand(*q.shape[:2], -1, -1))
        return bias if geometry.visible is None else bias.masked_fill(~geometry.visible, float("-inf"))

    def probabilities(self, x: Tensor, geometry: Geometry) -> Tensor:
        """Return the attention probabilities (B, H, N, N) that `forward` applies inside its fused kernel."""
        q, k, _ = self.project(x, geometry)
        logits = q @ k.mT * self.scale
        bias = self.bias(q, geometry)
        if bias is not None:
            logits = logits.masked_fill(~bias, float("-inf")) if bias.dtype == torch.bool else logits + bias
        return logits.softmax(-1)


class Mlp(nn.Module):
    """Two dense layers with a GELU between them: MLP of Eq. 3; or SwiGLU (arXiv 2002.05202)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.gated = config.activation == "swiglu"
        self.fc1 = nn.Linear(config.width, config.mlp_width * (2 if self.gated else 1))
        self.act = (
            nn.SiLU() if self.gated else nn.GELU("tanh" if config.activation == "gelu_tanh" else "none")
        )
        self.fc2 = nn.Linear(config.mlp_width, config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, x = self.fc1(x).chunk(2, dim=-1)
            x = self.act(gate) * x
        else:
            x = self.act(self.fc1(x))
        return self.drop(self.fc2(self.drop(x)))


class LayerScale(nn.Module):
    """A learned factor for each channel of a residual branch (arXiv 2103.17239)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(config.width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class DropPath(nn.Module):
    """Stochastic depth: leave out a residual branch of some samples in training (arXiv 1603.09382)."""

    rate: Tensor
    kept: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.used = rate > 0.0
        if self.used:
            # Tensors, not numbers: one compiled block then serves every depth. On the CPU even if the model
            # is built without storage, because no file holds them.
            self.register_buffer("rate", torch.tensor(rate, device="cpu"), persistent=False)
            self.register_buffer("kept", torch.tensor(1.0 - rate, device="cpu"), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.used:
            return x
        keep = torch.rand(x.shape[0], *(1,) * (x.ndim - 1), device=x.device) >= self.rate
        return x * (keep / self.kept).to(x.dtype)


class Block(nn.Module):
    """One layer of the encoder, norms before the branches."""

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        scaled = config.layer_scale is not None
        self.norm1 = nn.LayerNorm(config.width, config.norm_eps)
        self.attn = Attention(config)
        self.ls1 = LayerScale(config) if scaled else nn.Identity()
        self.norm2 = nn.LayerNorm(config.width, config.norm_eps)
        self.mlp = Mlp(config)
        self.ls2 = LayerScale(config) if scaled else nn.Identity()
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, geometry: Geometry) -> Tensor:  # (B, N, D)
        x = x + self.drop_path(self.ls1(self.attn(self.norm1(x), geometry)))  # MSA(LN(z)) + z      Eq. 2
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))  #         MLP(LN(z')) + z'    Eq. 3


class AttentionPool(nn.Module):
    """Pool by attention from one learned query ("MAP", arXiv 2106.04560)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.latent = nn.Parameter(torch.empty(1, 1, config.width))
        self.q = nn.Linear(config.width, config.width, bias=config.qkv_bias)
        self.kv = nn.Linear(config.width, 2 * config.width, bias=config.qkv_bias)
        self.proj = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:  # (B, N, D) → (B, D)
        q = self.q(self.latent).unflatten(-1, (self.heads, -1)).transpose(1, 2).expand(x.shape[0], -1, -1, -1)
        k, v = self.kv(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        x = self.proj(x.transpose(1, 2).flatten(2))
        return (x + self.mlp(self.norm(x))).squeeze(1)


class VisionTransformer(Placed):
    """Patches in, class scores out. `config` says everything about the model's shape."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.patch_embed = PatchEmbed(config)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width)) if config.class_token else None
        self.dist_token = nn.Parameter(torch.empty(1, 1, width)) if config.distilled else None
        self.reg_token = nn.Parameter(torch.empty(1, config.registers, width)) if config.registers else None
        if config.positions == "learned":
            self.pos_embed = nn.Parameter(torch.empty(1, config.placed_prefix + config.patches, width))
        elif config.positions == "learned2d":
            self.pos_embed_y = nn.Parameter(torch.empty(1, config.grid[0], width // 2))
            self.pos_embed_x = nn.Parameter(torch.empty(1, config.grid[1], width // 2))
        self.pos_drop = nn.Dropout(config.embedding_dropout)

        last = max(config.depth - 1, 1)
        self.blocks = nn.ModuleList(Block(config, config.drop_path * i / last) for i in range(config.depth))
        self.norm = nn.Identity() if config.norm_after_pool else nn.LayerNorm(width, config.norm_eps)

        self.attn_pool = AttentionPool(config) if config.pooling == "map" else None
        self.fc_norm = nn.LayerNorm(width, config.norm_eps) if config.norm_after_pool else nn.Identity()
        self.pre_logits = nn.Linear(config.pooled_width, config.pre_logits) if config.pre_logits else None
        self.head = self.fresh_classifier()
        if config.distilled:
            self.head_dist = self.fresh_classifier()
        self.build_codes()
        initialize(self)

    def forward_features(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the encoder's tokens (B, prefix + N, D); `mask` (B, N) is False for patches to ignore.

        In training, `patch_drop` leaves out some patches of each image, at random (arXiv 2208.07220).
        """
        x = self.embed(x)
        if not self.training or not self.config.patch_drop:
            return self.run_blocks(x, self.geometry(mask))
        if mask is not None:
            raise ModelError("patches can't be dropped from padded images: set patch_drop to 0")
        order = torch.rand(x.shape[0], self.config.patches, device=x.device).argsort(dim=1)
        kept = order[:, : self.config.trained_patches]
        return self.run_blocks(self.select_patches(x, kept), self.geometry(kept=kept))

    def run_blocks(self, x: Tensor, geometry: Geometry) -> Tensor:
        """Return z_L, normalised, from all or some of the tokens of z_0 (B, …, D)."""
        for block in self.blocks:
            x = block(x, geometry)
        return self.norm(x)

    def forward_intermediates(
        self, x: Tensor, layers: list[int] | None = None, mask: Tensor | None = None, *, norm: bool = False
    ) -> list[Tensor]:
        """Return the tokens after the chosen blocks (all by default; negative counts from the end)."""
        depth = len(self.blocks)
        chosen = range(depth) if layers is None else layers
        if any(not -depth <= layer < depth for layer in chosen):
            raise ModelError(
                f"layers {list(chosen)} are out of range: the model has {depth} blocks, 0 to {depth - 1}"
            )
        geometry = self.geometry(mask)
        x, outputs = self.embed(x), []
        for block in self.blocks:
            x = block(x, geometry)
            outputs.append(x)
        return [self.norm(outputs[layer]) if norm else outputs[layer] for layer in chosen]

    def embed(self, x: Tensor) -> Tensor:
        """Return z_0 (B, prefix + N, D) of images: patches, projected and placed (Eq. 1)."""
        self.require_shape(x)
        return self.place(self.patch_embed(x))

    def place(self, x: Tensor, grid: Grid | None = None) -> Tensor:  # (B, N, D) → (B, prefix + N, D)
        """Return z_0 = [x_class; x_p¹E; …; x_pᴺE] + E_pos (Eq. 1) of projected patches.

        `grid`: that of the patches, if it is not the model's: positions are resampled to it.
        """
        z = self._with_positions(x, grid or self.config.grid)
        # In training the residual sums have the type of the patches: bf16 halves the memory traffic.
        return self.pos_drop(z.to(x.dtype) if self.training else z)

    def _with_positions(self, x: Tensor, grid: Grid) -> Tensor:
        tokens = [token for token in (self.cls_token, self.dist_token, self.reg_token) if token is not None]
        prefix = [token.expand(x.shape[0], -1, -1) for token in tokens]
        if self.config.positions == "learned":
            count = self.config.placed_prefix
            learned = positions.resample_positions(self.pos_embed, self.config.grid, grid, count)
            if count == self.config.prefix:
                return torch.cat([*prefix, x], dim=1) + learned
            if count:  # only the leading prefix tokens have a position: DINOv2 with registers
                head = torch.cat(prefix, dim=1)
                prefix = [head[:, :count] + learned[:, :count], head[:, count:]]
            x = x + learned[:, count:]
        elif self.config.positions == "learned2d":
            rows = positions.resample_axis(self.pos_embed_y, grid[0])[:, :, None].expand(-1, -1, grid[1], -1)
            columns = positions.resample_axis(self.pos_embed_x, grid[1])[:, None].expand(-1, grid[0], -1, -1)
            x = x + torch.cat([rows, columns], dim=-1).flatten(1, 2)
        elif self.config.positions == "sincos2d":
            x = x + self.codes(grid)["grid_embed"]
        return torch.cat([*prefix, x], dim=1)  # others act inside attention: see `geometry`

    def pool(self, features: Tensor, mask: Tensor | None = None, pooling: FeaturePooling = "model") -> Tensor:
        """Return one vector per image (B, D): y of Eq. 4, or the tokens pooled in another way."""
        tokens, patches = features, features[:, self.config.prefix :]
        own = pooling == "model"
        how = self.config.pooling if own else pooling
        if own and self.config.distilled:
            return tokens[:, :2].mean(dim=1)
        if own and self.attn_pool is not None:
            return self.attn_pool(patches, None if mask is None else mask[:, None, None])
        if how == "cls":
            return tokens[:, 0]
        if mask is None:
            mean = patches.mean(dim=1)
        else:
            weight = mask[..., None].to(patches.dtype)
            mean = (patches * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)
        return self.fc_norm(mean) if how == "gap" else torch.cat([tokens[:, 0], mean], dim=-1)

    def encode(
        self, x: Tensor, mask: Tensor | None = None, *, layer: int = -1, pooling: FeaturePooling = "model"
    ) -> Tensor:
        """Return one vector per image (B, D): the tokens after a block, normalised and pooled."""
        if pooling in ("cls", "cls_gap") and not self.config.class_token:
            raise ModelError(
                f"pooling {pooling} needs a class token, which this model does not have: use gap"
            )
        if layer in (-1, self.config.depth - 1):
            tokens = self.forward_features(x, mask)
        else:
            tokens = self.forward_intermediates(x, [layer], mask, norm=True)[0]
        return self.pool(tokens, mask, pooling)

    def feature_maps(self, features: Tensor) -> Tensor:
        """Return the patches by place (B, D, h, w): prefix tokens are left out, frames are averaged."""
        config = self.config
        patches = features[:, config.prefix :].unflatten(1, (config.time_steps, *config.grid))
        return patches.mean(dim=1).permute(0, 3, 1, 2)

    def forward_head(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits (B, K) from the encoder's tokens; of a distilled model, the mean of its two heads."""
        if self.config.distilled and self.config.num_classes:
            labels, teacher = self.forward_heads(features)
            return (labels + teacher) / 2
        y = self.pool(features, mask)
        if self.pre_logits is not None:
            y = torch.tanh(self.pre_logits(y))
        return self.head(y)

    def forward_heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of a distilled model's class and distillation tokens, each (B, K)."""
        return self.head(features[:, 0]), self.head_dist(features[:, 1])

    def fresh_classifier(self) -> nn.Module:
        """Return a new head of zeros; an identity if there are no classes."""
        if not self.config.num_classes:
            return nn.Identity()
        layer = nn.Linear(self.config.feature_width, self.config.num_classes)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer
