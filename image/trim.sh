#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Removes files of packages that koordpy never reads: tests, sources and headers, and what a wheel has by mistake.
# `trim.sh FOLDER`, with the image's packages below FOLDER. kubernetes_asyncio reads kubeconfig files only: in a cluster
# nothing imports it, so that it stays uncompiled. The extensions of cel_expr_python are in its main file too (36 MB).
set -eu

find "$1" -depth '(' -path '*/site-packages/*/tests' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.pyi' \
    -o -name '*.[ch]' -o -name '*.a' -o -path '*/kubernetes_asyncio/*/__pycache__' \
    -o -path '*/site-packages/bazel-project' -o -path '*/site-packages/cel_expr_python/ext' ')' -exec rm -r {} +
