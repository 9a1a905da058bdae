{{/* Under what the API server calls the webhook: names and addresses. */}}
{{- define "koordpy.webhookHosts" -}}
{{- $service := printf "%s-webhook.%s" (include "koordpy.fullname" .) (include "koordpy.namespace" .) }}
{{- $hosts := dict "names" (list (printf "%s.svc" $service) $service) "addresses" list }}
{{- with .Values.webhook.url }}
{{- $host := regexReplaceAll ":[0-9]+$" (trimPrefix "https://" .) "" | trimPrefix "[" | trimSuffix "]" }}
{{- $kind := ternary "addresses" "names" (regexMatch "^[0-9.]+$|:" $host) }}
{{- $_ := set $hosts $kind (append (get $hosts $kind) $host) }}
{{- end }}
{{- toYaml $hosts }}
{{- end -}}

{{/*
The chart's own certificate: data and annotations of the Secret, and the authorities that API servers trust. The one of
the cluster is kept while it holds for these hosts; where there is no cluster to ask, each rendering makes another one.
*/}}
{{- define "koordpy.ownCertificate" -}}
{{- $name := printf "%s-webhook" (include "koordpy.fullname" .) }}
{{- $hosts := fromYaml (include "koordpy.webhookHosts" .) }}
{{- $listed := join "," (concat $hosts.names $hosts.addresses) }}
{{- if not (or .Values.webhook.renderCertificate (lookup "v1" "Namespace" "" "default")) }}
{{- fail "webhook: there is no cluster to keep a certificate in, and every rendering would make another one: set webhook.existingSecret or webhook.certManager.enabled, render with --dry-run=server, or set webhook.renderCertificate (docs/install.md, section 4)" }}
{{- end }}
{{- $known := lookup "v1" "Secret" (include "koordpy.namespace" .) $name }}
{{- $notes := dig "metadata" "annotations" dict (default dict $known) }}
{{- $renew := int64 (get $notes "koordpy.io/renew-after" | default "0") }}
{{- if and (eq (get $notes "koordpy.io/hosts") $listed) (lt (int64 (now | unixEpoch)) $renew) }}
{{- toYaml (dict "data" (pick $known.data "ca.crt" "tls.crt" "tls.key") "annotations" (pick $notes "koordpy.io/renew-after" "koordpy.io/hosts") "trusted" (index $known.data "ca.crt")) }}
{{- else }}
{{- $days := int .Values.webhook.certificateDays }}
{{- $ca := genCA "koordpy-webhook-ca" $days }}
{{- $pair := genSignedCert "koordpy-webhook" $hosts.addresses $hosts.names $days $ca }}
{{- $data := dict "ca.crt" (b64enc $ca.Cert) "tls.crt" (b64enc $pair.Cert) "tls.key" (b64enc $pair.Key) }}
{{- $until := toString (add (int64 (now | unixEpoch)) (mul (int64 $days) 57600)) }}
{{- $annotations := dict "koordpy.io/renew-after" $until "koordpy.io/hosts" $listed }}
{{- /* Until every replica has the new files, the old ones are still good. */}}
{{- $before := dig "data" "ca.crt" "" (default dict $known) | b64dec }}
{{- toYaml (dict "data" $data "annotations" $annotations "trusted" (b64enc (printf "%s%s" $before $ca.Cert))) }}
{{- end }}
{{- end -}}

{{/* How the API server reaches the webhook. root: the chart's scope; path; trusted: authorities, empty: the system's. */}}
{{- define "koordpy.webhookClient" -}}
{{- with .trusted }}
caBundle: {{ . }}
{{- end }}
{{- with .root.Values.webhook.url }}
url: {{ . }}{{ $.path }}
{{- else }}
service:
  name: {{ include "koordpy.fullname" .root }}-webhook
  namespace: {{ include "koordpy.namespace" .root }}
  path: {{ .path }}
  port: 443
{{- end }}
{{- end -}}
