{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* The KoordpyConfiguration: values override the release's settings. */}}
{{- define "koordpy.configuration" -}}
{{- $name := include "koordpy.fullname" . -}}
{{- $lease := dict "leaderElect" true "resourceName" $name "resourceNamespace" (include "koordpy.namespace" .) -}}
{{- $release := dict "apiVersion" "koordpy.io/v1alpha1" "kind" "KoordpyConfiguration" "leaderElection" $lease -}}
{{- $_ := set $release "bindAddress" (printf ":%d" (int .Values.port)) -}}
{{- $given := deepCopy (default dict .Values.config) -}}
{{- toYaml (mergeOverwrite $release $given) -}}
{{- end -}}

{{/* Its section `quota` as JSON. */}}
{{- define "koordpy.quota" -}}
{{- toJson (default dict (dig "quota" dict (default dict .Values.config))) -}}
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

{{/* CEL variables of `object`: the pod's containers and init containers, and whether one of them requests GPUs. */}}
{{- define "koordpy.containers" -}}
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))
{{- end -}}

{{- define "koordpy.asksForGpus" -}}
{{- $gpus := include "koordpy.gpuResources" . -}}
{{ include "koordpy.containers" . }}.exists(c, has(c.resources) && ((has(c.resources.limits) && c.resources.limits.exists(r, r in {{ $gpus }})) || (has(c.resources.requests) && c.resources.requests.exists(r, r in {{ $gpus }}))))
{{- end -}}
