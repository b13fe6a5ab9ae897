"""The remedies that a person carries out, carried out: for each by-hand remedy of a cause's page the edits of its
example.

``tests/integration/test_remedies_by_hand.py`` makes the edits, runs the example and asks whether the finding is
gone and nothing as bad came in its place.
"""

from __future__ import annotations

import dataclasses

Edits = tuple[tuple[str, str], ...]
"""(text of the example, what is written instead), in order; every text stands in it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CarriedOut:
    """One remedy of a page, on the page's example."""

    cause: str
    remedy: str
    """How its summary begins, up to where it differs from the other remedies of the page."""
    edits: Edits
    variant: Edits = ()
    """What makes the example one that this remedy is about, before the edits."""
    warmed: bool = False
    """True where the remedy accepts the variants: all compile at the first step, and nothing later."""
    leaves: frozenset[str] = frozenset()
    """Causes that remain or come in its place, each less than what it was: a recompile for a break or an error,
    or the recompile that was accepted, under another name.
    """


#: Lines of most examples.
_LOOP = "x = block(x, **kwargs)\n"
_PLAIN_LOOP = "x = block(x)\n"
_BUILD = "def build():\n"
_NO_BEFORE_STEP = "def _before_step("
_COMPILE_LINEAR = """def wrap(model):
    for block in model.layers:
        block.linear = torch.compile(block.linear, backend="aot_eager")


"""


def _warm(code: str) -> tuple[str, str]:
    """Code that runs before the first step."""
    return _BUILD, f"def before_step(model, step):\n    if step == 0:\n{code}\n\n\n{_BUILD}"


CARRIED_OUT = (
    # -- breaks on a value
    CarriedOut(
        cause="tensor.item",
        remedy="Keep it a 0-d tensor",
        edits=(("int((cu[1:] - cu[:-1]).max().item())", "(cu[1:] - cu[:-1]).max()"),),
    ),
    CarriedOut(
        cause="tensor.item",
        remedy="Compute the number once",
        edits=(
            ("def forward(self, x, cu):", "def forward(self, x, longest):"),
            ("        longest = int((cu[1:] - cu[:-1]).max().item())\n", ""),
            (
                "        for block in self.layers:\n",
                '        cu = kwargs["cu"]\n        longest = int((cu[1:] - cu[:-1]).max().item())\n        for block in self.layers:\n',
            ),
            (_LOOP, "x = block(x, longest)\n"),
            ("from torch import nn\n", 'from torch import nn\n\nCOMPILE = {"dynamic": True}\n'),
            (
                '"cu": torch.tensor([0, 5, 12])} for _ in range(2)]',
                '"cu": torch.tensor([0, n, 12])} for n in (5, 4)]',
            ),
        ),
    ),
    CarriedOut(
        cause="tensor.tolist",
        remedy="Keep the values on the device",
        edits=(
            (
                "        counts = torch.stack([(expert == 0).sum(), (expert == 1).sum()])\n"
                "        first, second = torch.split(x[expert.argsort()], counts.tolist())\n"
                "        return torch.cat([self.linear(first), second])\n",
                "        return torch.where((expert == 0)[:, None], self.linear(x), x)\n",
            ),
        ),
    ),
    CarriedOut(
        cause="tensor.tolist",
        remedy="Compile the sub-modules",
        edits=((_BUILD, _COMPILE_LINEAR + _BUILD),),
        leaves=frozenset({"seq_len"}),
    ),
    CarriedOut(
        cause="data_dependent_branch",
        remedy="Where it depends on the batch alone",
        edits=(
            ("if (mask == 0).any():", "if mask is not None:"),
            (_LOOP, "x = block(x, mask)\n"),
            ("def forward(self, x, **kwargs):", "def forward(self, x, mask):"),
            (
                "        for block in self.layers:\n",
                "        mask = mask if (mask == 0).any() else None\n        for block in self.layers:\n",
            ),
            (
                '"mask": torch.ones(2, 6)} for _ in range(2)]',
                '"mask": mask} for mask in (torch.ones(2, 6), torch.ones(2, 6).triu())]',
            ),
        ),
        leaves=frozenset({"none_vs_tensor"}),
    ),
    CarriedOut(
        cause="data_dependent_branch",
        remedy="Where it depends on activations",
        edits=(
            (
                "        if (mask == 0).any():\n            x = x * mask[..., None]\n",
                "        x = torch.where(mask[..., None] == 0, x * mask[..., None], x)\n",
            ),
        ),
    ),
    CarriedOut(
        cause="dynamic_output_shape",
        remedy="Compute densely",
        edits=(
            (
                "        tokens = torch.nonzero(x[:, 0] > 0)[:, 0]\n"
                "        return x.index_add(0, tokens, self.linear(x[tokens]))\n",
                "        return x + (x[:, :1] > 0) * self.linear(x)\n",
            ),
        ),
    ),
    CarriedOut(
        cause="python_rng_branch",
        remedy="Draw outside",
        edits=(
            ("        if self.training and random.random() < 0.1:\n            return x\n", ""),
            (
                "            " + _LOOP,
                "            if not (self.training and random.random() < 0.5):\n                " + _LOOP,
            ),
            (_BUILD, _BUILD + "    random.seed(0)  # the second step drops both blocks\n"),
        ),
    ),
    CarriedOut(
        cause="python_rng_branch",
        remedy="Draw with torch.rand",
        edits=(
            (
                "        if self.training and random.random() < 0.1:\n            return x\n        return x + self.linear(x)\n",
                "        kept = (torch.rand((), device=x.device) >= 0.1).to(x.dtype) if self.training else 1.0\n"
                "        return x + kept * self.linear(x)\n",
            ),
        ),
    ),
    # -- breaks on a call
    CarriedOut(
        cause="logging_call",
        remedy="Move the message out",
        edits=(
            (
                '        if self.training:\n            log.warning("the slow path is used in training")\n',
                "",
            ),
            (
                "        self.linear = nn.Linear(8, 8)\n",
                '        self.linear = nn.Linear(8, 8)\n        log.warning("the slow path is used in training")\n',
            ),
        ),
    ),
    CarriedOut(
        cause="print_call",
        remedy="Remove the print",
        edits=(
            ('        print("block", tuple(x.shape), end="\\r")\n', ""),
            (_LOOP, _LOOP + '            print("block", tuple(x.shape), end="\\r")\n'),
        ),
    ),
    CarriedOut(
        cause="disabled_function",
        remedy="Remove torch.compiler.disable",
        edits=(("@torch.compiler.disable\n", ""),),
    ),
    CarriedOut(
        cause="disabled_function",
        remedy="Where {function} takes",
        edits=(
            (
                "@torch.compiler.disable\ndef side(x):\n    return x * 0.5\n",
                '@torch.library.custom_op("example::side", mutates_args=())\n'
                "def side(x: torch.Tensor) -> torch.Tensor:\n    return x * 0.5\n\n\n"
                "side.register_fake(torch.empty_like)\n"
                "side.register_autograd(lambda ctx, grad: grad * 0.5)\n",
            ),
        ),
    ),
    CarriedOut(
        cause="disabled_function",
        remedy="Where it is the first or the last",
        variant=(("x + side(self.linear(x)).relu()", "side(x + self.linear(x).relu())"),),
        edits=(
            ("side(x + self.linear(x).relu())", "x + self.linear(x).relu()"),
            (_LOOP, "x = side(block(x, **kwargs))\n"),
        ),
    ),
    CarriedOut(
        cause="ffi_call",
        remedy="Call it outside",
        edits=(
            ("def forward(self, x):\n        return x +", "def forward(self, x, root):\n        return x +"),
            ("libm.sqrt(2.0)", "root"),
            (_LOOP, "x = block(x, libm.sqrt(2.0))\n"),
        ),
    ),
    CarriedOut(
        cause="ffi_call",
        remedy="Where it takes and returns tensors",
        edits=(
            ("self.linear(x) * libm.sqrt(2.0)", "scaled(self.linear(x))"),
            (
                "class Block(",
                '@torch.library.custom_op("example::scaled", mutates_args=())\n'
                "def scaled(x: torch.Tensor) -> torch.Tensor:\n    return x * libm.sqrt(2.0)\n\n\n"
                "scaled.register_fake(torch.empty_like)\n"
                "scaled.register_autograd(lambda ctx, grad: scaled(grad))\n\n\nclass Block(",
            ),
        ),
    ),
    CarriedOut(
        cause="rng_seed_call",
        remedy="Seed or restore",
        edits=(
            ("        torch.manual_seed(0)\n", ""),
            ("            " + _LOOP, "            torch.manual_seed(0)\n            " + _LOOP),
        ),
    ),
    CarriedOut(
        cause="rng_seed_call",
        remedy="For the same mask",
        edits=(
            ("        torch.manual_seed(0)\n", ""),
            (
                _LOOP,
                "x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=True)\n",
            ),
            (
                "from torch import nn\n",
                "from torch import nn\nfrom torch.utils.checkpoint import checkpoint\n",
            ),
        ),
    ),
    CarriedOut(
        cause="requires_grad_in_graph",
        remedy="Register the hook",
        edits=(
            ("        self.base.register_forward_pre_hook(make_input_trainable)\n", ""),
            (
                "        self.layers = nn.ModuleList(",
                "        self.embed = nn.Embedding(16, 8)\n"
                "        self.embed.weight.requires_grad_(False)\n"
                "        self.embed.register_forward_hook(lambda module, args, out: out.requires_grad_(True))\n"
                "        self.layers = nn.ModuleList(",
            ),
            (
                "        for block in self.layers:\n",
                "        x = self.embed(x)\n        for block in self.layers:\n",
            ),
            ("torch.randn(2, 6, 8)", "torch.randint(16, (2, 6))"),
        ),
    ),
    CarriedOut(
        cause="requires_grad_in_graph",
        remedy="Where a tensor is detached",
        variant=(
            ("        self.base.register_forward_pre_hook(make_input_trainable)\n", ""),
            (
                "        y = self.norm(x)\n",
                "        x = x.detach().requires_grad_(True)\n        y = self.norm(x)\n",
            ),
        ),
        edits=(
            ("        x = x.detach().requires_grad_(True)\n", ""),
            (_LOOP, "x = block(x.detach().requires_grad_(True), **kwargs)\n"),
        ),
    ),
    CarriedOut(
        cause="unsupported_call",
        remedy="Move the call out",
        edits=(
            ("        started = time.perf_counter()\n", ""),
            ("        self.seconds = time.perf_counter() - started\n", ""),
            (
                "            " + _LOOP,
                "            started = time.perf_counter()\n            "
                + _LOOP
                + "            self.seconds = time.perf_counter() - started\n",
            ),
        ),
    ),
    CarriedOut(
        cause="unsupported_call",
        remedy="If it has no effect",
        edits=(
            (
                "        started = time.perf_counter()\n",
                "        if not torch.compiler.is_compiling():\n            started = time.perf_counter()\n",
            ),
            (
                "        self.seconds = time.perf_counter() - started\n",
                "        if not torch.compiler.is_compiling():\n            self.seconds = time.perf_counter() - started\n",
            ),
        ),
    ),
    CarriedOut(
        cause="generic_break",
        remedy="{hint}",
        edits=(("        torch._dynamo.graph_break()\n", ""),),
    ),
    # -- breaks in a region
    CarriedOut(
        cause="graph_break_in_checkpoint",
        remedy="Remove what breaks",
        edits=(("@torch.compiler.disable\n", ""),),
    ),
    CarriedOut(
        cause="graph_break_in_checkpoint",
        remedy="Where it has to stay",
        edits=(
            ("return checkpoint(self.inner, x, use_reentrant=False)", "return self.inner(x)"),
            (_LOOP, "x = checkpoint(block, x, use_reentrant=False)\n"),
        ),
        leaves=frozenset({"disabled_function"}),
    ),
    CarriedOut(
        cause="autograd_function",
        remedy="Register it as a custom op",
        edits=(
            (
                "class Scale(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x * 2.0\n\n"
                "    @staticmethod\n    def backward(ctx, grad):\n        limit = float(grad.abs().max())\n"
                "        return (grad * 2.0).clamp(-limit, limit)\n",
                '@torch.library.custom_op("example::scale", mutates_args=())\n'
                "def scale(x: torch.Tensor) -> torch.Tensor:\n    return x * 2.0\n\n\n"
                '@torch.library.custom_op("example::scale_backward", mutates_args=())\n'
                "def scale_backward(grad: torch.Tensor) -> torch.Tensor:\n"
                "    limit = float(grad.abs().max())\n    return (grad * 2.0).clamp(-limit, limit)\n\n\n"
                "scale.register_fake(torch.empty_like)\n"
                "scale_backward.register_fake(torch.empty_like)\n"
                "scale.register_autograd(lambda ctx, grad: scale_backward(grad))\n",
            ),
            ("Scale.apply(", "scale("),
        ),
    ),
    CarriedOut(
        cause="autograd_function",
        remedy="Keep only what Dynamo traces",
        edits=(
            ("limit = float(grad.abs().max())", "limit = grad.abs().max()"),
            (".clamp(-limit, limit)", ".clamp(-limit, limit)"),
        ),
    ),
    CarriedOut(
        cause="disabled_hook",
        remedy="Put the hook",
        edits=(("self.linear.register_forward_pre_hook(", "self.register_forward_pre_hook("),),
    ),
    CarriedOut(
        cause="disabled_hook",
        remedy="Compile the inner modules",
        variant=(
            (
                "self.linear = nn.Linear(8, 8)\n",
                "self.linear = nn.Linear(8, 8)\n        self.other = nn.Linear(8, 8)\n",
            ),
            ("self.linear(x).relu()", "self.other(self.linear(x).relu())"),
        ),
        edits=(
            (
                _BUILD,
                "def wrap(model):\n    for block in model.layers:\n"
                '        block.other = torch.compile(block.other, backend="aot_eager")\n\n\n' + _BUILD,
            ),
        ),
    ),
    CarriedOut(
        cause="disabled_hook",
        remedy="Remove torch.compiler.disable",
        edits=(("torch.compiler.disable(lambda module, args: None)", "lambda module, args: None"),),
    ),
    CarriedOut(
        cause="module_backward_hook",
        remedy="Register the hook",
        edits=(("self.linear.register_full_backward_hook(", "self.register_full_backward_hook("),),
    ),
    CarriedOut(
        cause="module_backward_hook",
        remedy="Register the hook",
        edits=(
            (
                "self.linear.register_full_backward_hook(lambda module, grad_in, grad_out: None)",
                "self.linear.weight.register_post_accumulate_grad_hook(lambda parameter: None)",
            ),
        ),
    ),
    # -- sizes
    CarriedOut(
        cause="duck_shape",
        remedy="Warm up with sizes",
        edits=(("((6, 6), (6, 9), (5, 7))", "((5, 7), (6, 6), (6, 9))"),),
    ),
    CarriedOut(
        cause="size_0_1",
        remedy="Accept two variants",
        edits=(
            _warm(
                "        model(torch.randn(3, 6, 8)).sum().backward()\n        model(torch.randn(1, 6, 8)).sum().backward()"
            ),
        ),
        warmed=True,
    ),
    CarriedOut(
        cause="shape_divisibility",
        remedy="Make the code pad",
        edits=(
            (
                "        rest = x.shape[1] % 8\n        if rest:\n            x = nn.functional.pad(x, (0, 0, 0, 8 - rest))\n",
                "        x = nn.functional.pad(x, (0, 0, 0, 8 - x.shape[1] % 8))\n",
            ),
        ),
    ),
    CarriedOut(
        cause="size_specialized",
        remedy="Keep the size out",
        edits=(
            (
                '    key = f"{length}x{width}"\n    if key not in TABLES:\n'
                "        TABLES[key] = torch.outer(torch.arange(64.0), torch.arange(float(width)))\n    return TABLES[key]\n",
                "    return TABLE\n",
            ),
            (
                "TABLES: dict[str, torch.Tensor] = {}\n",
                "TABLE = torch.outer(torch.arange(64.0), torch.arange(8.0))\n",
            ),
        ),
    ),
    CarriedOut(
        cause="size_specialized",
        remedy="Decide what depends",
        edits=(
            ("def forward(self, x):\n        return", "def forward(self, x, rows):\n        return"),
            ("table(x.shape[1], x.shape[2])[: x.shape[1]].cos()", "rows"),
            (_PLAIN_LOOP, "x = block(x, table(x.shape[1], x.shape[2])[: x.shape[1]].cos())\n"),
        ),
    ),
    CarriedOut(
        cause="parameter_shape",
        remedy="Give {argument} its shape",
        edits=(
            ("        self.adapt(rank=2)\n", "        self.adapt(rank=4)\n"),
            (
                "    if step == 2:\n        for block in model.layers:\n            block.adapt(rank=4)\n",
                "    pass\n",
            ),
        ),
    ),
    CarriedOut(
        cause="parameter_shape",
        remedy="Where ranks of an adapter",
        edits=(
            ("torch.randn(rank, 8)", "torch.cat([torch.randn(rank, 8), torch.zeros(4 - rank, 8)])"),
            ("torch.zeros(8, rank)", "torch.zeros(8, 4)"),
        ),
    ),
    # -- properties of tensors
    CarriedOut(
        cause="stride",
        remedy="Call {argument}.contiguous()",
        edits=((_LOOP, "x = block(x.contiguous(), **kwargs)\n"),),
    ),
    CarriedOut(
        cause="stride",
        remedy="Accept one variant",
        edits=(
            _warm(
                "        model(torch.randn(2, 6, 8)).sum().backward()\n        model(torch.randn(6, 2, 8).transpose(0, 1)).sum().backward()"
            ),
        ),
        warmed=True,
    ),
    CarriedOut(cause="requires_grad", remedy="Accept exactly two", edits=(), warmed=True),
    CarriedOut(
        cause="dtype",
        remedy="Cast {argument}",
        edits=(
            (
                "        for block in self.layers:\n",
                "        x = x.to(torch.bfloat16)\n        for block in self.layers:\n",
            ),
        ),
    ),
    CarriedOut(
        cause="dtype",
        remedy="Train without autocast",
        edits=(
            (
                '    with torch.autocast("cpu", torch.bfloat16):\n        out = model(**batch)\n',
                "    out = model(**batch)\n",
            ),
        ),
    ),
    CarriedOut(
        cause="tensor_type",
        remedy="Convert {argument}",
        edits=((_PLAIN_LOOP, "x = block(x.view_as(x))\n"),),
    ),
    CarriedOut(
        cause="tensor_type",
        remedy="Accept one variant",
        edits=(
            _warm(
                "        for x in (torch.randn(2, 6, 8, requires_grad=True), nn.Parameter(torch.randn(2, 6, 8))):\n"
                "            model(x).sum().backward()"
            ),
        ),
        warmed=True,
    ),
    CarriedOut(
        cause="rank_change",
        remedy="Give {argument} one",
        edits=(
            (
                "        for block in self.layers:\n            x = block(x, mask)\n",
                "        if mask.dim() == 2:\n"
                "            mask = mask[:, None, None].expand(-1, -1, x.shape[1], -1).contiguous()\n"
                "        for block in self.layers:\n            x = block(x, mask)\n",
            ),
        ),
    ),
    CarriedOut(
        cause="rank_change",
        remedy="Accept one variant",
        edits=(
            _warm(
                "        for mask in (torch.ones(2, 6), torch.ones(2, 1, 6, 6)):\n"
                "            model(torch.randn(2, 6, 8), mask).sum().backward()"
            ),
        ),
        warmed=True,
    ),
    CarriedOut(
        cause="none_vs_tensor",
        remedy="Pass {argument}",
        edits=(("in (None, torch.ones(2, 6), None)", "in (torch.ones(2, 6),) * 3"),),
    ),
    CarriedOut(
        cause="none_vs_tensor",
        remedy="Accept two variants",
        edits=(
            _warm(
                "        for mask in (None, torch.ones(2, 6)):\n"
                "            model(torch.randn(2, 6, 8), mask=mask).sum().backward()"
            ),
        ),
        warmed=True,
    ),
    # -- attributes of modules
    CarriedOut(
        cause="module_int_attr",
        remedy="Hold {attribute}",
        edits=(
            (
                "        self.calls = 0\n",
                '        self.register_buffer("calls", torch.zeros((), dtype=torch.long))\n',
            ),
            ("min(1.0, self.calls / 100)", "(self.calls / 100).clamp(max=1.0)"),
        ),
    ),
    CarriedOut(
        cause="module_int_attr",
        remedy="Count outside",
        edits=(
            ("        self.calls = 0\n", ""),
            ("    def forward(self, x):\n        self.calls += 1\n", "    def forward(self, x, factor):\n"),
            ("min(1.0, self.calls / 100)", "factor"),
            (
                "        for block in self.layers:\n",
                '        self.calls = getattr(self, "calls", 0) + 1\n'
                "        factor = torch.tensor(min(1.0, self.calls / 100))\n        for block in self.layers:\n",
            ),
            (_LOOP, "x = block(x, factor)\n"),
        ),
    ),
    CarriedOut(
        cause="module_float_attr",
        remedy="Store {attribute}",
        edits=(
            ("        self.scale = 1.0\n", '        self.register_buffer("scale", torch.tensor(1.0))\n'),
            ("block.scale = 1.0 / (step + 1)", "block.scale.fill_(1.0 / (step + 1))"),
        ),
    ),
    CarriedOut(
        cause="module_float_attr",
        remedy="Warm up with two",
        edits=(
            (
                "    for block in model.layers:\n        block.scale = 1.0 / (step + 1)\n",
                "    for scale in (1.0, 0.75):\n        for block in model.layers:\n            block.scale = scale\n"
                "        if step == 0:\n            model(torch.randn(2, 6, 8)).sum().backward()\n"
                "    for block in model.layers:\n        block.scale = 1.0 / (step + 1)\n",
            ),
        ),
        warmed=True,
    ),
    CarriedOut(
        cause="module_bool_attr",
        remedy="Two variants",
        edits=(
            (
                "def before_step(model, step):\n",
                "def before_step(model, step):\n    for adapter in (True, False) if step == 0 else ():\n"
                "        for block in model.layers:\n            block.adapter = adapter\n"
                "        model(torch.randn(2, 6, 8)).sum().backward()\n",
            ),
        ),
        warmed=True,
    ),
    CarriedOut(
        cause="module_bool_attr",
        remedy="Keep a separate",
        edits=(
            (
                "    for block in model.layers:\n        block.adapter = step % 2 == 0\n",
                "    model.reference = step % 2 == 1\n",
            ),
            (
                "        self.layers = nn.ModuleList(Block() for _ in range(layers))\n",
                "        self.layers = nn.ModuleList(Block() for _ in range(layers))\n"
                "        self.frozen = nn.ModuleList(Block().requires_grad_(False) for _ in range(layers))\n"
                "        for block in self.frozen:\n            block.adapter = False\n",
            ),
            (
                "in self.layers:\n            x = block",
                "in self.frozen if self.reference else self.layers:\n            x = block",
            ),
        ),
    ),
    CarriedOut(
        cause="module_str_attr",
        remedy="Decide what depends",
        edits=(
            ('        self.mode = "relu"\n', "        self.activation = torch.relu\n"),
            ('(y.relu() if self.mode == "relu" else y.sin())', "self.activation(y)"),
            ("def before_step(", _NO_BEFORE_STEP),
        ),
    ),
    CarriedOut(
        cause="module_str_attr",
        remedy="Accept one variant",
        edits=(
            (
                "def before_step(model, step):\n",
                'def before_step(model, step):\n    for mode in ("relu", "sin") if step == 0 else ():\n'
                "        for block in model.layers:\n            block.mode = mode\n"
                "        model(torch.randn(2, 6, 8)).sum().backward()\n",
            ),
        ),
        warmed=True,
    ),
    CarriedOut(
        cause="layer_idx",
        remedy="Resolve what depends",
        edits=(
            ("extra[:, self.layer_idx, None]", "extra[:, None]"),
            ("        for block in self.layers:\n", "        for index, block in enumerate(self.layers):\n"),
            (_LOOP, 'x = block(x, kwargs["extra"][:, index])\n'),
        ),
    ),
    CarriedOut(cause="per_layer_attr", remedy="Accept one variant", edits=(), warmed=True),
    CarriedOut(
        cause="container_len",
        remedy="Keep {attribute}",
        edits=(
            (
                "[torch.randn(8) for _ in range(n)]",
                "[torch.randn(8) for _ in range(n)] + [torch.zeros(8) for _ in range(3 - n)]",
            ),
        ),
    ),
    CarriedOut(
        cause="container_len",
        remedy="Hold what grows",
        edits=(
            (
                "    def forward(self, x, states):\n        for state in states:\n            x = x + state\n",
                "    def forward(self, x):\n",
            ),
            (
                "            " + _LOOP,
                '            for state in kwargs["states"]:\n                x = x + state\n            x = block(x)\n',
            ),
        ),
    ),
    CarriedOut(
        cause="first_call_latch",
        remedy="Build {attribute}",
        edits=(
            ("        self.table = None\n", "        self.table = torch.arange(8.0).cos()\n"),
            ("        if self.table is None:\n            self.table = torch.arange(8.0).cos()\n", ""),
        ),
    ),
    CarriedOut(
        cause="training_flag",
        remedy="Switch eval() and no_grad()",
        edits=(
            (
                "    model.train(step != 1)\n",
                "    if step == 0:\n        model.eval()\n        with torch.no_grad():\n"
                "            model(torch.randn(2, 6, 8))\n"
                "    model.train(step != 1)\n    torch.set_grad_enabled(step != 1)\n",
            ),
        ),
        warmed=True,
        leaves=frozenset({"grad_mode"}),
    ),
    CarriedOut(
        cause="training_flag",
        remedy="Evaluate with",
        edits=(
            (
                _BUILD,
                "def step(model, batch):\n    if model.training:\n        model(**batch).sum().backward()\n"
                '    else:\n        with torch.compiler.set_stance("force_eager"):\n            model(**batch)\n\n\n'
                + _BUILD,
            ),
        ),
    ),
    # -- Python values
    CarriedOut(
        cause="int_arg",
        remedy="Look up outside",
        edits=(
            ("def forward(self, x, step):", "def forward(self, x, factor):"),
            ("FACTORS[step]\n", "factor\n"),
            (_LOOP, 'x = block(x, torch.tensor(FACTORS[kwargs["step"]]))\n'),
        ),
    ),
    CarriedOut(
        cause="closure_identity",
        remedy="Build {argument} once",
        edits=(
            ("def make(ends):\n", "ENDS = torch.full((3,), 24)\n\n\ndef make(ends):\n"),
            (
                '{"x": torch.randn(2, 24, 8), "mask_function": make(list(range(2, 2 + n)))} for n in (1, 2, 3)',
                '{"x": torch.randn(2, 24, 8), "mask_function": MASK} for n in (1, 2, 3)',
            ),
            (
                _BUILD,
                "MASK = make(ENDS)\n\n\ndef before_step(model, step):\n    ENDS[: step + 1] = torch.arange(2, 3 + step)\n\n\n"
                + _BUILD,
            ),
        ),
    ),
    CarriedOut(
        cause="closure_identity",
        remedy="Where {argument} needs none",
        edits=(
            ("def forward(self, x, mask_function):", "def forward(self, x, mask):"),
            ("        position = torch.arange(x.shape[1])\n", ""),
            ("mask_function(position[:, None], position[None])", "mask"),
            (
                "        for block in self.layers:\n",
                "        position = torch.arange(x.shape[1])\n"
                '        mask = kwargs["mask_function"](position[:, None], position[None])\n        for block in self.layers:\n',
            ),
            (_LOOP, "x = block(x, mask)\n"),
        ),
    ),
    CarriedOut(
        cause="shared_code_object",
        remedy="Apply the decorator outside",
        edits=(
            ("    @checked\n", ""),
            (_PLAIN_LOOP, "x = block(x)\n            assert x.shape[-1] == 8\n"),
        ),
    ),
    CarriedOut(
        cause="helper_class_identity",
        remedy="Define the class",
        edits=(
            (
                "def make():\n    class Helper:\n        def apply(self, x):\n            return x * 0.5\n\n    return Helper()\n",
                "class Helper:\n    def apply(self, x):\n        return x * 0.5\n\n\ndef make():\n    return Helper()\n",
            ),
        ),
    ),
    CarriedOut(
        cause="helper_class_identity",
        remedy="Pass the tensors",
        edits=(
            ("def forward(self, x, helper):", "def forward(self, x, factor):"),
            ("helper.apply(self.linear(x))", "self.linear(x) * factor"),
            (_LOOP, "x = block(x, torch.tensor(0.5))\n"),
        ),
    ),
    CarriedOut(
        cause="class_attr",
        remedy="Hold {attribute}",
        edits=(
            ("    scale = 1.0\n", "    scale = torch.tensor(1.0)\n"),
            ("Settings.scale = 1.0 / (step + 1)", "Settings.scale.fill_(1.0 / (step + 1))"),
        ),
    ),
    CarriedOut(
        cause="class_attr",
        remedy="Where it need not change",
        edits=(("    Settings.scale = 1.0 / (step + 1)", "    if step == 0:\n        Settings.scale = 0.5"),),
    ),
    CarriedOut(
        cause="global_value",
        remedy="Hold {attribute}",
        edits=(
            ('SCHEDULE = {"scale": 1.0}', 'SCHEDULE = {"scale": torch.tensor(1.0)}'),
            ('SCHEDULE["scale"] = 1.0 / (step + 1)', 'SCHEDULE["scale"].fill_(1.0 / (step + 1))'),
        ),
    ),
    CarriedOut(
        cause="global_value",
        remedy="Pass it as a tensor",
        edits=(
            ("def forward(self, x):\n        return", "def forward(self, x, scale):\n        return"),
            ('* SCHEDULE["scale"]', "* scale"),
            (_LOOP, 'x = block(x, torch.tensor(SCHEDULE["scale"]))\n'),
        ),
    ),
    CarriedOut(
        cause="optimizer_lr_float",
        remedy="Build the optimizer",
        edits=(("lr=1e-3", "lr=torch.tensor(1e-3)"),),
    ),
    CarriedOut(
        cause="object_identity",
        remedy="Where the object behind",
        edits=(("(Activation.RELU, Activation.SIN, Activation.RELU)", "(Activation.RELU,) * 3"),),
    ),
    CarriedOut(
        cause="object_identity",
        remedy="Where several objects take turns",
        edits=(
            _warm(
                "        for activation in Activation:\n"
                "            model(torch.randn(2, 6, 8), activation=activation).sum().backward()"
            ),
        ),
        warmed=True,
    ),
    # -- global state
    CarriedOut(
        cause="grad_mode",
        remedy="Expected with evaluation",
        edits=(_warm("        with torch.no_grad():\n            model(torch.randn(2, 6, 8))"),),
        warmed=True,
    ),
    CarriedOut(
        cause="grad_mode",
        remedy="Run evaluation eager",
        edits=(
            (
                "    with torch.set_grad_enabled(len(CALLS) != 2):\n        out = model(**batch)\n",
                '    stance = "default" if len(CALLS) != 2 else "force_eager"\n'
                "    with torch.set_grad_enabled(len(CALLS) != 2), torch.compiler.set_stance(stance):\n"
                "        out = model(**batch)\n",
            ),
        ),
    ),
    CarriedOut(
        cause="global_state",
        remedy="Set {setting} once",
        edits=(("enabled=len(CALLS) > 1", "enabled=True"),),
    ),
    # -- errors
    CarriedOut(
        cause="ac_recompute_other_graph",
        remedy="Remove the recompile",
        edits=(
            ("        self.calls = 0\n", '        self.register_buffer("calls", torch.zeros(()))\n'),
            ("        self.calls += 1\n", ""),
            ("min(1.0, self.calls / 100)", "(self.calls / 100).clamp(max=1.0)"),
            (
                "            x = checkpoint(block, x, use_reentrant=False)\n",
                "            block.calls += 1\n            x = checkpoint(block, x, use_reentrant=False)\n",
            ),
        ),
        leaves=frozenset({"grad_mode"}),
    ),
    CarriedOut(
        cause="ac_recompute_other_graph",
        remedy="Put the checkpoint inside",
        edits=(
            (
                "    def forward(self, x):\n        self.calls += 1\n        return x +",
                "    def forward(self, x):\n        self.calls += 1\n"
                "        return checkpoint(self.inner, x, min(1.0, self.calls / 100), use_reentrant=False)\n\n"
                "    def inner(self, x, factor):\n        return x +",
            ),
            ("* min(1.0, self.calls / 100)\n\n\nclass", "* factor\n\n\nclass"),
            ("x = checkpoint(block, x, use_reentrant=False)", "x = block(x)"),
        ),
        leaves=frozenset({"grad_mode", "module_int_attr"}),
    ),
    CarriedOut(
        cause="ac_dtype_mismatch",
        remedy="Cast the inputs",
        edits=(
            ("        if self.half:\n            x = x.bfloat16()\n", ""),
            (
                "x = checkpoint(block, x, use_reentrant=False)",
                "x = checkpoint(block, x.bfloat16() if block.half else x, use_reentrant=False)",
            ),
        ),
    ),
    CarriedOut(
        cause="ac_dtype_mismatch",
        remedy="Order AC",
        edits=(
            ("        if self.half:\n            x = x.bfloat16()\n", ""),
            (
                "        for block in self.layers:\n            x = checkpoint(block, x, use_reentrant=False)\n",
                "        for block in self.layers:\n            x = in_half(lambda y, block=block: checkpoint(block, y, use_reentrant=False), x)\n",
            ),
            (
                "class Model(",
                "def in_half(function, x):\n    return function(x.bfloat16())\n\n\nclass Model(",
            ),
        ),
    ),
    CarriedOut(
        cause="constraint_violation",
        remedy="Find the line",
        edits=(
            ("torch.zeros(6, 8)", "torch.zeros(64, 8)"),
            ("+ self.position\n", "+ self.position[: x.shape[1]]\n"),
        ),
    ),
    CarriedOut(
        cause="constraint_violation",
        remedy="Use torch._dynamo.maybe_mark_dynamic",
        edits=(("_dynamo.mark_dynamic", "_dynamo.maybe_mark_dynamic"),),
    ),
    CarriedOut(
        cause="limit_not_visible_in_thread",
        remedy="Remove what makes",
        edits=(
            ("FACTORS[step]\n", "step\n"),
            ('"step": step}', '"step": torch.tensor(FACTORS[step])}'),
        ),
    ),
    CarriedOut(
        cause="limit_not_visible_in_thread",
        remedy="Set torch._dynamo.config.recompile_limit",
        edits=(("        try:\n", "        torch._dynamo.config.recompile_limit = 64\n        try:\n"),),
        leaves=frozenset({"int_arg"}),
    ),
    CarriedOut(
        cause="late_hook_ignored",
        remedy="Register the hook before",
        edits=(("if step == 1:", "if step == 0:"),),
        leaves=frozenset({"container_len"}),
    ),
    CarriedOut(
        cause="late_hook_ignored",
        remedy="Call torch._dynamo.reset()",
        edits=(
            (
                "            lambda module, args, output: SEEN.append(output.detach())\n        )\n",
                "            lambda module, args, output: SEEN.append(output.detach())\n        )\n        torch._dynamo.reset()\n",
            ),
        ),
        leaves=frozenset({"container_len"}),
    ),
    CarriedOut(
        cause="compiled_region_not_reached",
        remedy="Put the {skipped_class}",
        variant=(
            (
                "nn.ModuleList(Block() for _ in range(layers))",
                "nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(layers))",
            ),
            ("x = block.forward(x)", "x = block(x)"),
        ),
        edits=(
            ("nn.Sequential(nn.Linear(8, 8))", "Holder(nn.Sequential(nn.Linear(8, 8)))"),
            (
                "class Model(",
                "class Holder(nn.Module):\n    def __init__(self, inner):\n        super().__init__()\n        self.inner = inner\n\n"
                "    def forward(self, x):\n        return self.inner(x)\n\n\nclass Model(",
            ),
        ),
    ),
    CarriedOut(
        cause="compiled_region_not_reached",
        remedy="Put the {skipped_class}",
        variant=(
            (
                "nn.ModuleList(Block() for _ in range(layers))",
                "nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(layers))",
            ),
            ("x = block.forward(x)", "x = block(x)"),
        ),
        edits=(
            (
                _BUILD,
                "def wrap(model):\n    for index, block in enumerate(model.layers):\n"
                '        model.layers[index] = torch.compile(block, backend="aot_eager")\n\n\n' + _BUILD,
            ),
        ),
    ),
    CarriedOut(
        cause="compiled_region_not_reached",
        remedy="Use block.compile()",
        variant=(
            ("x = block.forward(x)", "x = block(x)"),
            (
                _BUILD,
                'def wrap(model):\n    for block in model.layers:\n        torch.compile(block, backend="aot_eager")\n\n\n'
                + _BUILD,
            ),
        ),
        edits=(('torch.compile(block, backend="aot_eager")', 'block.compile(backend="aot_eager")'),),
    ),
    CarriedOut(
        cause="compiled_region_not_reached",
        remedy="Call block(x)",
        edits=(("x = block.forward(x)", "x = block(x)"),),
    ),
    CarriedOut(
        cause="donated_buffer",
        remedy="Go through the graph once",
        edits=(
            (
                "        (gradient,) = torch.autograd.grad(loss, model.layers[0].up.weight, retain_graph=True)\n"
                "        loss = loss / (1 + gradient.norm().detach())\n    STEPS.append(loss.item())\n    loss.backward()\n",
                "        loss = loss + model.layers[0].up.weight.pow(2).mean()\n    STEPS.append(loss.item())\n    loss.backward()\n",
            ),
        ),
    ),
    CarriedOut(
        cause="double_backward",
        remedy="Run the term",
        edits=(
            (
                "    score = model(**batch).mean()\n",
                '    loss = model(**batch).mean()\n    with torch.compiler.set_stance("force_eager"):\n        score = model(**batch).mean()\n',
            ),
            ("loss = score + gradient", "loss = loss + gradient"),
        ),
    ),
    CarriedOut(
        cause="double_backward",
        remedy="Leave the modules",
        edits=(
            (
                "    score = model(**batch).mean()\n",
                '    score = model.layers[0](batch["x"]).mean()\n    loss = model(**batch).mean()\n',
            ),
            ("loss = score + gradient", "loss = loss + gradient"),
            (_BUILD, 'def wrap(model):\n    model.layers[1].compile(backend="aot_eager")\n\n\n' + _BUILD),
        ),
    ),
    CarriedOut(
        cause="unused_subclass_output",
        remedy="Do not return",
        edits=(
            (
                "def forward(self, x, statistics):\n        return x + self.linear(x), statistics * 2\n",
                "def forward(self, x):\n        return x + self.linear(x)\n",
            ),
            ("x, statistics = block(x, statistics)", "x, statistics = block(x), statistics * 2"),
        ),
    ),
    CarriedOut(
        cause="unused_subclass_output",
        remedy="Return it detached",
        edits=(("x + self.linear(x), statistics * 2", "x + self.linear(x), (statistics * 2).detach()"),),
        leaves=frozenset({"requires_grad"}),
    ),
    CarriedOut(
        cause="unused_subclass_output",
        remedy="Return plain tensors",
        edits=(
            (
                "        return x + self.linear(x), statistics * 2\n",
                "        statistics = statistics * 2\n        return x + self.linear(x), statistics.value, statistics.spread\n",
            ),
            (
                "x, statistics = block(x, statistics)",
                "x, value, spread = block(x, statistics)\n            statistics = Paired(value, spread)",
            ),
        ),
        leaves=frozenset({"requires_grad"}),
    ),
    # -- numerics and performance
    CarriedOut(
        cause="silent_wrong_numerics",
        remedy="Where the code asks",
        edits=(
            (
                "    if torch.compiler.is_compiling():\n        return (x @ x.transpose(1, 2)).softmax(-1) @ x\n",
                "",
            ),
        ),
    ),
    CarriedOut(
        cause="saved_tensor_hooks_whole_graph",
        remedy="Compile smaller pieces",
        edits=((_BUILD, _COMPILE_LINEAR + _BUILD),),
    ),
    CarriedOut(
        cause="graph_runs_eager",
        remedy="Remove torch.compiler.disable",
        edits=(("def before_step(", _NO_BEFORE_STEP),),
    ),
)
