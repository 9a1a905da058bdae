{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "koordpy.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "koordpy.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "koordpy.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "koordpy.selectorLabels" -}}
app.kubernetes.io/name: {{ include "koordpy.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "koordpy.agentLabels" -}}
app.kubernetes.io/name: {{ include "koordpy.name" . }}-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "koordpy.chart" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "koordpy.labels" -}}
{{ include "koordpy.chart" . }}
{{ include "koordpy.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/*
metadata of an object. root: the chart's scope; suffix: of its name, behind the release's; cluster: it has no namespace.
Where given: name, namespace, component; labels and annotations beside those of all objects.
*/}}
{{- define "koordpy.metadata" -}}
{{- $root := .root -}}
name: {{ default (printf "%s%s" (include "koordpy.fullname" $root) (default "" .suffix)) .name }}
{{- if not .cluster }}
namespace: {{ default (include "koordpy.namespace" $root) .namespace }}
{{- end }}
labels:
  {{- $own := fromYaml (include "koordpy.labels" $root) }}
  {{- with .component }}{{ $_ := set $own "app.kubernetes.io/component" . }}{{ end }}
  {{- toYaml (merge $own (default dict .labels) (default dict $root.Values.commonLabels)) | nindent 2 }}
{{- with merge (dict) (default dict .annotations) (default dict $root.Values.commonAnnotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "koordpy.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "koordpy.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "koordpy.image" -}}
{{- $image := .Values.image -}}
{{- $name := required "image.repository is required: the name under which the image was pushed (docs/install.md, section 1)" $image.repository -}}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $name -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default .Chart.AppVersion $image.tag }}{{ end -}}
{{- end -}}

{{/* User names of the service accounts. */}}
{{- define "koordpy.account" -}}
system:serviceaccount:{{ include "koordpy.namespace" . }}:{{ include "koordpy.serviceAccountName" . }}
{{- end -}}

{{- define "koordpy.agentAccount" -}}
system:serviceaccount:{{ include "koordpy.namespace" . }}:{{ include "koordpy.fullname" . }}-agent
{{- end -}}

{{/* User names of this and other releases, as lists in CEL. */}}
{{- define "koordpy.schedulers" -}}
{{- toJson (prepend (default list .Values.gpuPolicies.schedulers) (include "koordpy.account" .)) -}}
{{- end -}}

{{- define "koordpy.agents" -}}
{{- toJson (prepend (default list .Values.gpuPolicies.agents) (include "koordpy.agentAccount" .)) -}}
{{- end -}}
