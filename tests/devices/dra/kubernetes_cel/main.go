// SPDX-License-Identifier: Apache-2.0

// Prints the verdicts of Kubernetes' own CEL package for device selectors.
//
// Input (stdin): {"devices": [{"driver", "attributes", "capacity", "allowMultipleAllocations"}], "expressions": [...]},
// attributes and capacity as in the API. Output: one JSON array a line for each expression: ["compile", TEXT], or one
// entry for each device: true, false, or the text of the runtime error.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

type device struct {
	Driver                   string                                                    `json:"driver"`
	AllowMultipleAllocations *bool                                                     `json:"allowMultipleAllocations"`
	Attributes               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
	Capacity                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity"`
}

type input struct {
	Devices     []device `json:"devices"`
	Expressions []string `json:"expressions"`
}

func main() {
	var in input
	if err := json.NewDecoder(bufio.NewReader(os.Stdin)).Decode(&in); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for _, expression := range in.Expressions {
		if err := encoder.Encode(verdicts(compiler.CompileCELExpression(expression, cel.Options{DisableCostEstimation: true}), in.Devices)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func verdicts(compiled cel.CompilationResult, devices []device) []any {
	if compiled.Error != nil {
		return []any{"compile", compiled.Error.Detail}
	}
	out := []any{}
	for _, one := range devices {
		matches, _, err := compiled.DeviceMatches(context.Background(), cel.Device{
			Driver:                   one.Driver,
			AllowMultipleAllocations: one.AllowMultipleAllocations,
			Attributes:               one.Attributes,
			Capacity:                 one.Capacity,
		})
		if err != nil {
			out = append(out, cel.EnhanceRuntimeError(err).Error())
		} else {
			out = append(out, matches)
		}
	}
	return out
}
