{{/* The KoordpyConfiguration: the values' over what the release decides. */}}
{{- define "koordpy.configuration" -}}
{{- $name := include "koordpy.fullname" . -}}
{{- $lease := dict "leaderElect" true "resourceName" $name "resourceNamespace" (include "koordpy.namespace" .) -}}
{{- $release := dict "apiVersion" "koordpy.io/v1alpha1" "kind" "KoordpyConfiguration" "leaderElection" $lease -}}
{{- $_ := set $release "bindAddress" (printf ":%d" (int .Values.port)) -}}
{{- $given := deepCopy (default dict .Values.config) -}}
{{- $_ := set $given "quota" (fromJson (include "koordpy.quota" .)) -}}
{{- toYaml (mergeOverwrite $release $given) -}}
{{- end -}}

{{/* Its section `quota`: what is not given is the release's namespace's to say, and nobody else's. */}}
{{- define "koordpy.quota" -}}
{{- $own := list (include "koordpy.namespace" .) -}}
{{- $quota := dict "namespaces" $own "trustedNamespaces" $own "podLabels" "listed" "labelNamespaces" $own -}}
{{- range $name, $value := dig "quota" dict (default dict .Values.config) -}}
{{- $_ := set $quota $name $value -}}
{{- end -}}
{{- toJson $quota -}}
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
