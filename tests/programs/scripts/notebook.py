# SPDX-License-Identifier: Apache-2.0
"""A notebook, cell by cell in a kernel of its own, as `jupyter execute` does."""

import nbformat
from nbclient import NotebookClient

cells = [
    "import torch\nfrom torch.utils.data import DataLoader\nimport work",
    "model = work.mlp()\noptimizer = torch.optim.Adam(model.parameters(), lr=1e-2)\nsteps = 0",
    "for _epoch in range(work.EPOCHS):\n"
    "    for inputs, targets in DataLoader(work.Samples(), work.BATCH, shuffle=True):\n"
    "        optimizer.zero_grad()\n"
    "        (model(inputs) - targets).square().mean().backward()\n"
    "        optimizer.step()\n"
    "        steps += 1",
    "work.told(steps, model)",
]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
for cell in notebook.cells:
    for output in cell.outputs:
        print(output.get("text", ""), end="", flush=True)
