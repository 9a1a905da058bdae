{{/* The KoordpyConfiguration: the values' over what the release decides. */}}
{{- define "koordpy.configuration" -}}
{{- $name := include "koordpy.fullname" . -}}
{{- $lease := dict "leaderElect" true "resourceName" $name "resourceNamespace" .Release.Namespace -}}
{{- $release := dict "apiVersion" "koordpy.io/v1alpha1" "kind" "KoordpyConfiguration" "leaderElection" $lease -}}
{{- $_ := set $release "bindAddress" (printf ":%d" (int .Values.port)) -}}
{{- toYaml (mergeOverwrite $release (deepCopy .Values.config)) -}}
{{- end -}}

{{/* The same section as a mapping, for the Role and the checks. */}}
{{- define "koordpy.leaderElection" -}}
{{- toYaml (get (fromYaml (include "koordpy.configuration" .)) "leaderElection") -}}
{{- end -}}
