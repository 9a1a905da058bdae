// SPDX-License-Identifier: Apache-2.0

// Prints for which pods Karpenter provisions nodes.
//
// Input (stdin): {"items": [...]}, pods as the API server lists them. Output: a JSON array with true or false for each.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/utils/pod"
)

func main() {
	var in corev1.PodList
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	answers := make([]bool, len(in.Items))
	for i := range in.Items {
		answers[i] = pod.IsProvisionable(&in.Items[i])
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
