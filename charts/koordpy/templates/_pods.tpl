{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* Pod fields that the scheduler and the agent share. root: the chart's scope; of: the values of one of them. */}}
{{- define "koordpy.podSettings" -}}
{{- $settings := dict "automountServiceAccountToken" true "enableServiceLinks" false }}
{{- $dns := ternary "ClusterFirstWithHostNet" "" (default false .of.hostNetwork) }}
{{- $given := dict "imagePullSecrets" .root.Values.imagePullSecrets "securityContext" .of.podSecurityContext }}
{{- $given = merge $given (dict "hostNetwork" .of.hostNetwork "dnsPolicy" (default $dns .of.dnsPolicy)) }}
{{- $given = merge $given (pick .of "priorityClassName" "nodeSelector" "tolerations") }}
{{- range $name, $value := $given }}
{{- if $value }}{{ $_ := set $settings $name $value }}{{ end }}
{{- end }}
{{- toYaml $settings }}
{{- end -}}

{{/* Container fields that the scheduler and the agent share. */}}
{{- define "koordpy.containerSettings" -}}
{{- $settings := dict "image" (include "koordpy.image" .root) }}
{{- range $name, $value := merge (pick .of "securityContext" "resources") (dict "imagePullPolicy" .root.Values.image.pullPolicy) }}
{{- if $value }}{{ $_ := set $settings $name $value }}{{ end }}
{{- end }}
{{- toYaml $settings }}
{{- end -}}

{{/* Labels and annotations of the pods. labels, annotations: those of the chart. */}}
{{- define "koordpy.podMetadata" -}}
labels:
  {{- toYaml (merge (fromYaml .labels) (default dict .of.podLabels) (default dict .root.Values.commonLabels)) | nindent 2 }}
{{- with merge (dict) (default dict .annotations) (default dict .of.podAnnotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
