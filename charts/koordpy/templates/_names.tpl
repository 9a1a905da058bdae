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

{{- define "koordpy.selectorLabels" -}}
app.kubernetes.io/name: {{ include "koordpy.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "koordpy.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "koordpy.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "koordpy.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "koordpy.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "koordpy.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "koordpy.agentLabels" -}}
app.kubernetes.io/name: {{ include "koordpy.name" . }}-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The names that API servers know our service accounts by. */}}
{{- define "koordpy.account" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "koordpy.serviceAccountName" . }}
{{- end -}}

{{- define "koordpy.agentAccount" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "koordpy.fullname" . }}-agent
{{- end -}}

{{/* schedulerNames as a list in CEL. */}}
{{- define "koordpy.schedulerNames" -}}
{{- toJson (.Values.config.schedulerNames | default (list "koord-scheduler")) -}}
{{- end -}}

{{/* GPU resources as a list in CEL. */}}
{{- define "koordpy.gpuResources" -}}
{{- toJson (dig "gpu" "resources" (list "nvidia.com/gpu" "koordinator.sh/gpu" "aliyun.com/gpu" "aliyun.com/gpu-count") .Values.config) -}}
{{- end -}}
