{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/* The section of NOTES about quotas: which ElasticQuotas apply, which accounts may write them, and changes of an upgrade.
Lookups are empty without access to the cluster (helm template), and are skipped with notes.readCluster=false. */}}

{{/* ElasticQuotas of the cluster as a mapping: namespace -> names. */}}
{{- define "koordpy.quotasThere" -}}
{{- $there := dict -}}
{{- range $version := list "scheduling.sigs.k8s.io/v1alpha1" "scheduling.x-k8s.io/v1alpha1" -}}
{{- if and (dig "readCluster" true (default dict $.Values.notes)) ($.Capabilities.APIVersions.Has (printf "%s/ElasticQuota" $version)) -}}
{{- range (lookup $version "ElasticQuota" "" "").items -}}
{{- $_ := set $there .metadata.namespace (append (default list (get $there .metadata.namespace)) .metadata.name | uniq) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $there -}}
{{- end -}}

{{/* quota.namespaces of the installed release, as a list of one entry: the list; empty where nothing is installed. */}}
{{- define "koordpy.quotaNamespacesBefore" -}}
{{- $found := list -}}
{{- if .Release.IsUpgrade -}}
{{- $map := lookup "v1" "ConfigMap" (include "koordpy.namespace" .) (include "koordpy.fullname" .) -}}
{{- with $map -}}
{{- $before := fromYaml (dig "data" "config.yaml" "{}" .) -}}
{{- $found = append $found (default list (dig "quota" "namespaces" list $before)) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* "true" for a rule that grants the right to create or change ElasticQuotas. */}}
{{- define "koordpy.writesQuotas" -}}
{{- $groups := default list .apiGroups -}}
{{- $resources := default list .resources -}}
{{- $verbs := default list .verbs -}}
{{- if and (or (has "*" $groups) (has "scheduling.sigs.k8s.io" $groups) (has "scheduling.x-k8s.io" $groups))
           (or (has "*" $resources) (has "elasticquotas" $resources))
           (or (has "*" $verbs) (has "create" $verbs) (has "update" $verbs) (has "patch" $verbs)) -}}
true
{{- end -}}
{{- end -}}

{{/* Accounts that may create or change ElasticQuotas, as a list of lines. Roles of Kubernetes itself are left out. */}}
{{- define "koordpy.quotaWriters" -}}
{{- $writers := list -}}
{{- $rbac := "rbac.authorization.k8s.io/v1" -}}
{{- if and (dig "readCluster" true (default dict .Values.notes)) (.Capabilities.APIVersions.Has (printf "%s/ClusterRole" $rbac)) -}}
{{- $wide := dict -}}
{{- range (lookup $rbac "ClusterRole" "" "").items -}}
{{- $name := .metadata.name -}}
{{- if not (hasPrefix "system:" $name) -}}
{{- range .rules }}{{ if include "koordpy.writesQuotas" . }}{{ $_ := set $wide $name true }}{{ end }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $narrow := dict -}}
{{- range (lookup $rbac "Role" "" "").items -}}
{{- $name := printf "%s/%s" .metadata.namespace .metadata.name -}}
{{- range .rules }}{{ if include "koordpy.writesQuotas" . }}{{ $_ := set $narrow $name true }}{{ end }}{{ end -}}
{{- end -}}
{{- range (lookup $rbac "ClusterRoleBinding" "" "").items -}}
{{- if hasKey $wide .roleRef.name -}}
{{- $role := .roleRef.name -}}
{{- range .subjects -}}
{{- $writers = append $writers (printf "%s, in every namespace (ClusterRole %s)" (include "koordpy.subject" .) $role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range (lookup $rbac "RoleBinding" "" "").items -}}
{{- $role := .roleRef.name -}}
{{- $namespace := .metadata.namespace -}}
{{- if or (and (eq .roleRef.kind "ClusterRole") (hasKey $wide $role)) (and (eq .roleRef.kind "Role") (hasKey $narrow (printf "%s/%s" $namespace $role))) -}}
{{- $kind := .roleRef.kind -}}
{{- range .subjects -}}
{{- $writers = append $writers (printf "%s, in namespace %s (%s %s)" (include "koordpy.subject" .) $namespace $kind $role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson ($writers | uniq | sortAlpha) -}}
{{- end -}}

{{- define "koordpy.subject" -}}
{{- if .namespace }}{{ .kind }} {{ .namespace }}/{{ .name }}{{ else }}{{ .kind }} {{ .name }}{{ end -}}
{{- end -}}

{{/* The text of the section. */}}
{{- define "koordpy.quotaNotes" -}}
{{- $counting := default list (fromJson (include "koordpy.quota" .)).namespaces -}}
{{- $there := fromJson (include "koordpy.quotasThere" .) -}}
{{- $before := fromJsonArray (include "koordpy.quotaNamespacesBefore" .) -}}
{{- $ignored := list -}}
{{- $fresh := list -}}
{{- range $namespace, $names := $there -}}
{{- if and $counting (not (has $namespace $counting)) -}}
{{- $ignored = append $ignored (printf "%s: %s" $namespace (join ", " $names)) -}}
{{- else if and $before (first $before) (not (has $namespace (first $before))) -}}
{{- $fresh = append $fresh (printf "%s: %s" $namespace (join ", " $names)) -}}
{{- end -}}
{{- end -}}
{{- if $counting }}
ElasticQuotas are only honoured in namespace {{ join ", " $counting }} (config.quota.namespaces). ElasticQuotas in other
namespaces are ignored.
{{- else }}
ElasticQuotas in all namespaces apply, as in Koordinator. An account that may write them can change limits and guarantees
of all namespaces:
{{ $writers := fromJsonArray (include "koordpy.quotaWriters" .) }}
{{- range $i, $one := $writers }}{{ if lt $i 20 }}
  {{ $one }}
{{- end }}{{ end }}
{{- if gt (len $writers) 20 }}
  and {{ sub (len $writers) 20 }} more
{{- end }}
{{- if not $writers }}
  kubectl auth can-i create elasticquotas.scheduling.sigs.k8s.io --namespace NAMESPACE --as ACCOUNT
{{- end }}

If tenants may write them, set config.quota.namespaces and the related settings: docs/quotas.md, Tenants.
{{- end }}
{{- with $ignored }}

WARNING: ElasticQuotas that this configuration ignores, so that their pods have no limit and no guarantee:
{{ range . }}
  {{ . }}
{{- end }}

{{ if $before -}}
`helm upgrade --dry-run=server` shows this before an upgrade. {{ end -}}
To honour them, add their namespaces to config.quota.namespaces, or leave it empty.
{{- end }}
{{- with $fresh }}

WARNING: ElasticQuotas that were ignored before this upgrade, and apply from now on:
{{ range . }}
  {{ . }}
{{- end }}

To keep ignoring them: config.quota.namespaces: [{{ join ", " (first $before) }}]
{{- end }}
{{- end -}}
