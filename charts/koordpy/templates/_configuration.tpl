{{/* The KoordpyConfiguration: the values' over what the release decides. */}}
{{- define "koordpy.configuration" -}}
{{- $name := include "koordpy.fullname" . -}}
{{- $lease := dict "leaderElect" true "resourceName" $name "resourceNamespace" (include "koordpy.namespace" .) -}}
{{- $release := dict "apiVersion" "koordpy.io/v1alpha1" "kind" "KoordpyConfiguration" "leaderElection" $lease -}}
{{- $_ := set $release "bindAddress" (printf ":%d" (int .Values.port)) -}}
{{- toYaml (mergeOverwrite $release (deepCopy (default dict .Values.config))) -}}
{{- end -}}

{{/* The same section as a mapping, for the Role and the checks. */}}
{{- define "koordpy.leaderElection" -}}
{{- toYaml (get (fromYaml (include "koordpy.configuration" .)) "leaderElection") -}}
{{- end -}}

{{/* schedulerNames as a list in CEL. */}}
{{- define "koordpy.schedulerNames" -}}
{{- toJson (dig "schedulerNames" (list "koord-scheduler") (default dict .Values.config)) -}}
{{- end -}}

{{/* GPU resources as a list in CEL. */}}
{{- define "koordpy.gpuResources" -}}
{{- toJson (dig "gpu" "resources" (list "nvidia.com/gpu" "koordinator.sh/gpu" "aliyun.com/gpu" "aliyun.com/gpu-count") (default dict .Values.config)) -}}
{{- end -}}
