"""Adam whose second moment is one number a row.

Plain Adam divides each coordinate by its own gradients' size. Where a step sees nearly all pairs there is hardly any noise in
that, so every coordinate moves by the step size, whatever its gradient says. With one size a row its gradient keeps its
direction; the server's row-wise step (`server/steps.py`) does the same with averaged changes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class RowAdam(torch.optim.Optimizer):
    """Step m / (sqrt(v) + eps): m the gradients' running mean, v of each row that of their mean square.

    Both are freed of their start at zero, as in Adam (Kingma and Ba, ICLR 2015).

    Parameters
    ----------
    tables : tensors of (rows, k), each with a gradient in every step. lr : step size. betas : memory of m and v. eps : as in Adam.
    """

    def __init__(
        self, tables: list[Tensor], lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-12
    ) -> None:
        super().__init__(tables, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every table along its gradient.

        Raises
        ------
        ValueError if a `closure` is given.
        """
        if closure is not None:
            raise ValueError("RowAdam takes gradients that are there already, no closure")
        for group in self.param_groups:
            first, second = group["betas"]
            for table in group["params"]:
                state = self.state[table]
                if not state:
                    state["steps"], state["m"], state["v"] = 0, torch.zeros_like(table), table.new_zeros(len(table), 1)
                state["steps"] += 1
                mean, squares = state["m"], state["v"]
                mean.lerp_(table.grad, 1 - first)
                squares.lerp_(table.grad.square().mean(1, keepdim=True), 1 - second)
                size = (squares / (1 - second ** state["steps"])).sqrt_().add_(group["eps"])
                table.addcdiv_(mean, size, value=-group["lr"] / (1 - first ** state["steps"]))
