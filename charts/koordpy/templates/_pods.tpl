{{/* What the pods of the scheduler and of the agent have alike. root: the chart's scope; of: the values of one of them. */}}
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

{{/* The same of their containers. */}}
{{- define "koordpy.containerSettings" -}}
{{- $settings := dict "image" (include "koordpy.image" .root) }}
{{- range $name, $value := merge (pick .of "securityContext" "resources") (dict "imagePullPolicy" .root.Values.image.pullPolicy) }}
{{- if $value }}{{ $_ := set $settings $name $value }}{{ end }}
{{- end }}
{{- toYaml $settings }}
{{- end -}}

{{/* labels and annotations of their pods. labels: those of the chart; annotations: the same. */}}
{{- define "koordpy.podMetadata" -}}
labels:
  {{- toYaml (merge (fromYaml .labels) (default dict .of.podLabels) (default dict .root.Values.commonLabels)) | nindent 2 }}
{{- with merge (dict) (default dict .annotations) (default dict .of.podAnnotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
