{{/* What the pods of the scheduler and of the agent have alike. root: the chart's scope; of: the values of one of them. */}}
{{- define "koordpy.podSettings" -}}
{{- $settings := dict "automountServiceAccountToken" true "enableServiceLinks" false }}
{{- $dns := ternary "ClusterFirstWithHostNet" "" .of.hostNetwork }}
{{- $given := dict "imagePullSecrets" .root.Values.imagePullSecrets "securityContext" .of.podSecurityContext }}
{{- $given = merge $given (dict "hostNetwork" .of.hostNetwork "dnsPolicy" (default $dns .of.dnsPolicy)) }}
{{- $given = merge $given (pick .of "priorityClassName" "nodeSelector" "tolerations") }}
{{- range $name, $value := $given }}
{{- if $value }}{{ $_ := set $settings $name $value }}{{ end }}
{{- end }}
{{- toYaml $settings }}
{{- end -}}

{{/* The same of their containers. */}}
{{- define "koordpy.containerSettings" -}}
{{- $settings := dict "image" (include "koordpy.image" .root) "imagePullPolicy" .root.Values.image.pullPolicy }}
{{- range $name, $value := pick .of "securityContext" "resources" }}
{{- if $value }}{{ $_ := set $settings $name $value }}{{ end }}
{{- end }}
{{- toYaml $settings }}
{{- end -}}

{{/* labels and annotations of their pods. labels: those of the chart; annotations: the same. */}}
{{- define "koordpy.podMetadata" -}}
labels:
  {{- toYaml (merge (fromYaml .labels) .of.podLabels .root.Values.commonLabels) | nindent 2 }}
{{- with merge (dict) (default dict .annotations) .of.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
