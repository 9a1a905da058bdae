#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the image of the chart's default values, with the tag VERSION, and writes it as an OCI archive, for registries and for nodes without one.
#
# BASE          an image with Python (default: the Dockerfile's), or `bootstrap`: Debian with its Python is made here from
#               Debian's packages, without a registry (needs mmdebstrap and the rights to use it)
# BUILDER       docker, podman or buildah (default: the first of them that works)
# SOURCE        address of the source code, for the image's label
# PIP_CERT, SSL_CERT_FILE    a file of authorities that the package index is signed by, where the base does not know them
#
# It ends with 69 where there is no builder or the base cannot be had.
set -eu

cd "$(dirname "$0")/.."
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' koordpy/__init__.py)
name=$(sed -n 's/^  repository: //p' charts/koordpy/values.yaml):$version
archive=$PWD/build/koordpy.oci.tar
debian=trixie
mkdir -p build

say() { printf '%s\n' "image: $*" >&2; }

works() {
    command -v "$1" >/dev/null 2>&1 && "$1" info >/dev/null 2>&1
}

builder=${BUILDER:-}
for one in docker podman buildah; do
    if [ -z "$builder" ] && works "$one"; then builder=$one; fi
done
if [ -z "$builder" ]; then
    say "none of docker, podman and buildah is here and works"
    exit 69
fi
say "building with $builder"

known() {
    "$builder" inspect --type image "$1" >/dev/null 2>&1
}

bootstrap() {
    command -v mmdebstrap >/dev/null 2>&1 || return 1
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    image/base.sh "$(dpkg --print-architecture)" "$root/base.tar" || return 1
    if [ "$builder" = buildah ]; then
        container=$(buildah from scratch)
        buildah add --quiet "$container" "$root/base.tar" >/dev/null
        buildah commit --quiet --rm "$container" "$base" >/dev/null
    else
        "$builder" import "$root/base.tar" "$base" >/dev/null
    fi
}

base=${BASE:-$(sed -n 's/^ARG PYTHON=//p' Dockerfile)}
if [ "$base" = bootstrap ]; then
    base=localhost/koordpy-base:$debian
    fetch=bootstrap
else
    fetch="$builder pull --quiet $base"
fi
if ! known "$base" && ! $fetch >&2; then
    say "the base $base cannot be had"
    exit 69
fi

set -- --tag "$name" --build-arg "PYTHON=$base" --build-arg "SOURCE=${SOURCE:-}"
revision=$(git describe --always --dirty --abbrev=40 --exclude="*" 2>/dev/null || true)
set -- "$@" --build-arg "REVISION=$revision"
authorities=${PIP_CERT:-${SSL_CERT_FILE:-}}
if [ -f "$authorities" ]; then set -- "$@" --secret "id=ca,src=$authorities"; fi

rm -f "$archive"
case $builder in
docker)
    docker build "$@" .
    docker save --output "$archive" "$name"
    ;;
podman)
    podman build --format oci "$@" .
    podman save --quiet --format oci-archive --output "$archive" "$name"
    ;;
buildah)
    # chroot: it works where no container may be started, too
    # Some versions take the labels of an earlier build from the cache, whatever the arguments are now.
    buildah bud --isolation chroot --layers --label "org.opencontainers.image.revision=$revision" "$@" .
    buildah push --quiet "$name" "oci-archive:$archive:$name"
    ;;
esac
