// SPDX-License-Identifier: Apache-2.0

// Prints what the kubelet's Topology Manager decides for hints of its managers.
//
// Input (stdin): one JSON object a line: {"zones", "policy", "hints"}; zones is the number of NUMA nodes, hints maps a
// resource to pairs of a mask of NUMA nodes and whether its manager prefers them. Output: one line for each: whether
// the pod is admitted, and the mask of NUMA nodes that the merged hint names, all of them if it names none.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/klog/v2"
	tm "k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
)

type hint struct {
	Mask      uint64 `json:"mask"`
	Preferred bool   `json:"preferred"`
}

type input struct {
	Zones  int               `json:"zones"`
	Policy string            `json:"policy"`
	Hints  map[string][]hint `json:"hints"`
}

type output struct {
	Admitted bool   `json:"admitted"`
	Mask     uint64 `json:"mask"`
}

func main() {
	scanner := bufio.NewScanner(os.Stdin)
	scanner.Buffer(nil, 1<<24)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	for scanner.Scan() {
		var in input
		if err := json.Unmarshal(scanner.Bytes(), &in); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := encoder.Encode(decide(in)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func decide(in input) output {
	info := &tm.NUMAInfo{NUMADistances: tm.NUMADistances{}}
	for zone := 0; zone < in.Zones; zone++ {
		info.Nodes = append(info.Nodes, zone)
	}
	policies := map[string]tm.Policy{
		tm.PolicyBestEffort:     tm.NewBestEffortPolicy(info, tm.PolicyOptions{}),
		tm.PolicyRestricted:     tm.NewRestrictedPolicy(info, tm.PolicyOptions{}),
		tm.PolicySingleNumaNode: tm.NewSingleNumaNodePolicy(info, tm.PolicyOptions{}),
	}
	// one provider for each resource, as the CPU Manager, the Memory Manager and the Device Manager are
	providers := []map[string][]tm.TopologyHint{}
	for resource, listed := range in.Hints {
		hints := []tm.TopologyHint{}
		for _, one := range listed {
			bits := []int{}
			for zone := 0; zone < in.Zones; zone++ {
				if one.Mask>>zone&1 == 1 {
					bits = append(bits, zone)
				}
			}
			mask, err := bitmask.NewBitMask(bits...)
			if err != nil {
				panic(err)
			}
			hints = append(hints, tm.TopologyHint{NUMANodeAffinity: mask, Preferred: one.Preferred})
		}
		providers = append(providers, map[string][]tm.TopologyHint{resource: hints})
	}
	merged, admitted := policies[in.Policy].Merge(klog.Background(), providers)
	found := output{Admitted: admitted, Mask: 1<<in.Zones - 1}
	if merged.NUMANodeAffinity != nil {
		found.Mask = 0
		for _, zone := range merged.NUMANodeAffinity.GetBits() {
			found.Mask |= 1 << zone
		}
	}
	return found
}
