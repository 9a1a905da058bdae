# SPDX-License-Identifier: Apache-2.0
"""GPUs by name: machines and their links, allocations of GPUs, the choice of sets, and the check of a plan's GPUs.

The links of a node with a Device have a class and a bandwidth each. The folder `choice` computes the sets of GPUs that
a pod or a gang gets (docs/rules/gpu-topology.md).

Main types: `Gpus` (`gpu_family.py`): the family; `GpuBook` (`gpu_book.py`): GPUs, updated per event; `GpuView`
(`gpu_view.py`): GPUs at one moment; `Machine` (`gpu_machine.py`): GPUs and links of a node.

Must not be imported from outside except by the registry and the modules that import-linter names. Start reading at
`gpu_family.py`, then `gpu_machine.py`.
"""
