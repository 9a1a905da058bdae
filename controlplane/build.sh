#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl into one folder, for the end-to-end
# tests and the benchmarks against a real API server, helm, for those of the chart, and on Linux the kubelet, for those
# on real nodes; beside them the controllers of JobSets, LeaderWorkerSets, Ray and Kubeflow's jobs, with the manifests
# that they need (operators/). The last line of output is KUBEBUILDER_ASSETS=<folder>; everything else goes to stderr.
# `build.sh containerd` builds containerd 2 with its shim and ctr instead, and ends with KOORDPY_REALNODE_PATH=<folder>.
# `build.sh karpenter` builds Karpenter with its KWOK provider instead, and ends with KOORDPY_KARPENTER=<folder>.
#
# KUBERNETES                    the minor version to build, one of the folders of kubernetes/ (default: 1.37)
# KUBEBUILDER_ASSETS            a folder that has etcd and kube-apiserver already: it is used as it is
# KOORDPY_CONTROLPLANE_CACHE    where to build (default: ${XDG_CACHE_HOME:-$HOME/.cache}/koordpy/controlplane)
#
# What is built, and from what, is pinned by the go.mod of kubernetes/VERSION/, etcd/, helm/, operators/, containerd/ and
# karpenter/ and their go.sum. A binary is built when it is missing, or when its module's go.mod, go.sum or own sources are
# not those it was built from. About 11 minutes on 2 cores, 4 of them for the operators; 3 for containerd, 2 for karpenter.
set -eu

here=$(cd "$(dirname "$0")" && pwd)

say() { printf '%s\n' "controlplane: $*" >&2; }

finish() {
    printf '%s=%s\n' "$1" "$2"
    exit 0
}

what=${1:-}
if [ -z "$what" ] && [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
    if [ -x "$KUBEBUILDER_ASSETS/etcd" ] && [ -x "$KUBEBUILDER_ASSETS/kube-apiserver" ]; then
        say "using KUBEBUILDER_ASSETS as it is"
        finish KUBEBUILDER_ASSETS "$(cd "$KUBEBUILDER_ASSETS" && pwd)"
    fi
    say "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS lacks etcd or kube-apiserver: not used"
fi

# version_of FOLDER MODULE
version_of() {
    sed -n "s|^.*$2 \(v[0-9][0-9.]*\).*\$|\1|p" "$here/$1/go.mod" | head -n 1
}

wanted=${KUBERNETES:-1.37}
kubernetes=kubernetes/$wanted
case $wanted in
[0-9]*.[0-9]*) [ -f "$here/$kubernetes/go.mod" ] || kubernetes= ;;
*) kubernetes= ;;
esac
if [ -z "$kubernetes" ]; then
    say "KUBERNETES=$wanted cannot be built; it can be one of: $(cd "$here/kubernetes" && printf '%s ' *)"
    exit 1
fi
version=$(version_of "$kubernetes" 'k8s\.io/kubernetes')
if [ -z "$version" ]; then
    say "$kubernetes/go.mod requires no version of k8s.io/kubernetes"
    exit 1
fi
if [ -z "${KOORDPY_CONTROLPLANE_CACHE:-}${XDG_CACHE_HOME:-}${HOME:-}" ]; then
    say "none of KOORDPY_CONTROLPLANE_CACHE, XDG_CACHE_HOME and HOME says where to build"
    exit 1
fi
cache=${KOORDPY_CONTROLPLANE_CACHE:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/koordpy/controlplane}
mkdir -p "$cache/$version"
folder=$(cd "$cache/$version" && pwd)

temporary=$folder/.building.$$
trap 'rm -f "$temporary"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

need_go() {
    command -v go >/dev/null 2>&1 && return
    say "no Go toolchain on PATH: install Go $(sed -n 's/^go //p' "$here/$kubernetes/go.mod") or newer, or set"
    say "KUBEBUILDER_ASSETS to a folder that has etcd and kube-apiserver"
    exit 1
}

tags=

# sources_of MODULE: what its binaries are built from
sources_of() {
    cat "$here/$1/go.mod" "$here/$1/go.sum"
    find "$here/$1" -name '*.go' -exec cat {} +
}

# build MODULE BINARY PACKAGE LDFLAGS
build() {
    # Beside each binary lies what it was built from, so that the state is the files' own and not a clock's.
    if [ -x "$folder/$2" ] && sources_of "$1" | cmp -s - "$folder/.$2.from"; then
        return 0
    fi
    need_go
    say "building $2"
    begun=$(date +%s)
    # The flags are this module's own: GOFLAGS, a go.work above or a vendor folder of the person's must not change them.
    (
        cd "$here/$1"
        GOFLAGS=-mod=readonly GOWORK=off GO111MODULE=on CGO_ENABLED=0 \
            go build -buildvcs=false -trimpath -tags "$tags" -ldflags "-s -w $4" -o "$temporary" "$3" >&2
    )
    rm -f "$folder/.$2.from"
    mv -f "$temporary" "$folder/$2"
    sources_of "$1" >"$temporary"
    mv -f "$temporary" "$folder/.$2.from"
    say "built $2 in $(($(date +%s) - begun)) s"
}

# manifests GO_MODULE NAME MODULE FOLDER...: YAML of folders of a module that a binary is built from, in operators/NAME.
manifests() {
    from=$1 name=$2 module=$3 manifests=$folder/operators/$2
    shift 3
    if cmp -s "$manifests/.from" "$folder/.$name.from"; then return 0; fi
    source=$(cd "$here/$from" && GOFLAGS=-mod=readonly GOWORK=off go list -m -f '{{.Dir}}' "$module")
    rm -rf "$manifests"
    for part in "$@"; do
        mkdir -p "$manifests/$part"
        cp "$source/$part"/*.yaml "$manifests/$part"
        rm -f "$manifests/$part/kustomization.yaml"
    done
    chmod -R u+w "$manifests"
    cp "$folder/.$name.from" "$manifests/.from"
}

if [ "$what" = karpenter ]; then
    mkdir -p "$folder/karpenter"
    folder=$folder/karpenter
    build karpenter karpenter sigs.k8s.io/karpenter/kwok ""
    build karpenter isprovisionable ./isprovisionable ""
    manifests karpenter karpenter sigs.k8s.io/karpenter kwok/charts/crds kwok/apis/crds
    finish KOORDPY_KARPENTER "$folder"
fi

if [ "$what" = containerd ]; then
    mkdir -p "$folder/containerd"
    folder=$folder/containerd
    module=github.com/containerd/containerd/v2
    # Stores of layers that ask for libraries of C, and that no node here uses.
    tags="no_btrfs no_devmapper no_zfs"
    for binary in containerd containerd-shim-runc-v2 ctr; do
        build containerd "$binary" "$module/cmd/$binary" "-X $module/version.Version=$(version_of containerd "$module")"
    done
    finish KOORDPY_REALNODE_PATH "$folder"
fi

numbers=${version#v}
minor=${numbers#*.}
stamp=
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    stamp="$stamp -X $package.gitVersion=$version -X $package.gitMajor=${numbers%%.*} -X $package.gitMinor=${minor%%.*}"
    stamp="$stamp -X $package.gitTreeState=clean"
done

linux_only=
if [ "$(uname -s)" = Linux ]; then linux_only=kubelet; fi
build etcd etcd go.etcd.io/etcd/server/v3 ""
for binary in kube-apiserver kube-controller-manager kube-scheduler kubectl $linux_only; do
    build "$kubernetes" "$binary" "k8s.io/kubernetes/cmd/$binary" "$stamp"
done

# helm renders for the API server that lies beside it, unless told otherwise
helm=helm.sh/helm/v3
stamp="-X $helm/internal/version.version=$(version_of helm "$helm")"
for package in $helm/pkg/chartutil $helm/pkg/lint/rules; do
    stamp="$stamp -X $package.k8sVersionMajor=${numbers%%.*} -X $package.k8sVersionMinor=${minor%%.*}"
done
build helm helm "$helm/cmd/helm" "$stamp"

# operator NAME MODULE PACKAGE FOLDER...: a controller and its manifests. One go.mod has all of them, so that what they share
# is compiled once.
operator() {
    name=$1 module=$2 package=$3
    shift 3
    build operators "$name" "$module$package" ""
    manifests operators "$name" "$module" "$@"
}

operator jobset-controller sigs.k8s.io/jobset "" config/components/crd/bases config/components/webhook
operator lws-controller sigs.k8s.io/lws /cmd config/crd/bases config/webhook
operator kuberay-operator github.com/ray-project/kuberay/ray-operator "" config/crd/bases
operator training-operator github.com/kubeflow/training-operator /cmd/training-operator.v1 manifests/base/crds \
    manifests/base/webhook
finish KUBEBUILDER_ASSETS "$folder"
