#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes the base of the image: Debian with its Python, as a tar archive. `base.sh ARCH OUTPUT`, with ARCH amd64 or arm64.
#
# DEBIAN_SOURCES       a file of apt's sources (default: Debian's mirror with updates and security updates)
# SOURCE_DATE_EPOCH    latest time of a file in the archive
#
# Needs mmdebstrap, and for another architecture than the machine's qemu-user with binfmt_misc (Debian: qemu-user-static).
set -eu

arch=$1 output=$2
debian=trixie
# What packages of compiled code need, without documentation; licenses stay.
mmdebstrap --quiet --variant=essential --architectures="$arch" \
    --include=python3,python3-venv,libstdc++6,ca-certificates \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/lib/*/gconv/*' \
    --customize-hook='ln -s /usr/bin/python3 "$1/usr/local/bin/python"' \
    "$debian" "$output" ${DEBIAN_SOURCES:+"$DEBIAN_SOURCES"} >&2
