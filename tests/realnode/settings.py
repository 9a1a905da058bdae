# SPDX-License-Identifier: Apache-2.0
"""What a node's programs are told: files of containerd, of the network of pods, and of the kubelet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.realnode.images import PAUSE
from tests.realnode.namespaces import pods_of

CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"), Path("/usr/libexec/cni"))
# Nobody answers there: pods of tests use addresses.
NAME_SERVER = "10.96.0.10"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
# Keys of containerd's configuration: version of the file, CRI plugins of images and of containers.
_VERSIONS = {
    1: (2, "io.containerd.grpc.v1.cri", "io.containerd.grpc.v1.cri"),
    2: (3, "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"),
}


def cni_folder() -> Path | None:
    """Where the plugins of the pods' network are."""
    return next((folder for folder in CNI_FOLDERS if (folder / "bridge").exists()), None)


def containerd(major: int, runc: Path, plugins: Path) -> str:
    """config.toml for a containerd of this major version."""
    version, images, runtime = _VERSIONS[min(major, 2)]
    if major < 2:
        sandbox = f"  sandbox_image = '{PAUSE}'"
    else:
        sandbox = f"[plugins.'{images}'.pinned_images]\n  sandbox = '{PAUSE}'"
    bin_dir = f"bin_dir = '{plugins}'" if major < 2 else f"bin_dirs = ['{plugins}']"
    return f"""\
version = {version}
root = '/var/lib/containerd'
state = '/run/containerd'
disabled_plugins = ['io.containerd.internal.v1.opt', 'io.containerd.nri.v1.nri']
[grpc]
  address = '{CONTAINERD_SOCKET}'
[plugins.'{runtime}']
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true
  # Root without CAP_SYS_RESOURCE may not make the kernel's choice less likely.
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ['/etc/cdi']
{sandbox}
[plugins.'{runtime}'.cni]
  {bin_dir}
  conf_dir = '/etc/cni/net.d'
[plugins.'{runtime}'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'{runtime}'.containerd.runtimes.runc.options]
    BinaryName = '{runc}'
    SystemdCgroup = false
"""


def pod_network(number: int) -> str:
    """A bridge on each node, and routes between them: no address is translated."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": pods_of(number)}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True, "ipam": ipam}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]})


def kubelet(client_ca: Path, resolv: Path, more: Mapping[str, Any]) -> str:
    """KubeletConfiguration; heartbeats and statuses are more frequent than by default, so that tests wait less.

    more: further fields.
    """
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(client_ca)},
            },
            "authorization": {"mode": "Webhook"},
            "clusterDNS": [NAME_SERVER],
            "resolvConf": str(resolv),
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "nodeLeaseDurationSeconds": 10,
            "nodeStatusUpdateFrequency": "2s",
            "syncFrequency": "5s",
            **more,
        }
    )
