# SPDX-License-Identifier: Apache-2.0
"""What `make dist` builds: its parts without a network, and by `make dist-check` the files in dist/."""
